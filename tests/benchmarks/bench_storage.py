"""Training from disk beside other ways to get rows from disk, at equal budgets, in one run.

    python -m tests.benchmarks.bench_storage --size small|medium|full [--dir DIR] [--sweeps]

The budget covers what data preparation holds: offsets, blocks, samples, caches, spill buffers. The rows of the
mini-batch at hand, which every method needs, come on top for all. The baselines are given the sampler's samples and its
time; data preparation is sampling plus gathering.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kernels.nn.layers import NodeDegrees
from kernels.rng import Purpose
from kernels.sampler import shuffled_batches
from kernels.topology import Topology
from storage.blocks.extent import aligned_empty
from storage.blocks.gathering import GatherOptions
from storage.blocks.hyperbatch import HyperbatchSampler
from storage.blocks.io_stats import IoStats
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from storage.cache.tiers import FeatureTiers
from storage.errors import BudgetError
from storage.graph_store import FEATURES, INDICES, INDPTR, GraphStore
from tasks.batch_sizes import BatchSizes, shared_nodes
from tasks.hyperbatch_loader import HyperbatchLoader, HyperbatchOptions
from tasks.on_disk import StorageOptions, open_on_disk
from tasks.storage_memory import SLACK_BYTES, in_hand, plan_storage, topology_share
from tasks.trainer import train, train_from
from tasks.training_types import Splits, TrainOptions
from tests.benchmarks import storage_baselines as baselines
from tests.benchmarks.report import publish
from tests.benchmarks.storage_workload import (
    BUDGET_SHARES,
    CLASSES,
    FANOUTS,
    HIDDEN,
    SAMPLING_SEED,
    SIZES,
    Size,
    write_workload,
)

NONE = np.empty(0, np.int64)
OPTIONS = TrainOptions(
    kind="sage", fanouts=FANOUTS, hidden=HIDDEN, dropout=0.0, epochs=1, seed=SAMPLING_SEED,
    compute_threads=1,
)  # fmt: skip
CGROUP = Path("/sys/fs/cgroup/memory")


def batch_size_of(store: GraphStore) -> int:
    """Batch size of the workload that a store is."""
    return next(
        (size.batch_size for size in SIZES.values() if size.nodes == store.info.num_nodes), Size(0, 0).batch_size
    )


def options_of(store: GraphStore) -> TrainOptions:
    """How to train on it."""
    return replace(OPTIONS, batch_size=batch_size_of(store))


def sequential_rate(store: GraphStore, most_bytes: int = 1 << 30) -> float:
    """Bytes a second of plain 1 MiB direct reads of the features, one after the other."""
    extent, buffer = store.extent(FEATURES), aligned_empty(1 << 20)
    descriptor = os.open(store.path, os.O_RDONLY | os.O_DIRECT)
    try:
        start, done = time.perf_counter(), 0
        for offset in range(extent.offset, extent.offset + min(most_bytes, extent.nbytes) - (1 << 20), 1 << 20):
            done += os.preadv(descriptor, [buffer.data], offset)
        return done / (time.perf_counter() - start)
    finally:
        os.close(descriptor)


def prepare(
    store: GraphStore, budget: int, *, hyperbatch: int | None = None, fanouts: Sequence[int] = FANOUTS, threads: int = 2
) -> dict[str, Any]:
    """One epoch of mini-batches, rows put together, and no model: data preparation."""
    nodes = store.read_split("train")
    batches = shuffled_batches(nodes, batch_size_of(store), seed=SAMPLING_SEED, epoch=0)
    share, stats = topology_share(store, budget), IoStats()
    with (
        StoredTopology(
            store,
            NONE,
            buffer_bytes=share.buffer,
            indptr_buffer_bytes=share.indptr_buffer,
            threads=threads,
            stats=stats,
        ) as topology,
        tempfile.TemporaryDirectory(dir=store.path.parent) as folder,
    ):
        sampler = HyperbatchSampler(topology, fanouts, seed=SAMPLING_SEED, purpose=Purpose.TRAIN)
        probe = sampler.sample(batches[:2], epoch=0, first_batch=0).samples
        sizes = BatchSizes.largest(probe).times(1.15)
        at_hand = in_hand(sizes, threads, store.info.feature_row_bytes)["rows at hand"] + SLACK_BYTES
        plan = plan_storage(
            store,
            budget + at_hand,
            share,
            sizes,
            num_batches=len(batches),
            kept_bytes=nodes.nbytes,
            evaluation_bytes=0,
            threads=threads,
            hyperbatch=hyperbatch,
            shared_nodes=shared_nodes(probe),
        )
        with StoredFeatures(store, NONE, buffer_bytes=plan.feature_buffer, stats=stats) as features:
            gather = GatherOptions(plan.cache, plan.spill, Path(folder))
            loader = HyperbatchLoader(
                sampler,
                features,
                HyperbatchOptions(plan.hyperbatch, gather, plan.sampling_memory, plan.spills_samples, in_place=False),
            )
            before, cpu, start = stats.counts(), time.process_time(), time.perf_counter()
            checksums, inputs = [], []
            with loader.epoch(batches, epoch=0) as stream:
                for batch in stream:
                    rows = batch.rows.numpy()
                    checksums.append(float(rows[:: max(1, len(rows) // 64)].sum()))
                    inputs.append(batch.sample.input_nodes)
            seconds, counts = time.perf_counter() - start, stats.counts().since(before)
            return {
                "seconds": seconds,
                "sample_s": stream.stats.sample_s,
                "gather_s": stream.stats.gather_s,
                "cpu_share": (time.process_time() - cpu) / seconds / len(os.sched_getaffinity(0)),
                "hyperbatch": plan.hyperbatch,
                "read_bytes": counts.read_bytes,
                "write_bytes": counts.write_bytes,
                "reads": counts.reads,
                "read_sizes": {str(size): count for size, count in counts.sizes.items()},
                "busy_s": counts.busy_s,
                "bytes_per_s": counts.bytes_per_s,
                "block_hit_rate": counts.hit_rate,
                "cache_bytes": plan.cache,
                "topology_bytes": share.buffer + share.indptr,
                "checksums": checksums,
                "inputs": inputs,
            }


def beside_baselines(store: GraphStore, budget: int, sequential: float) -> dict[str, Any]:
    """Our data preparation, and everybody's."""
    ours = prepare(store, budget)
    inputs, checksums = ours.pop("inputs"), ours.pop("checksums")
    extent, row_bytes = store.extent(FEATURES), store.extent(FEATURES).row_bytes
    # What is left of the budget beside the topology; a mini-batch's ids are small.
    rows = max(0, (budget - ours["topology_bytes"]) // row_bytes)
    found: dict[str, Any] = {"ours": ours | {"bandwidth_share": ours["bytes_per_s"] / sequential}}
    for name, gather in (
        ("a: page reads", baselines.no_cache),
        ("c: Belady", baselines.belady),
        ("d: LRU", baselines.lru),
    ):
        result = gather(store, extent, inputs, rows)
        assert np.allclose(result.checksums, checksums), f"{name} gathered other rows"
        found[name] = {
            "seconds": result.seconds + ours["sample_s"], "gather_s": result.seconds, "read_bytes": result.read_bytes,
            "reads": result.reads, "hit_rate": result.hits / result.requests,
            "bytes_per_s": result.read_bytes / result.seconds,
        }  # fmt: skip
    mapped = map_in_cgroup(store, inputs, budget - ours["topology_bytes"])
    found["b: memory map"] = mapped if mapped is None else {"seconds": mapped + ours["sample_s"], "gather_s": mapped}
    best = min(entry["seconds"] for name, entry in found.items() if name != "ours" and entry is not None)
    return found | {"vs_best_baseline": best / ours["seconds"]}


def map_in_cgroup(store: GraphStore, inputs: Sequence[np.ndarray], cache_bytes: int) -> float | None:
    """Seconds of gathering through a memory map in a process whose page cache is bounded; None where that cannot be."""
    group = CGROUP / f"garden-bench-{os.getpid()}"
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        np.savez(file, *inputs)
        file.flush()
        code = (
            "import sys,numpy as np,time,os,pathlib\n"
            "from storage.graph_store import GraphStore,FEATURES\n"
            "from tests.benchmarks import storage_baselines as b\n"
            "store=GraphStore.open(pathlib.Path(sys.argv[1])); e=store.extent(FEATURES)\n"
            "z=np.load(sys.argv[2]); ids=[z[k] for k in z.files]\n"
            "largest=max(map(len,ids)); w=np.ones((largest,e.shape[1]),e.dtype); del w\n"
            "fd=os.open(sys.argv[1],os.O_RDONLY); os.posix_fadvise(fd,0,0,os.POSIX_FADV_DONTNEED)\n"
            "g=pathlib.Path(sys.argv[3]); rss=int(pathlib.Path('/proc/self/statm').read_text().split()[1])*4096\n"
            "(g/'memory.limit_in_bytes').write_text(str(largest*e.row_bytes+int(sys.argv[4])))\n"
            "(g/'cgroup.procs').write_text(str(os.getpid()))\n"
            "print(b.memory_map(store,e,ids,0).seconds)\n"
        )
        try:
            group.mkdir()
        except OSError as error:
            print(f"SKIPPED memory map: no control group can be made ({error})", file=sys.stderr)
            return None
        try:
            done = subprocess.run(
                [sys.executable, "-c", code, str(store.path), file.name, str(group), str(cache_bytes)],
                capture_output=True,
                text=True,
                timeout=900,
            )
            if done.returncode:
                print(f"SKIPPED memory map: {done.stderr[-500:]}", file=sys.stderr)
                return None
            return float(done.stdout)
        finally:
            group.rmdir()


def whole_epoch(store: GraphStore, budget: int) -> dict[str, Any]:
    """One epoch of training from disk: seconds, and the peak of memory above the budget's base."""
    with tempfile.TemporaryDirectory(dir=store.path.parent) as folder:
        asked = StorageOptions(host_budget=budget, directory=Path(folder))
        _reset_peak()
        base = _peak_bytes()
        with open_on_disk(store.path, NONE, NONE, options_of(store), asked) as data:
            start = time.perf_counter()
            arguments = (data.source, data.labels, data.splits, data.degrees, options_of(store))
            result = train_from(*arguments, num_classes=data.num_classes)
            seconds = time.perf_counter() - start
        return {
            "seconds": seconds, "loss": result.history[0].loss, "parts": dict(result.history[0].seconds),
            "peak_over_budget": (_peak_bytes() - base) / budget, "budget": budget,
        }  # fmt: skip


def loss_in_memory(store: GraphStore) -> float:
    """Loss of the same epoch in memory."""
    topology, splits = Topology.in_memory(*store.read_adjacency()), Splits(store.read_split("train"), NONE, NONE)
    degrees = NodeDegrees(topology.in_degree(), store.read_out_degree())
    features = FeatureTiers(store.read_features(), NONE)
    return (
        train(topology, features, store.read_labels(), splits, degrees, options_of(store), num_classes=CLASSES)
        .history[0]
        .loss
    )


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def smallest_budget(store: GraphStore) -> int:
    """The budget that a refusal names."""
    try:
        with open_on_disk(
            store.path, NONE, NONE, options_of(store), StorageOptions(host_budget=1, directory=store.path.parent)
        ):
            return 1
    except BudgetError as error:
        return int(str(error).split("at least ")[1].split(",")[0])


def measure_training(path: Path, shares: Sequence[int]) -> dict[str, Any]:
    """Peaks and epochs, in a process of its own."""
    with GraphStore.open(path) as store:
        data = store.nbytes(FEATURES) + store.nbytes(INDICES) + store.nbytes(INDPTR)
        smallest = smallest_budget(store)
        found: dict[str, Any] = {"smallest_budget": smallest, "smallest_share_of_data": smallest / data}
        whole_epoch(store, max(smallest, data // 4))  # compiled and warm
        for name, share in BUDGET_SHARES.items():
            if share in shares:
                found[name] = whole_epoch(store, max(smallest, data // share))
        return found


def sweep(folder: Path, size_name: str, budget: int) -> dict[str, Any]:
    """Block size, hyperbatch size, threads, fanout, feature dimension: the paper's Figures 8 to 10."""
    size, found = SIZES[size_name], {}

    def one(store: GraphStore, **options: Any) -> dict[str, Any]:
        result = prepare(store, budget, **options)
        return {name: result[name] for name in ("seconds", "read_bytes", "write_bytes", "reads", "hyperbatch")}

    for block_bytes in (64 << 10, 256 << 10, 1 << 20, 4 << 20):
        path = folder / f"blocks-{block_bytes}.h5"
        write_workload(path, size, block_bytes=block_bytes)
        with GraphStore.open(path) as store:
            found[f"block {block_bytes >> 10} KiB"] = one(store)
            if block_bytes == 1 << 20:
                for hyperbatch in (1, 2, 4, 8, 16, 64):
                    found[f"hyperbatch {hyperbatch}"] = one(store, hyperbatch=hyperbatch)
                for threads in (1, 2, 4):
                    found[f"threads {threads}"] = one(store, threads=threads)
                for fanout in (5, 10, 15):
                    found[f"fanout {fanout}"] = one(store, fanouts=(fanout,) * 3)
        path.unlink()
    for features in (64, 256, 512):
        path = folder / "features.h5"
        write_workload(path, replace(size, features=features))
        with GraphStore.open(path) as store:
            found[f"features {features}"] = one(store)
        path.unlink()
    return found


def main() -> None:
    """Write the workload, measure, publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--sweeps", action="store_true")
    parser.add_argument("--training", type=Path, default=None, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.training is not None:
        print(json.dumps(measure_training(asked.training, list(BUDGET_SHARES.values()))))
        return
    with tempfile.TemporaryDirectory(dir=asked.dir) as name:
        path = Path(name) / "graph.h5"
        write_workload(path, SIZES[asked.size])
        with GraphStore.open(path) as store:
            publish(f"bench_storage_{asked.size}", measure(store, path, Path(name), asked.size, sweeps=asked.sweeps))


def measure(store: GraphStore, path: Path, folder: Path, size: str, *, sweeps: bool) -> dict[str, Any]:
    """All figures of one size."""
    data = store.nbytes(FEATURES) + store.nbytes(INDICES) + store.nbytes(INDPTR)
    prepare(store, data)  # compiled and warm
    sequential, pages = sequential_rate(store), baselines.rate_of_random_pages(store, store.extent(FEATURES))
    shares = {name: beside_baselines(store, data // share, sequential) for name, share in BUDGET_SHARES.items()}
    single = prepare(store, data // 4, hyperbatch=1)
    child = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.bench_storage", "--training", str(path)],
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    training = json.loads(child.stdout) if child.returncode == 0 else {"error": child.stderr[-800:]}
    epochs = {name: entry for name, entry in training.items() if isinstance(entry, dict)}
    ours = shares["1/16"]["ours"]
    return {
        "vs_best_baseline": {name: share["vs_best_baseline"] for name, share in shares.items()},
        "bandwidth_share": {name: share["ours"]["bandwidth_share"] for name, share in shares.items()},
        "peak_rss_over_budget": {f"train {name}": entry["peak_over_budget"] for name, entry in epochs.items()},
        "bytes_read": ours["read_bytes"],
        "losses_equal_memory_mode": bool(epochs)
        and all(entry["loss"] == loss_in_memory(store) for entry in epochs.values()),
        "hyperbatch_on_over_off": single["seconds"] / shares["1/4"]["ours"]["seconds"],
        "data_bytes": data,
        "sequential_bytes_per_s": sequential,
        "random_page_bytes_per_s": pages,
        "shares": shares,
        "training": training,
        **({"sweeps": sweep(folder, size, data // 8)} if sweeps else {}),
    }


if __name__ == "__main__":
    main()
