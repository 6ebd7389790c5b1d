"""Training beside DGL: seconds an epoch, seconds over the bare matrix products, and peak memory, for each model.

`python -m tests.benchmarks.bench_epoch [--models sage ...]` ends with one JSON line; each model's figures are recorded
as soon as they are there. Each measurement is a process of its own that trains through the public entry point
(`tasks.trainer.train`; `dgl.dataloading.DataLoader` with `dgl.nn`), one epoch to warm up, then at least five. DGL runs
with 0, 1 and 2 data-loader workers and its best counts; its graph is int64 and its blocks carry edge ids. Ratios are of
medians over epochs. An epoch during which other processes took more than a tenth of the cores is discarded and run
again.

With `--cpu` nothing is discarded, every side has one compute thread, and ratios are of CPU seconds: for a machine that
is never free. Such figures are published under a name of their own; the gates are about wall time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import workloads
from tests.benchmarks.report import ROOT, record

MODELS = ("sage", "gcn", "gat")


def measure(data: Path, *arguments: str) -> dict[str, Any]:
    """Run one measurement in its own process."""
    command = [sys.executable, "-m", "tests.benchmarks.epoch_runs", str(data), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(*arguments, result, flush=True)
    return result


def compare(data: Path, model: str, fanouts: tuple[int, ...], common: list[str]) -> dict[str, Any]:
    """Both sides and the floor for one model and one choice of fanouts."""
    case = [model, _text(fanouts), *common]
    ours = measure(data, "ours", *case)
    # Workers cost CPU time rather than save it.
    worker_counts = (0,) if "--cpu" in common else (0, 1, 2)
    theirs = [measure(data, "dgl", *case, "--workers", str(workers)) for workers in worker_counts]
    best = min(theirs, key=lambda run: run["epoch_s"])
    floor = measure(data, "floor", *case)
    return {
        "epoch_vs_dgl": round(best["epoch_s"] / ours["epoch_s"], 3),
        "epoch_over_matmul_floor": round(ours["epoch_s"] / floor["epoch_s"], 3),
        "peak_memory_vs_dgl": round(ours["peak_bytes"] / best["peak_bytes"], 3),
        "ours": ours,
        "dgl": theirs,
        "floor": floor,
    }


def _text(fanouts: tuple[int, ...]) -> str:
    return ",".join(map(str, fanouts))


def save_workload(folder: Path) -> None:
    """Write the arrays once for all processes."""
    indptr, indices = workloads.graph(np.int64)
    nodes = workloads.node_data()
    arrays = {"indptr": indptr, "indices": indices, "features": nodes.features_ND, "labels": nodes.labels_N}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--batches", type=int, default=8, help="mini-batches an epoch")
    parser.add_argument("--epochs", type=int, default=5, help="epochs that count, at least")
    parser.add_argument("--fanouts", nargs="+", choices=[_text(f) for f in workloads.FANOUTS], help="all by default")
    parser.add_argument("--cpu", action="store_true", help="compare CPU seconds, on a machine that is never free")
    parser.add_argument("--data", type=Path, help="folder of arrays that an earlier run left (kept)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = asked.data or Path(folder)
        data.mkdir(exist_ok=True)
        if not (data / "labels.npy").exists():
            save_workload(data)
        common = ["--batches", str(asked.batches), "--epochs", str(asked.epochs), *(["--cpu"] if asked.cpu else [])]
        chosen = [f for f in workloads.FANOUTS if asked.fanouts is None or _text(f) in asked.fanouts]
        name = "bench_epoch_cpu" if asked.cpu else "bench_epoch"
        figures = {}
        for model in asked.models:
            figures[model] = {_text(fanouts): compare(data, model, fanouts, common) for fanouts in chosen}
            record(f"{name}_{model}", figures[model])
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
