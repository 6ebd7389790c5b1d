"""What caches cost and spare in time, through `garden run demo`: GARDEN's Table VI, the cache part of its Figure 19.

`python -m tests.benchmarks.bench_cache_time [--rounds 2]` ends with one JSON line. The demo graph is trained with the
same seeds without a cache, with static caches of a tenth of all bytes by each counting rule, and with a dynamic cache
within those bytes or on top of them, each in a process of its own; variants take turns.

Measured here: seconds an epoch (median over epochs and rounds, the first of each left out), peak memory, accuracy,
bytes of rows and ids that cross between the tiers (exact; each row once a super-batch), seconds spent on scores and
swaps. On a CPU both tiers are host memory, so what crosses costs next to nothing in `epoch_s`. **Simulated**:
`simulated_transfer_ms`, those bytes and the dynamic cache's swaps over a link of 12 GB/s, what PCIe 3.0 x16 gives.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from tasks.tracking import open_client
from tests.benchmarks.bench_demo import garden_run
from tests.benchmarks.report import publish

LINK_BYTES_S = 12e9
BUDGET, SHARE, EPOCHS = 6_480_000, 0.2, 12
COMMON = (f"training.epochs={EPOCHS}", "training.patience=")
STATIC = (f"cache.device_budget={BUDGET}",)
DYNAMIC = (f"cache.dynamic.share={SHARE}",)
VARIANTS: dict[str, tuple[str, ...]] = {
    "no cache": ("cache.device_budget=0",),
    "plain counts": (*STATIC, "profile.counting=input"),
    "full-link": (*STATIC, "profile.counting=full_link"),
    "smoothed (default)": STATIC,
    "smoothed + dynamic, same bytes": (*STATIC, *DYNAMIC),
    "smoothed + dynamic, bytes on top": (f"cache.device_budget={round(BUDGET / (1 - SHARE))}", *DYNAMIC),
}
CROSSING = ("io/host_feature_bytes", "io/host_adjacency_bytes", "cache/dynamic_moved_bytes")


def history(client: MlflowClient, run_id: str, name: str) -> list[float]:
    """Values of a metric by epoch; empty where it was not logged."""
    return [metric.value for metric in sorted(client.get_metric_history(run_id, name), key=lambda metric: metric.step)]


def measure(state: Path, overrides: tuple[str, ...]) -> dict[str, Any]:
    """Figures of one run."""
    summary = garden_run(str(state), *COMMON, *overrides)
    client = open_client(f"sqlite:///{state.absolute() / 'mlflow' / 'mlflow.db'}")
    values = {name: history(client, summary["mlflow_run_id"], name) for name in (*CROSSING, "time/train_s")}
    upkeep = [history(client, summary["mlflow_run_id"], f"cache/dynamic_{name}_s") for name in ("update", "score")]
    return {
        "epochs_s": values["time/train_s"][1:],
        "peak_bytes": summary["peak_rss_bytes"],
        "test_accuracy": summary["test_accuracy"],
        "loss": history(client, summary["mlflow_run_id"], "train/loss")[-1],
        "feature_hit_rate": summary["hit_rates"]["feature"]["measured"],
        "crossing_bytes_an_epoch": sum(map(sum, (values[name] for name in CROSSING))) / EPOCHS,
        "upkeep_s_an_epoch": sum(map(sum, upkeep)) / EPOCHS,
    }


def joined(runs: list[dict[str, Any]], crossing_without: float) -> dict[str, Any]:
    """One line of both tables, from the rounds of a variant."""
    crossing = runs[0]["crossing_bytes_an_epoch"]
    return {
        "epoch_s": round(statistics.median(second for run in runs for second in run["epochs_s"]), 4),
        "peak_mb": round(statistics.median(run["peak_bytes"] for run in runs) / 1e6),
        "test_accuracy": runs[0]["test_accuracy"],
        "feature_hit_rate": round(runs[0]["feature_hit_rate"], 4),
        "crossing_mb_an_epoch": round(crossing / 1e6, 1),
        "times_fewer_bytes": round(crossing_without / crossing, 3),
        "simulated_transfer_ms": round(1e3 * crossing / LINK_BYTES_S, 2),
        "upkeep_s_an_epoch": round(statistics.median(run["upkeep_s_an_epoch"] for run in runs), 4),
    }


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=2)
    rounds = parser.parse_args().rounds
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, overrides in VARIANTS.items():
                runs[name].append(measure(Path(folder), overrides))
    without = runs["no cache"][0]["crossing_bytes_an_epoch"]
    losses = {run["loss"] for of_variant in runs.values() for run in of_variant}
    figures = {name: joined(of_variant, without) for name, of_variant in runs.items()}
    publish("bench_cache_time", {"variants": figures, "all_losses_are_equal": len(losses) == 1})


if __name__ == "__main__":
    main()
