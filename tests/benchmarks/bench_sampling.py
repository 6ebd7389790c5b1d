"""Sampling beside DGL: the ratio of times of a single batch, and of batches a second.

`python -m tests.benchmarks.bench_sampling` ends with one JSON line. Both sides sample the int64 graph and report edge
ids; DGL's fused sampler, then its `DataLoader` with 0, 1 and 2 workers, against `NeighborSampler.sample`, then the same
from two threads. Medians of rounds that run both sides in turn; a round during which other processes took more than a
tenth of the cores is discarded.

With `--cpu` nothing is discarded and ratios are of CPU seconds: for a machine that is never free. Such figures are
published under a name of their own; the gates are about wall time.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels.interop_dgl import dgl
from kernels.mfg import IdArray
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.topology import Topology
from tests.benchmarks import workloads
from tests.benchmarks.core_watch import Tally
from tests.benchmarks.report import publish

THREADS = 2
Body = Callable[[], object]


def dgl_graph(indptr: np.ndarray, indices: IdArray) -> Any:
    """The graph as DGL holds it."""
    return dgl.graph(("csc", (torch.from_numpy(indptr), torch.from_numpy(indices), torch.arange(len(indices)))))


def single_bodies(graph: Any, topologies: dict[str, Topology], fanouts: tuple[int, ...]) -> dict[str, Body]:
    """One batch of each side, another one each call."""
    batches = np.split(workloads.train_nodes(50), 50)
    turn = dict.fromkeys([*topologies, "dgl"], 0)

    def next_batch(side: str) -> IdArray:
        turn[side] += 1
        return batches[turn[side] % len(batches)]

    theirs = dgl.dataloading.NeighborSampler(list(fanouts), fused=True)
    bodies: dict[str, Body] = {"dgl": lambda: theirs.sample(graph, torch.from_numpy(next_batch("dgl")))}
    for name, topology in topologies.items():
        ours = NeighborSampler(topology, fanouts, seed=0, purpose=Purpose.TRAIN, edge_ids=True)
        bodies[name] = lambda ours=ours, name=name: ours.sample([next_batch(name)], epoch=0, first_batch=0)  # type: ignore[misc]
    return bodies


def epoch_bodies(
    graph: Any, topologies: dict[str, Topology], fanouts: tuple[int, ...], num_batches: int
) -> dict[str, Body]:
    """All batches of an epoch of each side."""
    nodes = workloads.train_nodes(num_batches)
    batches, bodies = np.split(nodes, num_batches), dict[str, Body]()
    sampler = dgl.dataloading.NeighborSampler(list(fanouts), fused=True)
    for workers in (0, 1, 2):
        rest = {"persistent_workers": True} if workers else {}
        loader = dgl.dataloading.DataLoader(
            graph, torch.from_numpy(nodes), sampler, batch_size=workloads.BATCH_SIZE, num_workers=workers, **rest
        )
        bodies[f"dgl_{workers}"] = lambda loader=loader: [None for _ in loader]  # type: ignore[misc]
    for name, topology in topologies.items():
        ours = NeighborSampler(topology, fanouts, seed=0, purpose=Purpose.TRAIN, edge_ids=True)
        bodies[name] = lambda ours=ours: sample_all(ours, batches)  # type: ignore[misc]
    return bodies


def sample_all(sampler: NeighborSampler, batches: Sequence[IdArray]) -> int:
    """Sample from a pool of threads; the number of input nodes."""
    with ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(sampler.sample, [batch], epoch=0, first_batch=i) for i, batch in enumerate(batches)]
        return sum(len(future.result().samples[0].input_nodes) for future in futures)


def repeat(body: Body, times: int) -> None:
    """Run and drop each result at once: twenty of DGL's would fill the memory."""
    for _ in range(times):
        body()


def median_s(bodies: dict[str, Body], repetitions: int, by_cpu: bool) -> dict[str, float]:
    """Median seconds of each body, by turns."""
    for body in bodies.values():
        body()
    tallies = {name: Tally(by_cpu=by_cpu) for name in bodies}
    for _ in range(repetitions):
        for name, body in bodies.items():
            tallies[name].time(body, 1)
    return {name: statistics.median(tally.seconds) for name, tally in tallies.items()}


def compare(
    graph: Any, topologies: dict[str, Topology], fanouts: tuple[int, ...], repetitions: int, num_batches: int, cpu: bool
) -> dict[str, Any]:
    """Figures of one choice of fanouts; those of our int32 ids stand apart from the ratios."""
    # A tick of the CPU clock is 10 ms: many batches a reading.
    many = 20 if cpu else 1
    bodies = single_bodies(graph, topologies, fanouts)
    repeated: dict[str, Body] = {name: partial(repeat, body, many) for name, body in bodies.items()}
    single = {name: seconds / many for name, seconds in median_s(repeated, repetitions, cpu).items()}
    epochs = median_s(epoch_bodies(graph, topologies, fanouts, num_batches), repetitions, cpu)
    best = min(epochs[f"dgl_{workers}"] for workers in (0, 1, 2))
    return {
        "single_batch_vs_dgl": round(single["dgl"] / single["int64"], 3),
        "throughput_vs_dgl": round(best / epochs["int64"], 3),
        "batch_ms": {name: round(1e3 * seconds, 2) for name, seconds in single.items()},
        "epoch_ms_a_batch": {name: round(1e3 * seconds / num_batches, 2) for name, seconds in epochs.items()},
    }


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--batches", type=int, default=20, help="mini-batches an epoch")
    parser.add_argument("--cpu", action="store_true", help="compare CPU seconds, on a machine that is never free")
    parser.add_argument("--data", type=Path, help="folder of the arrays that bench_epoch left (else drawn anew)")
    asked = parser.parse_args()
    if asked.cpu:
        # Threads that wait for each other on shared cores spin, and that is no work.
        torch.set_num_threads(1)
    if asked.data is None:
        indptr, indices = workloads.graph(np.int64)
    else:
        indptr, indices = np.load(asked.data / "indptr.npy"), np.load(asked.data / "indices.npy")
    graph = dgl_graph(indptr, indices)
    topologies = {dtype: Topology.in_memory(indptr, indices.astype(dtype)) for dtype in ("int64", "int32")}
    figures = {
        str(list(fanouts)): compare(graph, topologies, fanouts, asked.repetitions, asked.batches, asked.cpu)
        for fanouts in workloads.FANOUTS
    }
    publish("bench_sampling_cpu" if asked.cpu else "bench_sampling", figures)


if __name__ == "__main__":
    main()
