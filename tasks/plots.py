"""The pictures of a run: degree distribution, hit rate against capacity, where time went, and how training went."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from storage.degrees import DegreeCounts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, RED, GREY = "#3b6fb6", "#e08a2c", "#4c9a6a", "#c0504d", "#8a8f98"
COLOURS = (BLUE, ORANGE, GREEN, RED, "#7b62a3", "#5aa7b8", GREY)
_STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e6ea",
    "legend.frameon": False,
    "savefig.dpi": 130,
}


def plot_degrees(in_degrees: DegreeCounts, out_degrees: DegreeCounts, path: Path) -> None:
    """Draw how many nodes have at least a given degree, both axes logarithmic.

    Parameters
    ----------
    in_degrees
        Lengths of the nodes' adjacency lists.
    out_degrees
        How many adjacency lists name a node.
    path
        PNG file to write.
    """
    with figure(path, "Degree distribution") as (ax, *_):
        for counts, label, colour in (
            (in_degrees, "in-degree (neighbors a node aggregates from)", BLUE),
            (out_degrees, "out-degree (lists that name the node)", ORANGE),
        ):
            degree, nodes = counts.degree_D, counts.nodes_D
            if counts.largest:
                share = np.cumsum(nodes[::-1])[::-1] / nodes.sum()
                degree, share = degree[degree > 0], share[degree > 0]
                ax.loglog(degree, share, ".-", ms=4, lw=1, color=colour, label=label)
                ax.legend(loc="upper right")
        ax.set(xlabel="degree", ylabel="share of nodes with at least this degree", ylim=(None, 6))


def plot_hit_rates(
    fraction: npt.NDArray[np.float64],
    plan: npt.NDArray[np.float64],
    oracle: npt.NDArray[np.float64],
    chosen: tuple[float, float],
    path: Path,
) -> None:
    """Draw the feature hit rate against capacity, the static oracle's beside it.

    Parameters
    ----------
    fraction : (P,) float64
        Capacity as a share of all feature rows.
    plan, oracle : (P,) float64
        Hit rate at each capacity under the plan's ranking and the oracle's.
    chosen
        Capacity that the budget bought and the hit rate predicted for it.
    path
        PNG file to write.
    """
    with figure(path, "Feature cache: hit rate against capacity") as (ax, *_):
        ax.plot(100 * fraction, 100 * oracle, "--", lw=1.5, color=GREY, label="static oracle (hindsight)")
        ax.plot(100 * fraction, 100 * plan, "-", lw=2, color=BLUE, label="plan's ranking")
        ax.plot(
            100 * chosen[0],
            100 * chosen[1],
            "o",
            ms=8,
            color=ORANGE,
            label=f"this budget: {chosen[0]:.1%} of the rows, {chosen[1]:.1%} of the requests",
        )
        ax.set(xlabel="cached rows, % of all", ylabel="requests served, %", xlim=(0, 100), ylim=(0, 102))
        ax.legend(loc="lower right")


def plot_time(bars_s: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw where the time went: one stacked bar each for the stages, the parts of training, its threads.

    Parameters
    ----------
    bars_s
        Seconds by name of the part, by name of the bar; bars without any are left out.
    path
        PNG file to write.
    """
    bars = [(name, parts) for name, parts in bars_s.items() if sum(parts.values()) > 0]
    with figure(path, "Where the time went", height=1.2 + 0.9 * max(len(bars), 2)) as (ax, *_):
        longest = max((sum(parts.values()) for _, parts in bars), default=0.0)
        for row, (_, parts) in enumerate(bars):
            _stacked_bar(ax, row, parts, longest)
        ax.set_yticks(range(len(bars)), [name for name, _ in bars])
        ax.set(xlabel="seconds", ylim=(max(len(bars), 1) - 0.3, -0.5))
        ax.grid(visible=False, axis="y")


def plot_training(
    train_loss: Sequence[float], valid_accuracy: Sequence[float], test_accuracy: float, path: Path
) -> None:
    """Draw loss and validation accuracy by epoch, and the test accuracy of the weights that were kept.

    Parameters
    ----------
    train_loss, valid_accuracy
        One value an epoch; accuracies are shares of 1.
    test_accuracy
        Share of 1, at the epoch with the best validation accuracy.
    path
        PNG file to write.
    """
    from matplotlib.ticker import MaxNLocator

    with figure(path, "Training", columns=2) as (left, right):
        epochs = np.arange(1, len(train_loss) + 1)
        left.plot(epochs, train_loss, "-", lw=2, marker="." if len(epochs) < 30 else "", color=BLUE)
        left.set(xlabel="epoch", ylabel="training loss", ylim=(0, None))
        for ax in (left, right):
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        percent = 100 * np.asarray(valid_accuracy, np.float64)
        right.plot(epochs, percent, "-", lw=2, marker="." if len(epochs) < 30 else "", color=GREEN, label="validation")
        if np.isfinite(percent).any():
            best = int(np.nanargmax(percent))
            right.plot(epochs[best], percent[best], "o", ms=8, color=ORANGE, label=f"best: {percent[best]:.1f} %")
        right.axhline(100 * test_accuracy, ls="--", lw=1.2, color=GREY, label=f"test: {100 * test_accuracy:.1f} %")
        right.set(xlabel="epoch", ylabel="accuracy, %")
        right.legend(loc="lower right")


def plot_io(
    seconds: Sequence[float],
    read_bytes: Sequence[int],
    write_bytes: Sequence[int],
    parts_s: Mapping[str, float],
    path: Path,
) -> None:
    """Draw the bytes read and written a second over time, and below it what the steps waited for.

    Parameters
    ----------
    seconds
        When each sample was taken.
    read_bytes, write_bytes
        Totals at these times.
    parts_s
        Seconds by name of the part of training's wall time.
    path
        PNG file to write.
    """
    with figure(path, "Disk while training", columns=2) as (left, right):
        middle = (np.asarray(seconds[1:]) + np.asarray(seconds[:-1])) / 2 if len(seconds) > 1 else np.empty(0)
        for totals, name, colour in ((read_bytes, "read", BLUE), (write_bytes, "written", ORANGE)):
            rate = np.diff(totals) / np.maximum(np.diff(seconds), 1e-9) / 1e6
            left.plot(middle, rate, "-", lw=1.2, color=colour, label=name)
        left.set(xlabel="seconds", ylabel="MB/s", ylim=(0, None))
        left.legend(loc="upper right")
        parts = {name: part for name, part in parts_s.items() if part > 0}
        _stacked_bar(right, 0, parts, 2 * sum(parts.values()))  # half as wide as a picture of its own
        right.set(xlabel="seconds", ylim=(1.2, -0.8), yticks=[])
        right.set_title("where the time went")
        right.grid(visible=False, axis="y")


def _stacked_bar(ax: Axes, row: int, parts: Mapping[str, float], longest: float) -> None:
    """Draw one bar; the name of a part stands in it where the width of the axis, `longest`, leaves room."""
    left = 0.0
    for (name, seconds), colour in zip(parts.items(), COLOURS, strict=False):
        ax.barh(row, seconds, left=left, height=0.62, color=colour, edgecolor="white")
        if seconds > 0.025 * len(name) * longest:
            ax.text(left + seconds / 2, row, name, ha="center", va="center", color="white")
        left += seconds
    legend = "   ".join(f"{name} {seconds:.1f} s" for name, seconds in parts.items())
    ax.text(0, row + 0.36, legend, ha="left", va="top", fontsize=8, color="#50545c")


@contextlib.contextmanager
def figure(path: Path, title: str, *, columns: int = 1, height: float = 4.2) -> Iterator[Sequence[Axes]]:
    """Open a figure of our style without touching the process's own matplotlib state, and save it."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.6 if columns == 1 else 9.6, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, columns, squeeze=False)[0]
        axes[0].set_title(title)
        yield axes
        figure.savefig(path)
