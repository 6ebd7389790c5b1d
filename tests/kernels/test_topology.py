from __future__ import annotations

import numpy as np
import pytest

from kernels.rank_map import RankMap
from kernels.topology import Topology
from tests.graphs import cached_topology, csc_from_edges

INDPTR, INDICES = csc_from_edges(4, [1, 2, 3, 3], [0, 0, 0, 2])


def test_in_memory() -> None:
    topology = Topology.in_memory(INDPTR, INDICES)
    assert (topology.num_nodes, topology.num_edges, topology.cached) == (4, 4, None)
    assert topology.in_degree().tolist() == [3, 0, 1, 0]


def test_a_cache_holds_copies_of_lists() -> None:
    topology = cached_topology(INDPTR, INDICES, [2, 3])
    assert topology.cached_indptr.tolist() == [0, 1, 1]
    assert topology.cached_indices.tolist() == [3]


@pytest.mark.parametrize(
    ("indptr", "indices", "match"),
    [
        (INDPTR.astype(np.int32), INDICES, "int64"),
        (INDPTR[:0], INDICES, "at least one"),
        (np.repeat(INDPTR, 2)[::2], INDICES, "contiguous"),
        (INDPTR, INDICES.astype(np.uint32), "int32 or int64"),
        (INDPTR, np.repeat(INDICES, 2)[::2], "contiguous"),
        (INDPTR, INDICES[:3], "from 0 to 3"),
    ],
)
def test_arrays_that_kernels_would_misread_are_refused(indptr: np.ndarray, indices: np.ndarray, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Topology.in_memory(indptr, indices)


def test_a_cache_that_does_not_fit_is_refused() -> None:
    one = RankMap.from_sorted_ids(np.array([2]), 4)
    with pytest.raises(ValueError, match="cached_indices must be int32"):
        Topology(INDPTR, INDICES, one, np.array([0, 1]), np.array([3], np.int64))
    with pytest.raises(ValueError, match="1 lists are cached, 2 are given"):
        Topology(INDPTR, INDICES, one, np.array([0, 1, 1]), np.array([3], np.int32))
    with pytest.raises(ValueError, match="covers 9 nodes of 4"):
        Topology(INDPTR, INDICES, RankMap.from_sorted_ids(np.array([2]), 9), np.array([0, 1]), INDICES[3:])
