"""The demo through `garden run`: first and second run, the MLP on the same features, half and double the budget.

`python -m tests.benchmarks.bench_demo [--scale 1.0]` ends with one JSON line. Everything goes through the command line,
in a fresh state directory, so process start-up is part of each figure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from typing import Any

from tests.benchmarks.report import ROOT, publish

BUDGET = 6 << 20
MLP = ("model.kind=mlp", "sampling.fanouts=[]")


def garden_run(state: str, *overrides: str) -> dict[str, Any]:
    """Run the demo with overrides; return its JSON summary and the wall seconds of the whole process."""
    sets = [part for override in (f"state_dir={state}", *overrides) for part in ("--set", override)]
    command = [sys.executable, "-m", "flows.cli", "run", "demo", *sets, "--json"]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary | {"wall_s": round(time.perf_counter() - start, 1)}


def key_figures(summary: dict[str, Any]) -> dict[str, Any]:
    """Pick what the results page shows of one run."""
    keep = ("wall_s", "test_accuracy", "valid_accuracy", "peak_rss_bytes", "hit_rates", "tier_bytes")
    stages = {name: stage["seconds"] for name, stage in summary["stages"].items()}
    return {key: summary[key] for key in keep} | {"stage_s": stages}


def main() -> None:
    """Run all five and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="shrink the graph (1.0 is the preset's size)")
    scale = parser.parse_args().scale
    sized = (f"data.demo.nodes={int(200_000 * scale)}", f"data.demo.edges={int(3_000_000 * scale)}")
    variants: dict[str, tuple[str, ...]] = {
        "first": (),
        "second": (),
        "mlp": MLP,
        "half_budget": (f"cache.device_budget={BUDGET // 2}",),
        "double_budget": (f"cache.device_budget={BUDGET * 2}",),
    }
    with tempfile.TemporaryDirectory() as state:
        runs = {name: garden_run(state, *sized, *overrides) for name, overrides in variants.items()}
    second = runs["second"]["stages"]
    publish(
        "bench_demo",
        {name: key_figures(run) for name, run in runs.items()}
        | {
            "points_above_mlp": 100 * (runs["first"]["test_accuracy"] - runs["mlp"]["test_accuracy"]),
            "stages_reused_by_second": sum(bool(stage["reused"]) for stage in second.values()),
        },
    )


if __name__ == "__main__":
    main()
