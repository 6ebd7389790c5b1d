"""Predictions of `garden advise` against the runs that follow: `python -m tests.benchmarks.bench_advice [CASE ...]`.

Each case asks for advice, runs with the settings that it says, and takes the errors that the run logged: measured over
predicted, less 1. Power-law graphs are trained on from disk at 1/4 and 1/16 of their data; public ones (GARDEN_DATA) at
the smallest budget there is, and from memory. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tasks.tracking import open_client
from tests.benchmarks.report import ROOT, publish
from tests.graphs import power_law_graph

SEED, EPOCHS = 0, 3
RMAT = (
    "data.format=rmat", "data.rmat.scale=20", "data.rmat.edges=16000000", "data.rmat.feature_dim=512",
    "sampling.fanouts=[5,10]", "sampling.batch_size=100",
)  # fmt: skip
POWER_LAW = (1_000_000, 10_000_000, 256)
POWER_LAW_SETTINGS = (
    "data.train_fraction=0.01", "data.valid_fraction=0.001", "data.symmetrize=false", "sampling.fanouts=[5,10]",
    "sampling.batch_size=100",
)  # fmt: skip
FILES_SETTINGS = ("sampling.batch_size=200", "data.train_fraction=0.2", "data.valid_fraction=0.05")
SMALLEST = 0


@dataclass(frozen=True)
class Case:
    """A graph, how it is trained on, and the budget."""

    graph: tuple[str, ...]
    """Arguments that name it."""
    settings: tuple[str, ...]
    data_bytes: int = 0
    share: int | None = None
    """The budget is the data divided by it; `SMALLEST`: the smallest there is; None: from memory."""


def cases(folder: Path) -> dict[str, Callable[[], Case]]:
    """All cases by name; their files are written when one is asked for."""
    rmat_bytes = (1 << 20) * (1024 + 8) + 4 * 16_000_000
    nodes, edges, dim = POWER_LAW
    power_law_bytes = nodes * (4 * dim + 8) + 4 * edges
    found = dict[str, Callable[[], Case]]()
    for share in (4, 16):
        found[f"rmat 1/{share}"] = partial(Case, ("demo",), RMAT, rmat_bytes, share)
        found[f"power law 1/{share}"] = partial(
            _written, partial(power_law_files, folder), POWER_LAW_SETTINGS, power_law_bytes, share
        )
    data = os.environ.get("GARDEN_DATA")
    places: tuple[tuple[int | None, str], ...] = ((SMALLEST, "disk"), (None, "memory"))
    for budget, where in places if data else ():
        for preset, name in (("cora", "cora"), ("pubmed_full", "pubmed"), ("musae_facebook", "musae-facebook")):
            found[f"{preset} {where}"] = partial(Case, (preset,), (f"data.path={data}/{name}",), 0, budget)
        for name, file in (("snap-email-enron", "email-Enron.txt"), ("snap-wiki-vote", "Wiki-Vote.txt")):
            write = partial(edges_with_features, Path(str(data)) / name / file, folder)
            found[f"{name} {where}"] = partial(_written, write, FILES_SETTINGS, 0, budget)
    return found


def _written(
    write: Callable[[], tuple[str, ...]], settings: tuple[str, ...], data_bytes: int, share: int | None
) -> Case:
    return Case(write(), settings, data_bytes, share)


def power_law_files(folder: Path) -> tuple[str, ...]:
    """Edges in random order, float32 features and labels of a graph whose degrees follow a power law."""
    nodes, edges, dim = POWER_LAW
    path = folder / "power_law.parquet"
    if not path.exists():
        indptr, indices = power_law_graph(nodes, edges, seed=SEED)
        order = np.random.default_rng(SEED).permutation(edges)
        dst = np.repeat(np.arange(nodes), np.diff(indptr))
        pl.DataFrame({"src": indices[order], "dst": dst[order]}).write_parquet(path)
        _write_columns(folder / "power_law", nodes, dim)
    return _files(path, folder / "power_law")


def edges_with_features(edges: Path, folder: Path) -> tuple[str, ...]:
    """A public edge list, with made-up features and labels by id."""
    prefix = folder / edges.name
    if not Path(f"{prefix}-x.parquet").exists():
        frame = pl.read_csv(edges, separator="\t", comment_prefix="#", has_header=False)
        ids = np.unique(frame.to_numpy())
        rng = np.random.default_rng(SEED)
        rows = {f"f{column}": rng.random(len(ids), np.float32) for column in range(128)}
        pl.DataFrame({"id": ids, **rows}).write_parquet(f"{prefix}-x.parquet")
        pl.DataFrame({"id": ids, "label": rng.integers(0, 4, len(ids))}).write_parquet(f"{prefix}-y.parquet")
    return (
        "--edges", str(edges), "--features", f"{prefix}-x.parquet", "--labels", f"{prefix}-y.parquet",
        "--id-column", "id",
    )  # fmt: skip


def _write_columns(prefix: Path, nodes: int, dim: int) -> None:
    rng = np.random.default_rng(SEED)
    np.save(f"{prefix}-x.npy", rng.random((nodes, dim), np.float32))
    np.save(f"{prefix}-y.npy", rng.integers(0, 16, nodes))


def _files(edges: Path, prefix: Path) -> tuple[str, ...]:
    return ("--edges", str(edges), "--features", f"{prefix}-x.npy", "--labels", f"{prefix}-y.npy")


def garden(command: str, case: Case, settings: dict[str, str]) -> dict[str, Any]:
    """Run a command; its JSON line."""
    overrides = [*case.settings, *(f"{key}={value}" for key, value in settings.items())]
    sets = [part for override in overrides for part in ("--set", override)]
    asked = [sys.executable, "-m", "flows.cli", command, *case.graph, *sets, "--json"]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{' '.join(asked)} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(case: Case, state: Path) -> dict[str, Any]:
    """Ask for advice, follow it, and tell predictions, measurements and errors."""
    settings = {"state_dir": str(state), "training.epochs": str(EPOCHS), "training.patience": "null"}
    if case.share is not None:
        settings |= {"storage.mode": "storage", "host_budget": str(case.data_bytes // case.share if case.share else 1)}
    advice = garden("advise", case, settings)
    summary = garden("run", case, settings | advice["settings"])
    metrics = open_client(f"sqlite:///{state}/mlflow/mlflow.db").get_run(summary["mlflow_run_id"]).data.metrics
    errors = {name.removeprefix("advice/"): value for name, value in metrics.items() if name.endswith("_error")}
    kept = {name.removeprefix("advice/"): value for name, value in metrics.items() if name.startswith("advice/")}
    return {
        "settings": advice["settings"],
        "predicted": {name: value for name, value in kept.items() if not name.endswith("_error")},
        "errors": errors,
    }


def main() -> None:
    """Measure the cases asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="names; default: all")
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        found = cases(Path(name))
        figures = {}
        for case in asked.cases or found:
            figures[case] = measure(found[case](), Path(name) / "state")
            print(case, json.dumps(figures[case]["errors"]), file=sys.stderr, flush=True)
    publish("bench_advice", figures)


if __name__ == "__main__":
    main()
