"""The neighbor sampler: hop by hop over K mini-batches as one, the same integers for any K, thread count or cache."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kernels.cpu.relabel import relabel
from kernels.cpu.sample import sample_neighbors
from kernels.cpu.superbatch import StampTable, unique_per_batch
from kernels.mfg import IdArray, Mfg, Sample, SuperBatch, TierReads
from kernels.rng import Purpose, stream_key, uniform_u64
from kernels.topology import Topology


class NeighborSampler:
    """Draws mini-batches from a topology; threads may share one sampler."""

    def __init__(
        self, topology: Topology, fanouts: Sequence[int], *, seed: int, purpose: Purpose, replace: bool = False
    ) -> None:
        for fanout in fanouts:
            if fanout < 1 and fanout != -1:
                raise ValueError(f"fanout must be >= 1 or -1 for all neighbors (got {fanout})")
        self.topology = topology
        self.fanouts = tuple(fanouts)
        self.seed = seed
        self.purpose = purpose
        self.replace = replace
        self._scratch = threading.local()

    def sample(self, batches: Sequence[IdArray], *, epoch: int, first_batch: int) -> SuperBatch:
        """Sample K mini-batches as one."""
        stamps = self._stamps()
        nodes, batch_ptr = self._concatenate(batches)
        uniq, uniq_ptr, inverse = unique_per_batch(nodes, batch_ptr, stamps=stamps)
        seed_ptr = uniq_ptr
        num_batches = len(batches)
        hops: list[list[Mfg]] = [[] for _ in batches]
        total = TierReads()
        for hop, fanout in enumerate(reversed(self.fanouts)):
            keys = np.array(
                [stream_key(self.purpose, self.seed, epoch, first_batch + i, hop) for i in range(num_batches)],
                np.uint64,
            )
            row_ptr, neighbors, reads = sample_neighbors(
                self.topology, uniq, uniq_ptr, fanout, stream_keys=keys, replace=self.replace
            )
            total.add(reads)
            edge_ptr = row_ptr[uniq_ptr]
            src, src_ptr, local = relabel(uniq, uniq_ptr, neighbors, edge_ptr, stamps=stamps)
            for i in range(num_batches):
                indptr = row_ptr[uniq_ptr[i] : uniq_ptr[i + 1] + 1] - edge_ptr[i]
                hops[i].append(Mfg(indptr, local[edge_ptr[i] : edge_ptr[i + 1]], int(src_ptr[i + 1] - src_ptr[i])))
            uniq, uniq_ptr = src, src_ptr
        return SuperBatch(
            tuple(
                Sample(
                    first_batch + i,
                    tuple(hops[i]),
                    uniq[uniq_ptr[i] : uniq_ptr[i + 1]].copy(),
                    inverse[batch_ptr[i] : batch_ptr[i + 1]],
                    int(seed_ptr[i + 1] - seed_ptr[i]),
                )
                for i in range(num_batches)
            ),
            total,
        )

    def _stamps(self) -> StampTable:
        if not hasattr(self._scratch, "stamps"):
            self._scratch.stamps = StampTable(self.topology.num_nodes)
        stamps: StampTable = self._scratch.stamps
        return stamps

    def _concatenate(self, batches: Sequence[IdArray]) -> tuple[IdArray, npt.NDArray[np.int64]]:
        batch_ptr = np.cumsum([0, *(len(batch) for batch in batches)], dtype=np.int64)
        nodes = np.concatenate([np.empty(0, np.int64), *batches])
        wrong = np.flatnonzero((nodes < 0) | (nodes >= self.topology.num_nodes))
        if len(wrong):
            raise ValueError(f"seed node {nodes[wrong[0]]} is outside [0, {self.topology.num_nodes})")
        return nodes.astype(self.topology.indices.dtype), batch_ptr


def shuffled_batches(nodes: IdArray, batch_size: int, *, seed: int, epoch: int) -> list[IdArray]:
    """Split `nodes` into mini-batches in an order drawn for the epoch; the last batch may be partial."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be >= 1 (got {batch_size})")
    key = stream_key(Purpose.SHUFFLE, seed, epoch)
    order = nodes[np.argsort(uniform_u64(key, nodes), kind="stable")]
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
