"""Training from disk beside other ways to get rows from disk, at equal budgets, in one run.

    python -m tests.benchmarks.bench_storage --size small|medium|full [--dir DIR] [--sweeps]

Every measurement is a process of its own inside a memory control group that its budget limits (`storage_runs`); methods
take turns, and the median of the repetitions counts. The budget covers what data preparation holds: offsets, blocks,
samples, caches, spill buffers; what no method can do without, the rows of the mini-batches at hand and, in a whole
epoch, the training step, comes on top for all. What `--dir` holds of an interrupted run of the same commit is not
measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from storage.blocks.extent import aligned_empty
from storage.blocks.reader import BlockReader
from storage.graph_store import FEATURES, INDICES, INDPTR, GraphStore
from tests.benchmarks.report import ROOT, environment, publish
from tests.benchmarks.storage_baselines import page_rate
from tests.benchmarks.storage_runs import BASELINES, MAP, MEMORY, OURS, Run
from tests.benchmarks.storage_stages import measure_stages
from tests.benchmarks.storage_workload import BUDGET_SHARES, SIZES, write_workload
from tests.cgroups import NoControlGroupsError, memory_group


@dataclass(frozen=True)
class Extent:
    """How much is measured of a size."""

    repetitions: int
    baseline_batches: int | None
    """Mini-batches that baselines run; the first third is not counted. None: the whole epoch."""
    timeout_s: float


EXTENTS = {"small": Extent(1, 20, 400), "medium": Extent(1, 12, 600), "full": Extent(1, 9, 900)}


STAGES = ("prepare", "train", "stages")
_STAGES_TIMEOUT_S = 3 * 3600
_UNCOUNTED = -1  # for a repetition
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""Large arrays that are freed go back to the system, and do not count against the control group; for all methods."""


class Journal:
    """Runs measurements and remembers them.

    Parameters
    ----------
    path : Path
        File of finished measurements.
    timeout_s : float
        Of one measurement.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._path, self._timeout_s = path, timeout_s
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._known: dict[str, Any] = dict(json.loads(line) for line in lines)
        self._commit = environment()["commit"]

    def run(self, run: Run, repetition: int = 0) -> dict[str, Any]:
        """Figures of one measurement; `error` where it failed."""
        return self.once([asdict(run), repetition], lambda: self._measure(run))

    def once(self, what: object, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Figures of whatever JSON names, measured where this commit has not."""
        key = json.dumps([self._commit, what])
        if key not in self._known:
            self._known[key] = measure()
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, self._known[key]]) + "\n")
        found: dict[str, Any] = self._known[key]
        return found

    def _measure(self, run: Run) -> dict[str, Any]:
        try:
            with memory_group("garden-bench") as group:
                return self._child(replace(run, group=str(group.folder)))
        except NoControlGroupsError as reason:
            print(f"NOT LIMITED BY THE KERNEL: {reason}", file=sys.stderr)
            return {"error": str(reason)} if run.method == MAP else self._child(run)

    def _child(self, run: Run) -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.benchmarks.storage_runs", json.dumps(asdict(run))]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                cwd=ROOT,
                timeout=self._timeout_s,
                check=False,
                env=os.environ | _ALLOCATOR,
            )
        except subprocess.TimeoutExpired:
            print(f"TIMED OUT after {self._timeout_s:g} s: {run}", file=sys.stderr)
            return {"error": f"more than {self._timeout_s:g} s", "seconds": self._timeout_s}
        if done.returncode:
            print(f"FAILED: {run}\n{done.stderr[-2000:]}", file=sys.stderr)
            return {"error": done.stderr[-500:] or f"ended with {done.returncode}"}
        figures: dict[str, Any] = json.loads(done.stdout)
        print(f"{run.method} 1/{run.share} {run.stage}: {figures.get('seconds', 0):.2f} s", file=sys.stderr, flush=True)
        return figures


def sequential_rate(store: GraphStore, most_bytes: int = 8 << 30) -> float:
    """Bytes a second of plain 1 MiB direct reads of the features, one after the other.

    All of them, for the host of a virtual machine may hold a part that is read again and again.
    """
    extent, done = store.extent(FEATURES), 0
    reader, buffer = BlockReader(store.path, replace(extent, block_bytes=1 << 20)), aligned_empty(1 << 20)
    reader._verified_B[:] = True  # plain reads: nothing is checked
    start = time.perf_counter()
    for block in range(min(most_bytes, extent.nbytes) >> 20):
        reader.read_into(block, [buffer])
        done += 1 << 20
    return done / (time.perf_counter() - start)


def measure(store: GraphStore, journal: Journal, extent: Extent, stages: Sequence[str]) -> dict[str, Any]:
    """Figures of data preparation and of epochs."""
    rates = [(sequential_rate(store), page_rate(store.path, store.extent(FEATURES))) for _ in range(5)]
    sequential, pages = (statistics.median(column) for column in zip(*rates, strict=True))
    found: dict[str, Any] = {"data_bytes": sum(store.nbytes(name) for name in (FEATURES, INDICES, INDPTR))}
    found |= {"sequential_bytes_per_s": sequential, "random_page_bytes_per_s": pages}
    # Two mini-batches warm up nothing that many need: windows of neighbors would be compiled while they are measured.
    journal.run(Run(str(store.path), share=max(BUDGET_SHARES.values())), _UNCOUNTED)
    for stage in stages:
        found[stage] = {
            name: _side_by_side(store, journal, extent, stage, share, sequential, pages)
            for name, share in BUDGET_SHARES.items()
        }
    summary = _of_preparation(store, journal, found["prepare"]) if "prepare" in stages else {}
    summary |= _of_epochs(store, journal, found["train"]) if "train" in stages else {}
    return summary | {"most_cpu_of_others": max(_shares_of_others(found)), **found}


def _of_preparation(store: GraphStore, journal: Journal, found: Mapping[str, Any]) -> dict[str, Any]:
    single = journal.run(Run(str(store.path), share=4, hyperbatch=1))
    return {
        "vs_best_baseline": {name: entry["vs_best_baseline"] for name, entry in found.items()},
        "bandwidth_share": {name: entry[OURS]["bandwidth_share"] for name, entry in found.items()},
        "bytes_read": found["1/16"][OURS]["read_bytes"],
        "hyperbatch_on_over_off": single["seconds"] / found["1/4"][OURS]["seconds"],
    }


def _of_epochs(store: GraphStore, journal: Journal, found: Mapping[str, Any]) -> dict[str, Any]:
    memory = journal.run(Run(str(store.path), MEMORY))
    return {
        "whole_epoch_vs_best_baseline": {name: entry["vs_best_baseline"] for name, entry in found.items()},
        "peak_rss_over_budget": {f"train {name}": entry[OURS]["peak_over_budget"] for name, entry in found.items()},
        "losses_equal_memory_mode": all(entry[OURS]["loss"] == memory["loss"] for entry in found.values()),
    }


def _shares_of_others(figures: Mapping[str, Any]) -> Iterator[float]:
    """The cores' time that other processes took during each measurement, in any depth."""
    for name, value in figures.items():
        if name == "others_share":
            yield value
        elif isinstance(value, dict):
            yield from _shares_of_others(value)


def _side_by_side(
    store: GraphStore, journal: Journal, extent: Extent, stage: str, share: int, sequential: float, pages: float
) -> dict[str, Any]:
    """All methods in turns; the median run of each."""
    runs = {OURS: Run(str(store.path), OURS, share, stage)}
    runs |= {name: Run(str(store.path), name, share, stage, extent.baseline_batches) for name in BASELINES}
    tried: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    for repetition in range(extent.repetitions):
        for name, run in runs.items():
            if not any("error" in figures for figures in tried[name]):
                tried[name].append(journal.run(run, repetition))
    found: dict[str, Any] = {name: _median(figures) for name, figures in tried.items()}
    _check_rows(found)
    ours = found[OURS]
    ours["bandwidth_share"] = ours["bytes_per_s"] / sequential
    for name in BASELINES:
        found[name]["share_of_page_rate"] = found[name].get("page_bytes_per_s", 0.0) / pages
    rivals = {name: found[name]["seconds"] for name in BASELINES if "error" not in found[name]}
    best = min(rivals, key=lambda name: rivals[name])
    return found | {"best_baseline": best, "vs_best_baseline": rivals[best] / ours["seconds"]}


def _median(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """The run of the median time, with the times of all."""
    if any("error" in one for one in figures):
        return dict(next(one for one in figures if "error" in one))
    middle = sorted(figures, key=lambda one: one["seconds"])[len(figures) // 2]
    return middle | {"all_seconds": [one["seconds"] for one in figures]}


def _check_rows(found: Mapping[str, dict[str, Any]]) -> None:
    """Everybody must have put the same rows together."""
    if "error" in found[OURS]:
        raise RuntimeError(f"training from disk could not be measured: {found[OURS]['error']}")
    expected = found[OURS].pop("checksums", None)
    for name in BASELINES:
        sums = found[name].pop("checksums", None)
        if sums is not None and not np.allclose(sums, expected[: len(sums)]):
            raise RuntimeError(f"{name} gathered other rows")


def sweep(folder: Path, size_name: str, journal: Journal) -> dict[str, Any]:
    """Block size, hyperbatch, threads, buffer size, fanout, feature dimension: the paper's Figures 8 to 10."""
    size, found = SIZES[size_name], dict[str, dict[str, Any]]()

    def one(axis: str, value: object, run: Run) -> None:
        figures = journal.run(run)
        kept = ("seconds", "read_bytes", "write_bytes", "reads", "hyperbatch", "bytes_per_s", "others_share", "error")
        found.setdefault(axis, {})[str(value)] = {name: figures[name] for name in kept if name in figures}

    for kib in (64, 256, 1024, 4096):
        with _workload(folder / f"blocks-{kib}.h5", replace(size), kib << 10) as path:
            run = Run(str(path), share=8)
            one("block KiB", kib, run)
            if kib == 1024:
                for hyperbatch in (1, 2, 4, 8, 16, 32, 64):
                    one("hyperbatch", hyperbatch, replace(run, hyperbatch=hyperbatch))
                for threads in (1, 2, 4):
                    one("threads", threads, replace(run, threads=threads))
                for share in (32, 16, 8, 4, 2):
                    one("budget share", share, replace(run, share=share))
                for fanout in (5, 10, 15):
                    one("fanout", fanout, replace(run, fanouts=(fanout,) * 3))
    for features in (64, 128, 256, 512):
        with _workload(folder / f"features-{features}.h5", replace(size, features=features), 1 << 20) as path:
            one("features", features, Run(str(path), share=8))
    return found


@contextmanager
def _workload(path: Path, size: Any, block_bytes: int) -> Iterator[Path]:
    write_workload(path, size, block_bytes=block_bytes)
    try:
        yield path
    finally:
        path.unlink()


def main() -> None:
    """Write the workload, measure, publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--dir", type=Path, default=None, help="keep the graph and what was measured here")
    parser.add_argument("--repetitions", type=int, default=None, help="of each measurement; an odd number")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--sweeps", action="store_true", help="measure the sweeps instead")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = asked.dir or Path(name)
        extent = EXTENTS[asked.size]
        extent = replace(extent, repetitions=asked.repetitions or extent.repetitions)
        journal = Journal(folder / "measured.jsonl", extent.timeout_s)
        if asked.sweeps:
            publish(f"bench_storage_sweeps_{asked.size}", sweep(folder, asked.size, journal))
            return
        path = folder / f"{asked.size}.h5"
        if not path.exists() and set(asked.stages) != {"stages"}:
            write_workload(path, SIZES[asked.size])
        beside = [stage for stage in asked.stages if stage != "stages"]
        found: dict[str, Any] = {}
        if beside:
            with GraphStore.open(path) as store:
                found = measure(store, journal, extent, beside)
        if "stages" in asked.stages:
            stages = journal.once(
                ["stages", asdict(SIZES[asked.size])],
                lambda: measure_stages(folder, SIZES[asked.size], BUDGET_SHARES, _STAGES_TIMEOUT_S),
            )
            peaks = found.get("peak_rss_over_budget", {}) | stages["peak_rss_over_budget"]
            found |= stages | {"peak_rss_over_budget": peaks}
        publish(f"bench_storage_{asked.size}", found)


if __name__ == "__main__":
    main()
