"""What a miss costs: bytes that cross in whole lines, or times that were given or measured on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.topology import Topology
from storage.cache.cached_topology import cached_topology
from storage.cache.tiers import FeatureTiers

LINE_BYTES = 64
"""Least bytes that one read of the tier below moves: a cache line of a CPU, two sectors of a GPU."""
_PICOSECONDS = 1000
_CACHED_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class MissCosts:
    """Worth of one hit, in integers of one unit, so that plans compare exactly."""

    row: int
    """Of a feature row."""
    adjacency: int
    """Of an adjacency list."""
    adjacency_byte: int
    """Of an adjacency list, for each byte that sampling it moves, besides."""

    @classmethod
    def of_bytes(cls, row_bytes: int, line_bytes: int = LINE_BYTES) -> MissCosts:
        """Bytes that cross: a row's whole lines, and what a list's sampling moves."""
        return cls(whole_lines(row_bytes, line_bytes), 0, 1)

    @classmethod
    def of_times(cls, feature_miss_ns: float, adjacency_miss_ns: float) -> MissCosts:
        """Nanoseconds that a miss takes longer than a hit, kept to the picosecond; below 0 counts as 0."""
        row, adjacency = (max(0, round(_PICOSECONDS * ns)) for ns in (feature_miss_ns, adjacency_miss_ns))
        return cls(row, adjacency, 0)


def whole_lines(size: int, line_bytes: int = LINE_BYTES) -> int:
    """Bytes of the whole lines that `size` bytes fill."""
    return -(-size // line_bytes) * line_bytes


def measure_miss_ns(
    topology: Topology,
    features_ND: npt.NDArray[np.generic],
    fanouts: Sequence[int],
    batches: Sequence[IdArray],
    *,
    seed: int = 0,
) -> tuple[float, float]:
    """Time mini-batches at several cache sizes: how much longer a miss takes than a hit (GARDEN §IV-B).

    Parameters
    ----------
    topology : Topology
        Without an adjacency cache.
    features_ND : (N, D) array
    fanouts : sequence of int
    batches : sequence of arrays
        Seeds of the mini-batches to time.
    seed : int

    Returns
    -------
    feature_miss_ns, adjacency_miss_ns : float
        Slopes of the least time over the misses; at or below 0 where this machine's tiers are equally fast, as they are
        on a CPU, whose device tier is host memory too.
    """
    sampler = NeighborSampler(topology, fanouts, seed=seed, purpose=Purpose.PROFILE)
    inputs = [sample.input_nodes for sample in sampler.sample(batches, epoch=0, first_batch=0).samples]
    order = np.random.default_rng(seed).permutation(topology.num_nodes)
    rows, lists = [], []
    for share in _CACHED_SHARES:
        ids = np.sort(order[: round(share * len(order))])
        tiers = FeatureTiers(features_ND, ids)
        seconds = _least_s(lambda tiers=tiers: [tiers.gather(nodes) for nodes in inputs])  # type: ignore[misc]
        rows.append((tiers.reads.host_rows / (1 + _ROUNDS), seconds))
        cached = cached_topology(topology.indptr, topology.indices, ids)
        on = NeighborSampler(cached, fanouts, seed=seed, purpose=Purpose.PROFILE)
        reads = on.sample(batches, epoch=0, first_batch=0).adjacency_reads
        seconds = _least_s(lambda on=on: on.sample(batches, epoch=0, first_batch=0))  # type: ignore[misc]
        lists.append((reads.host_rows, seconds))
    return _slope_ns(rows), _slope_ns(lists)


def _least_s(body: Callable[[], object]) -> float:
    body()
    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        body()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _slope_ns(points: Sequence[tuple[float, float]]) -> float:
    """Slope of seconds over misses by least squares."""
    misses, seconds = np.array(points, np.float64).T
    centred = misses - misses.mean()
    square = float((centred**2).sum())
    return 1e9 * float((centred * seconds).sum()) / square if square else 0.0
