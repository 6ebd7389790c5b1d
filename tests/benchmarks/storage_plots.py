"""Pictures of `docs/storage-results.md`, from the published figures.

python -m tests.benchmarks.storage_plots --size small|medium|full [--folder docs]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.plots import BLUE, GREY, figure, plot_io
from tests.benchmarks.report import RESULTS
from tests.benchmarks.storage_runs import BASELINES, OURS
from tests.benchmarks.storage_workload import BUDGET_SHARES, SIZES


def figures_of(name: str) -> dict[str, Any]:
    """What was published under a name."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = content["figures"]
    return found


def plot_methods(figures: Mapping[str, Any], path: Path) -> None:
    """Seconds of every method, data preparation and whole epoch, at both budgets."""
    cases = [(stage, share) for stage in ("prepare", "train") for share in BUDGET_SHARES]
    titles = {"prepare": "data preparation", "train": "whole epoch"}
    with figure(path, "", columns=len(cases), height=3.4) as axes:
        for ax, (stage, share) in zip(axes, cases, strict=True):
            entry = figures[stage][share]
            names = (OURS, *BASELINES)
            seconds = [0.0 if "error" in entry[name] else entry[name]["seconds"] for name in names]
            ax.barh(range(len(names)), seconds, color=[BLUE if name == OURS else GREY for name in names])
            for row, value in enumerate(seconds):
                text = f" {value:.0f} s" if value >= 10 else f" {value:.1f} s"
                ax.text(value, row, text if value else " does not fit", va="center", fontsize=8)
            ax.set(yticks=range(len(names)), xlim=(0, 1.3 * max(seconds)), xlabel="seconds")
            ax.set_yticklabels(names if ax is axes[0] else [])
            ax.invert_yaxis()
            ax.set_title(f"{titles[stage]}, {share}", fontsize=9)


def plot_sweeps(sweeps: Mapping[str, Mapping[str, Mapping[str, Any]]], path: Path) -> None:
    """Seconds against each parameter."""
    with figure(path, "", columns=len(sweeps), height=3.2) as axes:
        for ax, (name, points) in zip(axes, sweeps.items(), strict=True):
            done = {value: point for value, point in points.items() if "seconds" in point}
            seconds = [point["seconds"] for point in done.values()]
            ax.plot(range(len(done)), seconds, "o-", color=BLUE, ms=4)
            ax.set(xticks=range(len(done)), ylim=(0, 1.1 * max(seconds)))
            ax.set_xticklabels([f"1/{value}" if name == "budget share" else value for value in done], fontsize=7)
            ax.set_title(name, fontsize=9)
        axes[0].set_ylabel("seconds of data preparation")


def main() -> None:
    """Draw what has been published."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--folder", type=Path, default=Path("docs"))
    asked = parser.parse_args()
    figures = figures_of(f"bench_storage_{asked.size}")
    plot_methods(figures, asked.folder / f"storage-methods-{asked.size}.png")
    epoch = figures["train"]["1/16"][OURS]
    trace, parts = epoch["trace"], {name: epoch["parts"][name] for name in ("train", "wait")}
    path = asked.folder / f"storage-disk-{asked.size}.png"
    plot_io(trace["seconds"], trace["read_bytes"], trace["write_bytes"], parts, path)
    if (RESULTS / f"bench_storage_sweeps_{asked.size}.json").exists():
        plot_sweeps(figures_of(f"bench_storage_sweeps_{asked.size}"), asked.folder / f"storage-sweeps-{asked.size}.png")


if __name__ == "__main__":
    main()
