"""CSC from a stream of edges: two passes of a counting sort, no copy of the edge list."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from kernels.cpu.count import count_accesses
from kernels.cpu.edge_ranges import merge_duplicates
from kernels.cpu.intrinsics import child
from storage.errors import InputError
from storage.formats.base import EdgeChunk, IdArray, TypedChunk, read_ahead
from storage.progress import OpenProgress, no_progress

_jit = numba.njit(nogil=True, cache=True)


@dataclass(frozen=True)
class EdgeCounts:
    """What was found among the edges, and what was changed."""

    rows_read: int
    """Edges in the input."""
    self_loops_found: int
    """Edges from a node to itself in the input."""
    self_loops_removed: int
    """Those dropped on request."""
    reverse_added: int
    """Reverse edges added on request, before duplicates were merged."""
    duplicates_found: int
    """Edges that repeat an earlier one (the added reverse edges too)."""
    duplicates_removed: int
    """Those merged on request."""


@dataclass(frozen=True)
class Csc:
    """In-adjacency of a graph: `indices[indptr[v]:indptr[v+1]]` are the nodes that v aggregates from."""

    indptr: npt.NDArray[np.int64]
    """(N + 1,) offsets."""
    indices: IdArray
    """(E,) source ids, within a row in the order of the input."""
    counts: EdgeCounts
    """What was found and changed."""
    relations: npt.NDArray[np.int32] | None = None
    """(E,) relation of each entry of `indices`, in a knowledge graph."""


def id_dtype(num_nodes: int) -> np.dtype[Any]:
    """Type that adjacency lists have: int32 where N < 2**31, else int64."""
    return np.dtype(np.int32 if num_nodes < 2**31 else np.int64)


def empty_ids(length: int, num_nodes: int) -> IdArray:
    """Uninitialised node ids in the type that adjacency lists have."""
    return np.empty(length, id_dtype(num_nodes))


def build_csc(
    read_chunks: Callable[[], Iterable[EdgeChunk]],
    num_nodes: int,
    *,
    symmetrize: bool = False,
    deduplicate: bool = False,
    remove_self_loops: bool = False,
    read_typed: Callable[[], Iterable[TypedChunk]] | None = None,
    locate: Callable[[int], str] = "the edges, row {}".format,
    approx_edges: int = 0,
    progress: OpenProgress = no_progress,
) -> Csc:
    """Build the CSC of a stream of edges, which is read twice.

    Memory: `indptr`, `indices` and two chunks; then a bit a node while duplicates are counted. `symmetrize` holds
    both directions of every edge before it merges duplicates.

    Parameters
    ----------
    read_chunks : callable
        Gives the edges anew: iterable of (source ids, destination ids).
    num_nodes : int
    symmetrize : bool
        Add the reverse of every edge that is no self loop, and merge duplicates.
    deduplicate : bool
        Merge repeated edges; the first stays where it is.
    remove_self_loops : bool
    read_typed : callable
        Gives the same edges with the relation of each, which is kept; edges are not symmetrized or merged then.
    locate : callable
        Says where an edge row stands, for the error.
    approx_edges : int
        About how many edges there are, to show how far the first reading is.
    progress : callable
        Opens a display for each reading.

    Returns
    -------
    Csc

    Raises
    ------
    InputError
        An id is outside [0, num_nodes), or the second reading differs from the first.
    """
    indptr, digest = np.zeros(num_nodes + 2, np.int64), np.zeros(2, np.uint64)
    rules = (symmetrize, remove_self_loops)
    with progress("counting edges", "edges") as advance:
        rows_read, loops = _count_rows(
            read_chunks(), indptr, rules, digest[:1], locate, lambda done: advance(done, max(approx_edges, done))
        )
    # indptr[v + 1] is the start of row v; filling moves it to the row's end, which is where row v + 1 starts.
    np.cumsum(indptr, out=indptr)
    indices = empty_ids(int(indptr[-1]), num_nodes)
    relations = None if read_typed is None else np.empty(len(indices), np.int32)
    typed = read_typed() if read_typed else ((*chunk, None) for chunk in read_chunks())
    with progress("sorting edges", "edges") as advance:
        _sort_edges(typed, indptr, indices, relations, rules, digest[1:], lambda done: advance(done, rows_read))
    if digest[0] != digest[1]:  # merging trusts that every row is full, so this comes first
        raise _changed()
    indptr = indptr[:-1]
    seen = np.zeros(num_nodes // 64 + 1, np.uint64)
    duplicates = merge_duplicates(indptr, indices, seen, symmetrize or deduplicate)
    kept: IdArray = indices[: int(indptr[-1])]
    counts = EdgeCounts(
        rows_read=rows_read,
        self_loops_found=loops,
        self_loops_removed=loops if remove_self_loops else 0,
        reverse_added=rows_read - loops if symmetrize else 0,
        duplicates_found=duplicates,
        duplicates_removed=len(indices) - len(kept),
    )
    return Csc(indptr, kept, counts, relations)


def _count_rows(
    chunks: Iterable[EdgeChunk],
    indptr: npt.NDArray[np.int64],
    rules: tuple[bool, bool],
    digest: npt.NDArray[np.uint64],
    locate: Callable[[int], str],
    advance: Callable[[int], None],
) -> tuple[int, int]:
    """Count row lengths in all chunks; rows read, and self loops seen."""
    rows_read = loops = 0
    for src, dst in read_ahead(chunks):
        bad, chunk_loops = _count_edges(src, dst, indptr, *rules, digest)
        if bad >= 0:
            raise out_of_range(src, dst, bad, rows_read, len(indptr) - 2, locate)
        rows_read += len(src)
        loops += chunk_loops
        del src, dst  # before the next chunk but one is read
        advance(rows_read)
    return rows_read, loops


def _sort_edges(
    typed: Iterable[tuple[IdArray, IdArray, npt.NDArray[np.int32] | None]],
    indptr: npt.NDArray[np.int64],
    indices: IdArray,
    relations: npt.NDArray[np.int32] | None,
    rules: tuple[bool, bool],
    digest: npt.NDArray[np.uint64],
    advance: Callable[[int], None],
) -> None:
    """Put the edges of all chunks into their rows."""
    done = 0
    for src, dst, relation in read_ahead(typed):
        if not _fill_rows(src, dst, relation, indptr, indices, relations, *rules, digest):
            raise _changed()
        done += len(src)
        del src, dst, relation
        advance(done)


def count_occurrences(indices: IdArray, num_nodes: int) -> npt.NDArray[np.int64]:
    """Count how many adjacency lists name each node: its out-degree in the sense of sampling.

    Returns
    -------
    (N,) int64
    """
    counts = np.zeros(num_nodes, np.int64)
    count_accesses(counts, indices)
    return counts


@_jit
def _count_edges(
    src: IdArray,
    dst: IdArray,
    indptr: npt.NDArray[np.int64],
    symmetrize: bool,
    remove_loops: bool,
    digest: npt.NDArray[np.uint64],
) -> tuple[int, int]:
    """Count row lengths into indptr[v + 2]; (first position with an id out of range or -1, self loops seen).

    The sum of a hash of each edge is added to `digest`: the second reading must come to the same.
    """
    num_nodes = len(indptr) - 2
    total = digest[0]
    loops = 0
    for i in range(len(src)):
        u, v = src[i], dst[i]
        if u < 0 or v < 0 or u >= num_nodes or v >= num_nodes:
            return i, loops
        total += child(np.uint64(u), np.uint64(v))
        if u == v:
            loops += 1
            if remove_loops:
                continue
        elif symmetrize:
            indptr[u + 2] += 1
        indptr[v + 2] += 1
    digest[0] = total
    return -1, loops


@_jit
def _fill_rows(
    src: IdArray,
    dst: IdArray,
    relation: npt.NDArray[np.int32] | None,
    indptr: npt.NDArray[np.int64],
    indices: IdArray,
    relations: npt.NDArray[np.int32] | None,
    symmetrize: bool,
    remove_loops: bool,
    digest: npt.NDArray[np.uint64],
) -> bool:
    """Put each source (and relation) into its destination's row; False if the edges are not those that were counted."""
    num_nodes = len(indptr) - 2
    total = digest[0]
    for i in range(len(src)):
        u, v = src[i], dst[i]
        if u < 0 or v < 0 or u >= num_nodes or v >= num_nodes:
            return False
        total += child(np.uint64(u), np.uint64(v))
        if u == v and remove_loops:
            continue
        if indptr[v + 1] >= len(indices):
            return False
        indices[indptr[v + 1]] = u
        if relations is not None and relation is not None:
            relations[indptr[v + 1]] = relation[i]
        indptr[v + 1] += 1
        if symmetrize and u != v:
            if indptr[u + 1] >= len(indices):
                return False
            indices[indptr[u + 1]] = v
            indptr[u + 1] += 1
    digest[0] = total
    return True


def _changed() -> InputError:
    return InputError("the edges changed while they were read: run again when nothing writes to them")


class NodeRangeError(InputError):
    """An edge names a node that is not there."""


def out_of_range(
    src: IdArray, dst: IdArray, position: int, rows_before: int, num_nodes: int, locate: Callable[[int], str]
) -> NodeRangeError:
    """Name the first edge with an id that no node has."""
    edge = int(src[position]), int(dst[position])
    return NodeRangeError(
        f"{locate(rows_before + position)}: edge {edge} names a node outside [0, {num_nodes}): "
        "correct the row, or the number of nodes (which features, labels or num_nodes fix)"
    )
