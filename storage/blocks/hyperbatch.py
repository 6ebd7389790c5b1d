"""The hyperbatch sampler: hop by hop over H mini-batches, each topology block read once for all of them (AGNES §3.3).

Same integers as `kernels.sampler.NeighborSampler`, whatever the block size, H, buffers and threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kernels.cpu.hash_relabel import relabel_batch
from kernels.mfg import IdArray, Mfg, Sample, SuperBatch, TierReads
from kernels.rng import Purpose, stream_key
from kernels.sampler import check_fanouts, join_seeds
from storage.blocks.stored_topology import StoredTopology

I64Array = npt.NDArray[np.int64]


class HyperbatchSampler:
    """Draws mini-batches from a topology on disk; `sample` is that of `NeighborSampler`, with H for K.

    Parameters
    ----------
    topology : StoredTopology
    fanouts, seed, purpose, replace, edge_ids
        As for `NeighborSampler`.

    Raises
    ------
    ValueError
        If a fanout is neither positive nor -1.

    Notes
    -----
    Memory follows the mini-batches, not the graph: per node of a frontier its place in the bucket matrix, offset and
    degree, and per thread a hash table of one mini-batch.
    """

    def __init__(
        self,
        topology: StoredTopology,
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
        self.seed, self.purpose, self.replace, self.edge_ids = seed, purpose, replace, edge_ids

    def sample(
        self,
        batches: Sequence[IdArray],
        *,
        epoch: int,
        first_batch: int,
        batch_step: int = 1,
        check_stop: Callable[[], None] = lambda: None,
    ) -> SuperBatch:
        """Sample H mini-batches together; parameters, result and errors are those of `NeighborSampler.sample`.

        `check_stop` is called from block to block; what it raises ends the sampling.

        Raises
        ------
        StorageError, MachineError
            If a block is damaged or cannot be read.
        """
        indices = range(first_batch, first_batch + len(batches) * batch_step, batch_step)
        nodes, batch_ptr = join_seeds(batches, self.topology.num_nodes, self.topology.id_dtype)
        numbered = [self._number(nodes[:0], nodes[begin:end]) for begin, end in pairwise(batch_ptr)]
        frontiers = [uniq for uniq, _ in numbered]
        hops: list[tuple[Mfg, ...]] = []
        reads = TierReads()
        for hop, fanout in enumerate(reversed(self.fanouts)):
            keys = [stream_key(self.purpose, self.seed, epoch, index, hop) for index in indices]
            mfgs, frontiers, hop_reads = self._expand(frontiers, fanout, np.array(keys, np.uint64), check_stop)
            hops.append(mfgs)
            reads.add(hop_reads)
        samples = (
            Sample(
                index,
                tuple(hop[i] for hop in hops),
                frontiers[i],
                numbered[i][1].astype(np.int64),
                len(numbered[i][0]),
            )
            for i, index in enumerate(indices)
        )
        return SuperBatch(tuple(samples), reads)

    def _expand(
        self,
        frontiers: Sequence[IdArray],
        fanout: int,
        keys: npt.NDArray[np.uint64],
        check_stop: Callable[[], None],
    ) -> tuple[tuple[Mfg, ...], list[IdArray], TierReads]:
        """One hop: structures of all batches, and their next frontiers."""
        uniq: IdArray = np.concatenate([np.empty(0, self.topology.id_dtype), *frontiers])
        uniq_ptr = np.cumsum([0, *map(len, frontiers)], dtype=np.int64)
        row_ptr, neighbors, ids, reads = self.topology.sample_neighbors(
            uniq,
            uniq_ptr,
            fanout,
            stream_keys=keys,
            replace=self.replace,
            edge_ids=self.edge_ids,
            check_stop=check_stop,
        )
        edge_ptr = row_ptr[uniq_ptr]
        pieces = [neighbors[begin:end] for begin, end in pairwise(edge_ptr)]
        numbered = list(self.topology.pool.map(self._number, frontiers, pieces))
        mfgs = tuple(
            Mfg(
                row_ptr[uniq_ptr[i] : uniq_ptr[i + 1] + 1] - edge_ptr[i],
                local,
                len(src),
                ids[edge_ptr[i] : edge_ptr[i + 1]] if self.edge_ids else None,
            )
            for i, (src, local) in enumerate(numbered)
        )
        return mfgs, [src for src, _ in numbered], reads

    def _number(self, uniq: IdArray, neighbors: IdArray) -> tuple[IdArray, npt.NDArray[np.int32]]:
        return relabel_batch(uniq, neighbors, self.topology.num_nodes)
