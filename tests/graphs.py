"""Tiny graphs for tests: hand-made ones, drawn ones and hypothesis strategies that cover the awkward cases."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from kernels.mfg import IdArray
from kernels.rank_map import RankMap
from kernels.topology import Topology


def csc_from_edges(
    num_nodes: int, src: npt.ArrayLike, dst: npt.ArrayLike, *, dtype: npt.DTypeLike = np.int32
) -> tuple[npt.NDArray[np.int64], IdArray]:
    """(indptr, indices) of the edges src -> dst, each list in the order given."""
    src, dst = np.asarray(src, np.int64), np.asarray(dst, np.int64)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=num_nodes))]).astype(np.int64)
    return indptr, src[np.argsort(dst, kind="stable")].astype(dtype)


def power_law_graph(
    num_nodes: int, num_edges: int, *, seed: int = 0, exponent: float = 2.3, dtype: npt.DTypeLike = np.int32
) -> tuple[npt.NDArray[np.int64], IdArray]:
    """(indptr, indices) of a graph whose in- and out-degrees follow a power law, independent of each other."""
    rng = np.random.default_rng(seed)
    cdf = np.cumsum((np.arange(num_nodes) + 10.0) ** (-1 / (exponent - 1)))
    ends = [np.searchsorted(cdf, rng.random(num_edges) * cdf[-1], side="right").clip(max=num_nodes - 1) for _ in "sd"]
    src, dst = (rng.permutation(num_nodes)[end] for end in ends)
    return csc_from_edges(num_nodes, src, dst, dtype=dtype)


def cached_topology(indptr: npt.NDArray[np.int64], indices: IdArray, ids: npt.ArrayLike) -> Topology:
    """Topology whose adjacency cache holds the lists of the ascending `ids`."""
    ids = np.asarray(ids, np.int64)
    lists = [indices[indptr[v] : indptr[v + 1]] for v in ids]
    cached_indptr = np.cumsum([0, *(len(row) for row in lists)], dtype=np.int64)
    cached_indices = np.concatenate([indices[:0], *lists])
    return Topology(indptr, indices, RankMap.from_sorted_ids(ids, len(indptr) - 1), cached_indptr, cached_indices)


@st.composite
def graphs(draw: st.DrawFn, *, max_nodes: int = 24, max_edges: int = 120) -> tuple[npt.NDArray[np.int64], IdArray]:
    """(indptr, indices) with zero-degree nodes, multi-edges, self loops and hubs, in int32 or int64."""
    num_nodes = draw(st.integers(1, max_nodes))
    node = st.integers(0, num_nodes - 1)
    # Half of the edges end in few nodes, so that degrees on both sides of any fanout occur.
    hub = st.integers(0, min(num_nodes - 1, 2))
    edges = draw(st.lists(st.tuples(node, node | hub), max_size=max_edges))
    src, dst = (np.array(edges, np.int64).reshape(-1, 2)).T
    return csc_from_edges(num_nodes, src, dst, dtype=draw(st.sampled_from([np.int32, np.int64])))


@st.composite
def topologies(draw: st.DrawFn, *, max_nodes: int = 24, max_edges: int = 120) -> Topology:
    """Topologies whose adjacency cache is absent or holds none, some or all of the lists."""
    indptr, indices = draw(graphs(max_nodes=max_nodes, max_edges=max_edges))
    num_nodes = len(indptr) - 1
    ids = draw(
        st.none()
        | st.just([])
        | st.just(list(range(num_nodes)))
        | st.lists(st.integers(0, num_nodes - 1), unique=True).map(sorted)
    )
    return Topology.in_memory(indptr, indices) if ids is None else cached_topology(indptr, indices, ids)


def seed_batches(num_nodes: int, *, max_batches: int = 4, max_seeds: int = 12) -> st.SearchStrategy[list[IdArray]]:
    """Lists of mini-batches, empty ones and duplicate seeds among them."""
    batch = st.lists(st.integers(0, num_nodes - 1), max_size=max_seeds)
    return st.lists(batch.map(lambda seeds: np.array(seeds, np.int64)), max_size=max_batches)
