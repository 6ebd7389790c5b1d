"""The adjacency that samplers read: all of it in host memory, some lists in an adjacency cache besides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from kernels.rank_map import RankMap


@dataclass(frozen=True, slots=True)
class Topology:
    """In-neighbors of every node (CSC), in tiers; what is cached never changes what is sampled.

    Offsets must ascend and ids lie in [0, num_nodes): nothing here checks it, `GraphStore.read_adjacency` does.

    Raises
    ------
    ValueError
        If dtypes, shapes, contiguity or sizes are wrong.
    """

    indptr: npt.NDArray[np.int64]
    """(num_nodes + 1,) offsets into `indices`."""
    indices: IdArray
    """(num_edges,) sources of each destination's edges."""
    cached: RankMap | None
    """Which nodes' lists the adjacency cache holds; None means that there is none."""
    cached_indptr: npt.NDArray[np.int64]
    """(num_cached + 1,) offsets into `cached_indices`, one row a slot."""
    cached_indices: IdArray
    """Copies of the cached lists, in the dtype of `indices`."""

    def __post_init__(self) -> None:
        _guard_lists("indices", self.indptr, self.indices)
        _guard_lists("cached_indices", self.cached_indptr, self.cached_indices)
        if self.cached_indices.dtype != self.indices.dtype:
            raise ValueError(f"cached_indices must be {self.indices.dtype} (got {self.cached_indices.dtype})")
        if self.cached is not None and self.cached.num_slots != len(self.cached_indptr) - 1:
            raise ValueError(f"{self.cached.num_slots} lists are cached, {len(self.cached_indptr) - 1} are given")
        if self.cached is not None and self.cached.num_nodes != self.num_nodes:
            raise ValueError(f"the cached map covers {self.cached.num_nodes} nodes of {self.num_nodes}")

    @classmethod
    def in_memory(cls, indptr: npt.NDArray[np.int64], indices: IdArray) -> Topology:
        """Topology without an adjacency cache."""
        return cls(indptr, indices, None, np.zeros(1, np.int64), np.empty(0, indices.dtype))

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.indices)

    def in_degree(self) -> npt.NDArray[np.int64]:
        """(num_nodes,) length of each node's list."""
        return np.diff(self.indptr)


def _guard_lists(name: str, indptr: npt.NDArray[np.int64], indices: IdArray) -> None:
    """Refuse arrays that the kernels, which check nothing, would misread."""
    if indptr.dtype != np.int64 or indptr.ndim != 1 or len(indptr) == 0 or not indptr.flags.c_contiguous:
        raise ValueError(f"offsets of {name} must be a contiguous 1-D int64 array with at least one entry")
    if indices.dtype not in (np.int32, np.int64) or indices.ndim != 1 or not indices.flags.c_contiguous:
        raise ValueError(f"{name} must be a contiguous 1-D int32 or int64 array (got {indices.ndim}-D {indices.dtype})")
    if indptr[0] != 0 or indptr[-1] != len(indices):
        raise ValueError(f"offsets of {name} must run from 0 to {len(indices)} (got {indptr[0]} to {indptr[-1]})")
