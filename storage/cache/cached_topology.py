"""The topology with an adjacency cache: lists of planned nodes in the device tier."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from kernels.rank_map import RankMap
from kernels.topology import Topology


def cached_topology(indptr: npt.NDArray[np.int64], indices: IdArray, adjacency_ids: IdArray) -> Topology:
    """Topology whose adjacency cache holds the lists of `adjacency_ids`.

    Parameters
    ----------
    indptr : (N + 1,) int64
    indices : (E,) int32 or int64
    adjacency_ids : (C,) integer
        Strictly ascending; without ids there is no cache and no map.

    Returns
    -------
    Topology
        Shares `indptr` and `indices`; the cached lists are copies.
    """
    if not len(adjacency_ids):
        return Topology.in_memory(indptr, indices)
    ids = np.asarray(adjacency_ids, np.int64)
    cached = RankMap.from_sorted_ids(ids, len(indptr) - 1)
    cached_indptr = np.concatenate([[0], np.cumsum(indptr[ids + 1] - indptr[ids])])
    cached_indices = np.empty(cached_indptr[-1], indices.dtype)
    # Runs of consecutive ids are one copy each: no index array of the size of the cache is needed.
    breaks = np.flatnonzero(np.diff(ids) != 1) + 1
    for first, end in zip([0, *breaks], [*breaks, len(ids)], strict=True):
        lists = indices[indptr[ids[first]] : indptr[ids[end - 1] + 1]]
        cached_indices[cached_indptr[first] : cached_indptr[end]] = lists
    return Topology(indptr, indices, cached, cached_indptr, cached_indices)


def adjacency_device_bytes(topology: Topology) -> int:
    """Bytes on the device: cached lists, their offsets and their rank map (0 without a cache)."""
    if topology.cached is None:
        return 0
    return topology.cached.nbytes + topology.cached_indptr.nbytes + topology.cached_indices.nbytes
