"""One measurement of training from disk, or of a way to stand beside it, in a process of its own.

    python -m tests.benchmarks.storage_runs '{"store": ..., "method": "blocks", "share": 4, "stage": "prepare"}'

The process warms up on two mini-batches, enters a memory control group whose limit is the same for every method, so
that the page cache helps nobody, and measures one epoch.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from kernels.nn.layers import NodeDegrees
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.topology import Topology
from storage.blocks.gathering import GatherOptions
from storage.blocks.hyperbatch import HyperbatchSampler
from storage.blocks.io_stats import IoStats
from storage.blocks.row_group import Gathers
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from storage.cache.tiers import FeatureTiers
from storage.errors import BudgetError
from storage.graph_store import FEATURES, INDICES, INDPTR, GraphStore
from tasks.data_source import Loader
from tasks.first_batches import measure_first
from tasks.hyperbatch_loader import HyperbatchLoader, HyperbatchStream
from tasks.hyperbatch_options import HyperbatchOptions
from tasks.io_monitor import IoMonitor
from tasks.on_disk import OnDisk, StorageOptions, open_on_disk
from tasks.storage_memory import StoragePlan, plan_storage
from tasks.storage_need import SLACK_BYTES, in_hand
from tasks.trainer import train, train_from
from tasks.training_types import Splits, TrainOptions
from tests.benchmarks import storage_baselines as baselines
from tests.benchmarks.core_watch import Stopwatch
from tests.benchmarks.storage_workload import CLASSES, FANOUTS, HIDDEN, SAMPLING_SEED, SIZES, Size
from tests.cgroups import MemoryGroup
from tests.tasks.measured_memory import Meter

NONE = np.empty(0, np.int64)
OURS, PAGES, MAP, BELADY, LRU, MEMORY = "blocks", "a: pages", "b: map", "c: Belady", "d: LRU", "memory"
BASELINES = (PAGES, MAP, BELADY, LRU)
_WARM_BATCHES, _MARGIN = 2, 1.15
_ROOM = ("feature buffer", "samples", "sampling", "spill buffers", "host cache")


@dataclass(frozen=True)
class Run:
    """What to measure."""

    store: str
    method: str = OURS
    share: int = 4
    """The budget is the data divided by it, and what no method can do without."""
    stage: str = "prepare"
    """`prepare`: mini-batches with their rows; `train`: an epoch."""
    batches: int | None = None
    """Mini-batches to measure, a third of them uncounted; None takes the whole epoch."""
    hyperbatch: int | None = None
    fanouts: tuple[int, ...] = FANOUTS
    threads: int = 2
    group: str | None = None
    """Control group to enter."""


class _Loader(HyperbatchLoader):
    """The loader, with another gatherer and fewer mini-batches."""

    def __init__(self, base: HyperbatchLoader, new: Callable[[], Gathers] | None, limit: int | None) -> None:
        super().__init__(base.sampler, base.features, base.options)
        self._new, self._limit = new, limit

    def gatherer(self, options: GatherOptions, check_stop: Callable[[], None]) -> Gathers:
        return super().gatherer(options, check_stop) if self._new is None else self._new()

    def epoch(self, batches: Sequence[IdArray], **options: Any) -> HyperbatchStream:
        return super().epoch(batches[: self._limit], **options)


class _Source(OnDisk):
    """The data source, with such a loader."""

    def __init__(self, base: OnDisk, new: Callable[[], Gathers] | None, limit: int | None) -> None:
        vars(self).update(vars(base))
        self._new, self._limit = new, limit

    def loader(self, options: TrainOptions, purpose: Purpose) -> Loader:
        base = super().loader(options, purpose)
        assert isinstance(base, HyperbatchLoader)
        return _Loader(base, self._new, self._limit)


class Measurement:
    """One run.

    Parameters
    ----------
    run : Run
    """

    def __init__(self, run: Run) -> None:
        self.run, self.store = run, GraphStore.open(Path(run.store))
        store = self.store
        self.data_bytes = sum(store.nbytes(name) for name in (FEATURES, INDICES, INDPTR))
        size = next((size for size in SIZES.values() if size.nodes == store.info.num_nodes), Size(0, 0))
        self.options = TrainOptions(
            kind="sage", fanouts=run.fanouts, hidden=HIDDEN, dropout=0.0, epochs=1, seed=SAMPLING_SEED,
            compute_threads=1, batch_size=size.batch_size, threads=run.threads,
        )  # fmt: skip
        self.batches = shuffled_batches(store.read_split("train"), size.batch_size, seed=SAMPLING_SEED, epoch=0)

    def measure(self) -> dict[str, Any]:
        """Warm up, enter the group, measure."""
        if self.run.method == MEMORY:
            return {"loss": self._loss_in_memory()}
        stage = self._prepare if self.run.stage == "prepare" else self._train
        gatherer = self._baseline() if self.run.method != OURS else None
        with tempfile.TemporaryDirectory(dir=self.store.path.parent) as folder:
            stage(Path(folder), gatherer, _WARM_BATCHES)
            figures = stage(Path(folder), gatherer, self.run.batches)
        if gatherer is not None:
            figures |= gatherer.figures(len(self.batches))
        return figures

    def _prepare(self, folder: Path, baseline: _Baseline | None, limit: int | None) -> dict[str, Any]:
        run, store, options, stats = self.run, self.store, self.options, IoStats()
        budget, measured = self.data_bytes // run.share, limit != _WARM_BATCHES
        plan = self._plan(budget)
        with ExitStack() as stack:
            topology = stack.enter_context(
                StoredTopology(
                    store, NONE, buffer_bytes=plan.topology.buffer, indptr_buffer_bytes=plan.topology.indptr_buffer,
                    threads=options.threads, stats=stats,
                )
            )  # fmt: skip
            sampler = HyperbatchSampler(topology, run.fanouts, seed=SAMPLING_SEED, purpose=Purpose.TRAIN)
            features = stack.enter_context(StoredFeatures(store, NONE, buffer_bytes=plan.feature_buffer, stats=stats))
            gather = GatherOptions(plan.cache, plan.spill, folder, one_cache=plan.one_cache)
            asked = HyperbatchOptions(plan.hyperbatch, gather, plan.sampling_memory(folder), plan.spills_samples)
            new = None if baseline is None else baseline.maker(plan)
            loader = _Loader(HyperbatchLoader(sampler, features, asked), new, limit)
            if measured:
                self._enter_group(plan)
            before, watch, checksums = stats.counts(), Stopwatch(), []
            monitor = stack.enter_context(IoMonitor(stats))
            with loader.epoch(self.batches, epoch=0) as stream:
                for batch in stream:
                    rows: Any = batch.rows
                    put_together = rows.gather() if baseline is None else rows.tiers[0]
                    checksums.append(float(put_together[:: max(1, len(put_together) // 64)].sum()))
            figures = _timed(watch) | {"checksums": checksums, "sample_s": stream.stats.sample_s}
            figures |= {"gather_s": stream.stats.gather_s} | _planned(plan) | _io(stats, before)
            return figures | {"trace": _trace(monitor)} if measured and baseline is None else figures

    def _plan(self, budget: int) -> StoragePlan:
        """The rows of the mini-batches at hand, which every method needs, come on top of the budget."""
        first = measure_first(
            self.store,
            self.batches[:2],
            NONE,
            lambda topology: HyperbatchSampler(topology, self.run.fanouts, seed=SAMPLING_SEED, purpose=Purpose.TRAIN),
            threads=self.run.threads,
        )
        sizes = first.sizes.times(_MARGIN)
        at_hand = in_hand(sizes, self.run.threads, self.store.info.feature_row_bytes)["rows at hand"] + SLACK_BYTES
        return plan_storage(
            self.store,
            budget + at_hand,
            sizes,
            num_batches=len(self.batches),
            kept_bytes=8 * sum(map(len, self.batches)),
            evaluation_bytes=0,
            threads=self.run.threads,
            hyperbatch=self.run.hyperbatch,
            shared_nodes=first.shared_nodes,
        )

    def _train(self, folder: Path, baseline: _Baseline | None, limit: int | None) -> dict[str, Any]:
        smallest, at_hand = self._least(folder)
        budget, meter = max(smallest, self.data_bytes // self.run.share + at_hand), Meter()
        meter.start("train", budget)
        with open_on_disk(
            self.store.path, NONE, NONE, self.options, StorageOptions(host_budget=budget, directory=folder)
        ) as data:
            new = None if baseline is None else baseline.maker(data.source.plan)
            source = _Source(data.source, new, limit)
            if limit != _WARM_BATCHES:
                self._enter_group(data.source.plan)
            before, watch = source.stats.counts(), Stopwatch()
            with IoMonitor(source.stats) as monitor:
                result = train_from(
                    source, data.labels, data.splits, data.degrees, self.options, num_classes=data.num_classes
                )
            figures = _timed(watch) | _planned(data.source.plan) | _io(source.stats, before)
        meter.stop()
        figures |= {"loss": result.history[0].loss, "parts": dict(result.history[0].seconds), "budget": budget}
        figures |= {"peak_over_budget": meter.peaks["train"][1] / budget, "smallest_budget": smallest}
        return figures | ({"trace": _trace(monitor)} if baseline is None else {})

    def _least(self, folder: Path) -> tuple[int, int]:
        """The smallest budget, and what of it no method can do without: mini-batches at hand, and the step."""

        def plan(budget: int) -> StoragePlan:
            asked = StorageOptions(host_budget=budget, directory=folder)
            with open_on_disk(self.store.path, NONE, NONE, self.options, asked) as data:
                return data.source.plan

        try:
            smallest = plan(1).budget
        except BudgetError as error:
            smallest = int(str(error).split("at least ")[1].split(",")[0])
        parts = plan(smallest).parts
        return smallest, SLACK_BYTES + parts["rows at hand"] + parts["training step"]

    def _enter_group(self, plan: StoragePlan) -> None:
        """The limit: the budget and a tenth; the map's page cache is what the kernel fits into it.

        The others also get what the samples take, which caches of rows have on top, and the copy that is made here.
        """
        if self.run.group is None:
            return
        limit = plan.budget + plan.budget // 10
        if self.run.method != MAP:
            limit += (
                plan.budget // 10 + plan.parts["samples"] + plan.parts["sampling"] + plan.parts["rows at hand"] // 3
            )
        group = MemoryGroup.at(Path(self.run.group))
        group.limit(limit)
        group.add(os.getpid())

    def _baseline(self) -> _Baseline:
        topology = Topology.in_memory(*self.store.read_adjacency())
        sampler = NeighborSampler(topology, self.run.fanouts, seed=SAMPLING_SEED, purpose=Purpose.TRAIN)
        some = self.batches if self.run.batches is None else self.batches[: self.run.batches]
        ids = [sampler.sample([batch], epoch=0, first_batch=i).samples[0].input_nodes for i, batch in enumerate(some)]
        return _Baseline(self.run, self.store, ids)

    def _loss_in_memory(self) -> float:
        store = self.store
        topology, splits = Topology.in_memory(*store.read_adjacency()), Splits(store.read_split("train"), NONE, NONE)
        degrees = NodeDegrees(topology.in_degree(), store.read_out_degree())
        features = FeatureTiers(store.read_features(), NONE)
        labels = store.read_labels()
        return train(topology, features, labels, splits, degrees, self.options, num_classes=CLASSES).history[0].loss


class _Baseline:
    """Makes a baseline's gatherer once its memory is known."""

    def __init__(self, run: Run, store: GraphStore, ids: list[npt.NDArray[Any]]) -> None:
        self._run, self._store, self._ids = run, store, ids
        self._plans: dict[int, list[baselines.Change]] = {}
        self.last: baselines.CachedRows | None = None

    def maker(self, plan: StoragePlan) -> Callable[[], Gathers]:
        """All memory that ours has beside the topology and the mini-batches at hand goes to cached rows."""
        extent, method = self._store.extent(FEATURES), self._run.method
        rows = sum(plan.parts[name] for name in _ROOM) // extent.row_bytes if method in (BELADY, LRU) else 0
        if rows not in self._plans:
            nodes = self._store.info.num_nodes
            keep = {BELADY: lambda: baselines.belady(self._ids, nodes, rows)}.get(
                method, lambda: baselines.least_recently_used(nodes, rows)
            )()
            self._plans[rows] = baselines.changes(self._ids, nodes, rows, keep)
        kind = baselines.MappedRows if method == MAP else baselines.PagedRows

        def new() -> Gathers:
            self.last = baselines.CachedRows(kind(self._store.path, extent), self._plans[rows], rows)
            return self.last

        return new

    def figures(self, num_batches: int) -> dict[str, Any]:
        """What the last one did; seconds of an epoch from the mini-batches after the first third, if not all ran."""
        assert self.last is not None
        last, reader, at = self.last, self.last.source, self.last.done_at
        found = {
            "hit_rate": last.hits / last.requests, "cache_rows": last.rows, "page_reads": reader.reads,
            "page_bytes": reader.read_bytes, "page_bytes_per_s": reader.read_bytes / max(1e-9, reader.seconds),
            "measured_batches": len(at),
        }  # fmt: skip
        if len(at) < num_batches:
            first = len(at) // 3
            found["seconds"] = (at[-1] - at[first]) / (len(at) - 1 - first) * num_batches
        return found


def _timed(watch: Stopwatch) -> dict[str, Any]:
    seconds, cpu_s, others_share = watch.read()
    cores = len(os.sched_getaffinity(0))
    return {"seconds": seconds, "cpu_share": cpu_s / seconds / cores, "others_share": others_share}


def _planned(plan: StoragePlan) -> dict[str, Any]:
    return {"hyperbatch": plan.hyperbatch, "spills_samples": plan.spills_samples, "plan": dict(plan.parts)}


def _io(stats: IoStats, before: Any) -> dict[str, Any]:
    counts = stats.counts().since(before)
    return asdict(counts) | {"bytes_per_s": counts.bytes_per_s, "hit_rate": counts.hit_rate}


def _trace(monitor: IoMonitor) -> dict[str, Any]:
    return {"seconds": monitor.seconds, "read_bytes": monitor.read_bytes, "write_bytes": monitor.write_bytes}


def main() -> None:
    """Measure what the argument says, and print it as JSON."""
    asked = json.loads(sys.argv[1])
    run = replace(Run(**asked), fanouts=tuple(asked.get("fanouts", FANOUTS)))
    start = time.perf_counter()
    figures = Measurement(run).measure()
    sys.stdout.write(json.dumps(figures | {"process_s": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
