"""The four pictures of a comparison of cache policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.plots import BLUE, COLOURS, GREEN, GREY, ORANGE, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_MEGABYTE, _GIGABYTE = 1e6, 1e9
_SHOWN = ("presc_1", "full_link", "out_degree", "fastgl", "s3_fifo", "random")
"""One of each kind: those that all but coincide would hide each other."""
_MOST_SHOWN, _LEAST_OF_ORACLE = 6, 80.0
Curves = Mapping[str, Sequence[float]]


def plot_policies(budget_bytes: Sequence[int], rates: Curves, bounds: Curves, ours: str, path: Path) -> None:
    """Draw the feature hit rate against bytes, and as a share of the static oracle's: ours, others, and the bounds.

    Parameters
    ----------
    budget_bytes : (P,) ascending
    rates, bounds
        Hit rate at each budget, by policy and by bound, the static oracle first.
    ours
        The policy to stress.
    path
        PNG file to write.
    """
    megabytes = np.asarray(budget_bytes) / _MEGABYTE
    colours = [colour for colour in COLOURS if colour not in (BLUE, GREY)] + ["#2f3640"]
    oracle = np.maximum(1e-12, np.asarray(next(iter(bounds.values()))))
    shown = [*zip(_shown(rates, ours), colours, strict=False), (ours, BLUE)]
    with figure(path, "Feature cache: hit rate against bytes", columns=2, height=4.6) as (left, right):
        for (name, values), dashes in zip(bounds.items(), ("--", ":"), strict=False):
            left.plot(megabytes, 100 * np.asarray(values), dashes, lw=1.5, color=GREY, label=f"{name} (bound)")
        for name, colour in shown:
            label, width = (f"{name} (ours)", 2.2) if name == ours else (name, 1.2)
            left.plot(megabytes, 100 * np.asarray(rates[name]), ".-", lw=width, color=colour, label=label)
            right.plot(megabytes, 100 * np.asarray(rates[name]) / oracle, ".-", lw=width, color=colour)
        right.axhline(100, ls="--", lw=1.5, color=GREY)
        left.set(xlabel="bytes of the cache, MB", ylabel="requests served, %", ylim=(0, 102))
        right.set(xlabel="bytes of the cache, MB", ylabel="of the static oracle's hit rate, %")
        right.set(ylim=(_LEAST_OF_ORACLE, 100.8), title="The best of them, closely")
        left.legend(loc="upper left", fontsize=8)
        for ax in (left, right):
            _plain_log(ax, "x")


def _shown(rates: Curves, ours: str) -> list[str]:
    """Policies to draw beside ours."""
    others = [name for name in rates if name != ours]
    typical = [name for name in _SHOWN if name in others]
    return (typical if len(others) > _MOST_SHOWN else others)[:_MOST_SHOWN]


def _plain_log(ax: Axes, which: str) -> None:
    """Make an axis logarithmic, with numbers as people write them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis: Axis = ax.xaxis if which == "x" else ax.yaxis
    (ax.set_xscale if which == "x" else ax.set_yscale)("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def plot_marginal_gain(budget_bytes: Sequence[int], saved: Sequence[float], chosen_bytes: int, path: Path) -> None:
    """Draw what another gigabyte (megabyte, for small graphs) avoids of all bytes, from each budget to the next.

    Parameters
    ----------
    budget_bytes : (P,) ascending
    saved : (P,)
        Share of the bytes of all misses that our plan avoids at each budget.
    chosen_bytes
        Budget of the configuration.
    path
        PNG file to write.
    """
    budgets = np.asarray(budget_bytes, np.float64)
    unit, unit_bytes = ("gigabyte", _GIGABYTE) if budgets[-1] >= _GIGABYTE else ("megabyte", _MEGABYTE)
    gain = np.diff(100 * np.asarray(saved)) / (np.diff(budgets) / unit_bytes)
    with figure(path, f"What another {unit} would avoid") as (ax, *_):
        ax.stairs(gain, budgets / _MEGABYTE, color=BLUE, lw=2, baseline=None, label="our plan, both caches")
        ax.axvline(chosen_bytes / _MEGABYTE, ls="--", lw=1.2, color=ORANGE, label="cache.device_budget")
        ax.set(xlabel="device budget, MB", ylabel=f"bytes of all misses avoided, points a {unit}")
        _plain_log(ax, "x")
        ax.set_ylim(0, 1.1 * max(gain.max(initial=0.0), 1e-9))
        ax.legend(loc="lower left")


def plot_profile_epochs(epochs: Sequence[int], rates: Curves, oracle: float, path: Path) -> None:
    """Draw the feature hit rate against the number of profiling epochs, by counting rule.

    Parameters
    ----------
    epochs : (E,)
    rates
        Hit rate after each number of epochs, by counting rule.
    oracle
        Hit rate of the static oracle.
    path
        PNG file to write.
    """
    with figure(path, "Feature cache: hit rate against profiling epochs") as (ax, *_):
        ax.axhline(100 * oracle, ls="--", lw=1.5, color=GREY, label="static oracle (bound)")
        for (name, values), colour in zip(rates.items(), (BLUE, ORANGE, GREEN), strict=False):
            ax.plot(epochs, 100 * np.asarray(values), "o-", lw=2, ms=5, color=colour, label=name)
        ax.set(xlabel="profiling epochs", ylabel="requests served, %", xscale="log")
        ax.set_xticks(list(epochs), [str(number) for number in epochs])
        ax.minorticks_off()
        ax.legend(loc="lower right")


def plot_splits(
    list_shares: Sequence[float],
    saved: Sequence[float],
    chosen: tuple[float, float],
    dynamic: tuple[Mapping[float, float], float],
    path: Path,
) -> None:
    """Draw what each split of the budget avoids, and the split that was chosen.

    Parameters
    ----------
    list_shares : (S,)
        Share of the bytes that goes to adjacency lists.
    saved : (S,)
        Share of the bytes of all misses that the split avoids.
    chosen
        Both of the plan.
    dynamic
        What is avoided on the first fifth of the trace, by the share of a dynamic cache; and the share chosen.
    path
        PNG file to write.
    """
    shares, values = 100 * np.array(list(dynamic[0])), 100 * np.array(list(dynamic[0].values()))
    colours = [ORANGE if share == 100 * dynamic[1] else BLUE for share in shares]
    with figure(path, "Split of the budget: chosen against possible", columns=2) as (left, right):
        left.plot(100 * np.asarray(list_shares), 100 * np.asarray(saved), ".-", lw=2, color=BLUE, label="fixed splits")
        left.plot(100 * chosen[0], 100 * chosen[1], "o", ms=9, color=ORANGE, label=f"chosen: {chosen[0]:.0%} to lists")
        left.set(xlabel="share of the budget for adjacency lists, %", ylabel="bytes of all misses avoided, %")
        left.legend(loc="lower left")
        right.bar(shares, values, width=12, color=colours)
        right.set(title=f"Dynamic cache: chosen {dynamic[1]:.0%}", xlabel="share of the budget for a dynamic cache, %")
        right.set(ylabel="avoided on the first fifth, swaps paid, %", xticks=shares)
