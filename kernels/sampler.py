"""The neighbor sampler: hop by hop over K mini-batches as one, the same integers for any K, thread count or cache."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kernels import reference
from kernels.cpu.ops import CpuOps
from kernels.mfg import IdArray, Mfg, Sample, SuperBatch, TierReads
from kernels.rng import Purpose, stream_key, uniform_u64
from kernels.topology import Topology

I64Array = npt.NDArray[np.int64]


class SamplingOps(Protocol):
    """The ops that a backend brings; `kernels.reference` says what each does."""

    def unique_per_batch(self, nodes: IdArray, batch_ptr: I64Array) -> tuple[IdArray, I64Array, I64Array]:
        """Unique nodes of each batch."""

    def sample_neighbors(
        self,
        topology: Topology,
        uniq: IdArray,
        uniq_ptr: I64Array,
        fanout: int,
        *,
        stream_keys: npt.NDArray[np.uint64],
        replace: bool = False,
        edge_ids: bool = False,
    ) -> tuple[I64Array, IdArray, I64Array, TierReads]:
        """Sampled neighbors of each node, and their positions in the graph where asked for."""

    def relabel(
        self, uniq: IdArray, uniq_ptr: I64Array, neighbors: IdArray, edge_ptr: I64Array
    ) -> tuple[IdArray, I64Array, npt.NDArray[np.int32]]:
        """Sources of each batch and local positions of the neighbors."""


class NeighborSampler:
    """Draws mini-batches from a topology; any number of threads may share one sampler.

    Parameters
    ----------
    topology : Topology
    fanouts : sequence of int
        Neighbors a node from the input layer to the seed layer, as DGL writes them: the last one is sampled first, at
        the seeds. -1 takes all neighbors; no fanouts means no hops.
    seed : int
        Seed of all draws.
    purpose : Purpose
        Stream that the draws belong to.
    replace : bool
        Draw with replacement: then every node with any neighbor gets exactly its fanout.
    edge_ids : bool
        Fill `Mfg.edge_ids`: the position of each sampled edge in the topology's `indices`.

    Raises
    ------
    ValueError
        If a fanout is neither positive nor -1.

    Notes
    -----
    Each thread that samples keeps 8 bytes a node of scratch for as long as it and the sampler live.
    """

    def __init__(
        self,
        topology: Topology,
        fanouts: Sequence[int],
        *,
        seed: int,
        purpose: Purpose,
        replace: bool = False,
        edge_ids: bool = False,
    ) -> None:
        check_fanouts(fanouts)
        self.topology = topology
        self.fanouts = tuple(int(fanout) for fanout in fanouts)
        self.seed = seed
        self.purpose = purpose
        self.replace = replace
        self.edge_ids = edge_ids
        self._scratch = threading.local()

    def sample(self, batches: Sequence[IdArray], *, epoch: int, first_batch: int, batch_step: int = 1) -> SuperBatch:
        """Sample K mini-batches as one.

        Parameters
        ----------
        batches : sequence of (num_seeds,) integer arrays
            Seeds of each batch; none, empty ones and duplicate seeds are legal.
        epoch : int
        first_batch : int
            Batch index of `batches[0]` within the epoch; the others follow it.
        batch_step : int
            From one batch index to the next: the number of workers, where each draws a share of the epoch.

        Returns
        -------
        SuperBatch
            The batches are independent of each other; their arrays share memory with the whole super-batch.

        Raises
        ------
        ValueError
            If seeds are not integers or lie outside the graph.
        """
        return self._sample(self._ops(), batches, epoch, first_batch, batch_step)

    def sample_reference(self, batches: Sequence[IdArray], *, epoch: int, first_batch: int) -> SuperBatch:
        """As `sample`, slowly, through the reference ops."""
        return self._sample(reference, batches, epoch, first_batch, 1)

    def _sample(
        self, ops: SamplingOps, batches: Sequence[IdArray], epoch: int, first_batch: int, batch_step: int
    ) -> SuperBatch:
        indices = range(first_batch, first_batch + len(batches) * batch_step, batch_step)
        nodes, batch_ptr = self.concatenate(batches)
        uniq, seed_ptr, inverse = ops.unique_per_batch(nodes, batch_ptr)
        uniq_ptr, hops, reads = seed_ptr, [], TierReads()
        for hop, fanout in enumerate(reversed(self.fanouts)):
            keys = self.stream_keys(epoch, indices, hop)
            row_ptr, neighbors, ids, hop_reads = ops.sample_neighbors(
                self.topology, uniq, uniq_ptr, fanout, stream_keys=keys, replace=self.replace, edge_ids=self.edge_ids
            )
            src, src_ptr, local = ops.relabel(uniq, uniq_ptr, neighbors, row_ptr[uniq_ptr])
            hops.append(_split_hop(row_ptr, uniq_ptr, local, src_ptr, ids if self.edge_ids else None))
            uniq, uniq_ptr = src, src_ptr
            reads.add(hop_reads)
        samples = (
            Sample(
                indices[i],
                tuple(hop[i] for hop in hops),
                uniq[uniq_ptr[i] : uniq_ptr[i + 1]].copy(),  # `uniq` may hold far more memory than it uses
                inverse[batch_ptr[i] : batch_ptr[i + 1]],
                int(seed_ptr[i + 1] - seed_ptr[i]),
            )
            for i in range(len(batches))
        )
        return SuperBatch(tuple(samples), reads)

    def _ops(self) -> CpuOps:
        if not hasattr(self._scratch, "ops"):
            self._scratch.ops = CpuOps(self.topology.num_nodes)
        ops: CpuOps = self._scratch.ops
        return ops

    def stream_keys(self, epoch: int, indices: range, hop: int) -> npt.NDArray[np.uint64]:
        """(K,) keys of the draws of each batch at one hop."""
        return np.array([stream_key(self.purpose, self.seed, epoch, index, hop) for index in indices], np.uint64)

    def concatenate(self, batches: Sequence[IdArray]) -> tuple[IdArray, I64Array]:
        """As `join_seeds`, for the topology."""
        return join_seeds(batches, self.topology.num_nodes, self.topology.indices.dtype)


def join_seeds(batches: Sequence[IdArray], num_nodes: int, dtype: np.dtype[Any]) -> tuple[IdArray, I64Array]:
    """All seeds as ids of `dtype`, and where each batch begins.

    Raises
    ------
    ValueError
        If seeds are not integers or lie outside [0, num_nodes).
    """
    for i, batch in enumerate(batches):
        if batch.ndim != 1 or batch.dtype.kind not in "iu":
            raise ValueError(f"seeds of batch {i} must be a 1-D integer array (got {batch.ndim}-D {batch.dtype})")
        wrong = (batch < 0) | (batch >= num_nodes)
        if wrong.any():
            raise ValueError(f"seed node {batch[wrong][0]} of batch {i} lies outside [0, {num_nodes})")
    nodes: IdArray = np.concatenate([np.empty(0, dtype), *(batch.astype(dtype) for batch in batches)])
    return nodes, np.cumsum([0, *map(len, batches)], dtype=np.int64)


def check_fanouts(fanouts: Sequence[int]) -> None:
    """Refuse a fanout that is neither a positive 64-bit integer nor -1 with a ValueError."""
    for fanout in fanouts:
        if not isinstance(fanout, int | np.integer) or not (1 <= fanout < 1 << 63 or fanout == -1):
            raise ValueError(f"fanout must be >= 1 or -1 for all neighbors, a 64-bit integer (got {fanout!r})")


def _split_hop(
    row_ptr: I64Array, uniq_ptr: I64Array, local: npt.NDArray[np.int32], src_ptr: I64Array, ids: I64Array | None
) -> tuple[Mfg, ...]:
    """One hop of K batches as K structures, each counted from its own zero."""
    edge_ptr = row_ptr[uniq_ptr]
    return tuple(
        Mfg(
            row_ptr[uniq_ptr[i] : uniq_ptr[i + 1] + 1] - edge_ptr[i],
            local[edge_ptr[i] : edge_ptr[i + 1]],
            int(src_ptr[i + 1] - src_ptr[i]),
            None if ids is None else ids[edge_ptr[i] : edge_ptr[i + 1]],
        )
        for i in range(len(uniq_ptr) - 1)
    )


def shuffled_batches(nodes: IdArray, batch_size: int, *, seed: int, epoch: int) -> list[IdArray]:
    """Split `nodes` into the mini-batches of one epoch.

    The order is drawn by node id, so it does not depend on the order in which the nodes are given.

    Parameters
    ----------
    nodes : (n,) int32 or int64
    batch_size : int
    seed : int
    epoch : int

    Returns
    -------
    list of arrays
        `batch_size` nodes each; the last may hold fewer.

    Raises
    ------
    ValueError
        If the batch size is not positive.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be >= 1 (got {batch_size})")
    order = np.argsort(uniform_u64(stream_key(Purpose.SHUFFLE, seed, epoch), nodes), kind="stable")
    shuffled = nodes[order]
    return [shuffled[start : start + batch_size] for start in range(0, len(shuffled), batch_size)]
