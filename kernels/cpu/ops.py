"""The CPU bodies of the sampling ops with the scratch that they share; one a thread."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels.cpu import relabel, sample, superbatch
from kernels.cpu.draw import new_shuffle
from kernels.cpu.stamps import StampTable
from kernels.mfg import IdArray, TierReads
from kernels.topology import Topology

I64Array = npt.NDArray[np.int64]


class CpuOps:
    """The ops of `kernels.reference` by the same names; holds 8 bytes a node, allocated when first needed."""

    def __init__(self, num_nodes: int) -> None:
        self._stamps = StampTable(num_nodes)
        self._shuffle = new_shuffle()

    def unique_per_batch(self, nodes: IdArray, batch_ptr: I64Array) -> tuple[IdArray, I64Array, I64Array]:
        """As `kernels.reference.unique_per_batch`."""
        return superbatch.unique_per_batch(nodes, batch_ptr, stamps=self._stamps)

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
        """As `kernels.reference.sample_neighbors`."""
        scratch = self._shuffle
        return sample.sample_neighbors(
            topology, uniq, uniq_ptr, fanout,
            stream_keys=stream_keys, shuffle=scratch, replace=replace, edge_ids=edge_ids,
        )  # fmt: skip

    def relabel(
        self, uniq: IdArray, uniq_ptr: I64Array, neighbors: IdArray, edge_ptr: I64Array
    ) -> tuple[IdArray, I64Array, npt.NDArray[np.int32]]:
        """As `kernels.reference.relabel`; int32 `neighbors` are overwritten."""
        return relabel.relabel(uniq, uniq_ptr, neighbors, edge_ptr, stamps=self._stamps)
