"""Node orders: which node gets which id in the laid-out store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import numba
import numpy as np
import numpy.typing as npt

from storage.csc import count_occurrences, empty_ids, id_dtype
from storage.errors import InputError
from storage.formats.base import IdArray

_SORT_BYTES = 32  # a node: its count, negated, its rank, scratch
_LOCALITY_NODE_BYTES = 48  # offsets and ranks of the graph, of its reverse and of both
_LOCALITY_EDGE_BYTES = 21  # id and value of an edge, of its reverse, and of both

_COMMON_COUNTS = 1 << 16
"""Counts below it have a place of their own; nodes with more are sorted."""
_WORD_BITS = 64

_jit = numba.njit(nogil=True, cache=True)

OrderKind = Literal["degree", "hotness", "locality", "none"]
Counts = Callable[[], Iterable[npt.NDArray[np.integer]]]
"""Reads one count a node anew, some nodes at a time."""


def node_order(
    kind: OrderKind,
    indptr: npt.NDArray[np.int64],
    indices: IdArray,
    *,
    hotness_N: npt.NDArray[np.integer] | None = None,
    out_degree_N: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.int64]:
    """Order the nodes of a graph.

    Parameters
    ----------
    kind : {"degree", "hotness", "locality", "none"}
        `degree`: by out-degree in the sense of sampling (how many adjacency lists name the node), which predicts
        access; `hotness`: by `hotness_N`; both descending, ties to the lower id. `locality`: reverse Cuthill-McKee
        over the undirected graph (Cuthill and McKee, 1969), neighbors close together. `none`: as it is.
    indptr : (N + 1,) int64
    indices : (E,) int32 or int64
    hotness_N : (N,) integers
        Access counts; for `hotness` only.
    out_degree_N : (N,) int64
        For `degree`, where it is known already.

    Returns
    -------
    (N,) int64
        `new_to_old`: the present id of each new one.

    Raises
    ------
    ValueError
        The kind is unknown, or `hotness_N` is missing or of another length.
    InputError
        The graph is too large for `locality`.
    """
    num_nodes = len(indptr) - 1
    if kind == "none":
        return np.arange(num_nodes)
    if kind == "degree":
        return _descending(count_occurrences(indices, num_nodes) if out_degree_N is None else out_degree_N)
    if kind == "hotness":
        if hotness_N is None or len(hotness_N) != num_nodes:
            given = "none" if hotness_N is None else len(hotness_N)
            raise ValueError(f"hotness order needs one count a node, {num_nodes} (got {given})")
        return _descending(hotness_N)
    if kind == "locality":
        return _reverse_cuthill_mckee(indptr, indices)
    raise ValueError(f"unknown node order {kind!r}: use degree, hotness, locality or none")


def falling_ranks(counts: Counts, num_nodes: int) -> IdArray:
    """Rank nodes by falling count, ties to the lower id, without sorting them: each count has its range of ranks.

    Parameters
    ----------
    counts : callable
        Read twice; counts are not negative.
    num_nodes : int

    Returns
    -------
    (N,) int32 where N < 2**31, else int64
        `old_to_new`: the inverse of what `node_order` gives for these counts.
    """
    with_count = np.zeros(_COMMON_COUNTS, np.int64)
    number, most = 0, 0
    for chunk in counts():
        number += int(_tally(with_count, chunk))
        most = max(most, int(chunk.max(initial=0)))
    next_rank = number + np.cumsum(with_count[::-1])[::-1] - with_count
    old_to_new, node = empty_ids(num_nodes, num_nodes), 0
    uncommon, found = _Uncommon(number, num_nodes, most), 0
    for chunk in counts():
        _assign_ranks(next_rank, chunk, old_to_new[node : node + len(chunk)])
        places = np.flatnonzero(chunk >= _COMMON_COUNTS)
        uncommon.put(found, chunk[places], node + places)
        node, found = node + len(chunk), found + len(places)
    old_to_new[uncommon.nodes().view(np.int64)] = np.arange(number, dtype=old_to_new.dtype)
    return old_to_new


class _Uncommon:
    """Nodes that are sorted by falling count and id: in one word each where both fit it, 8 bytes a node in all."""

    def __init__(self, number: int, num_nodes: int, most: int) -> None:
        self._node_bits, self._most = num_nodes.bit_length(), most
        self._fits = self._node_bits + most.bit_length() <= _WORD_BITS
        self._words = np.empty((1 if self._fits else 2, number), np.uint64)

    def put(self, at: int, counts: npt.NDArray[np.integer], nodes: npt.NDArray[np.int64]) -> None:
        """Note some of them."""
        place, below = slice(at, at + len(nodes)), (self._most - counts.astype(np.int64)).astype(np.uint64)
        if self._fits:
            self._words[0, place] = (below << np.uint64(self._node_bits)) | nodes.astype(np.uint64)
        else:
            self._words[:, place] = below, nodes

    def nodes(self) -> npt.NDArray[np.uint64]:
        """All of them in order; to be asked for once."""
        if not self._fits:
            falling: npt.NDArray[np.uint64] = self._words[1, np.argsort(self._words[0], kind="stable")]
            return falling  # noted by ascending id
        words: npt.NDArray[np.uint64] = self._words[0]
        words.sort()
        words &= np.uint64((1 << self._node_bits) - 1)
        return words


def unchanged_ranks(num_nodes: int) -> IdArray:
    """`old_to_new` that leaves all as it is."""
    return np.arange(num_nodes, dtype=id_dtype(num_nodes))


def order_bytes(kind: OrderKind, num_nodes: int, num_edges: int) -> int:
    """Return the most bytes that `node_order` takes beside its arguments."""
    if kind == "locality":
        return _LOCALITY_NODE_BYTES * num_nodes + _LOCALITY_EDGE_BYTES * num_edges
    return (8 if kind == "none" else _SORT_BYTES) * num_nodes


def invert_order(new_to_old: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """`old_to_new` of a `new_to_old`."""
    old_to_new = np.empty_like(new_to_old)
    old_to_new[new_to_old] = np.arange(len(new_to_old))
    return old_to_new


@_jit
def _tally(with_count: npt.NDArray[np.int64], counts: npt.NDArray[np.integer]) -> int:
    """Count those that have a place; returns how many have none."""
    uncommon = 0
    for count in counts:
        if count < len(with_count):
            with_count[count] += 1
        else:
            uncommon += 1
    return uncommon


@_jit
def _assign_ranks(next_rank: npt.NDArray[np.int64], counts: npt.NDArray[np.integer], ranks: IdArray) -> None:
    for i in range(len(counts)):
        if counts[i] < len(next_rank):
            ranks[i] = next_rank[counts[i]]
            next_rank[counts[i]] += 1


def _descending(count_N: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Ids by falling count, ties to the lower id."""
    return np.argsort(-count_N.astype(np.int64), kind="stable")


def _reverse_cuthill_mckee(indptr: npt.NDArray[np.int64], indices: IdArray) -> npt.NDArray[np.int64]:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    shape = (len(indptr) - 1,) * 2
    if len(indptr) > 2**31 or indptr[-1] >= 2**30:  # both directions of every edge are numbered by an int32
        raise InputError(
            f"locality order works for graphs of fewer than 2**30 edges (got {indptr[-1]}): "
            "set layout.order to degree, hotness or none"
        )
    matrix = csr_array((np.ones(len(indices), np.int8), indices, indptr.astype(np.int32)), shape=shape)
    order: npt.NDArray[np.int32] = reverse_cuthill_mckee(matrix, symmetric_mode=False)
    return order.astype(np.int64)
