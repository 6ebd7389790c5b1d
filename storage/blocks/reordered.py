"""The parts of a store under other node ids: streams, each made in passes over the old part that memory bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from storage.blocks.writer import ArrayStream
from storage.content_checks import check_offset_ends, check_offset_piece, check_offset_type, check_range
from storage.errors import InputError, StorageError
from storage.extras import Extras
from storage.formats.base import CHUNK_BYTES, IdArray, Links
from storage.graph_store import INDICES, INDPTR, LABELS, SPLITS, GraphStore, Split, row_chunks
from storage.row_spill import permute_by_files
from storage.store_format import GRAPH_ID, GRAPH_LABELS, MULTI_LABELS, RELATION

_OFFSET_NODES = 1 << 19
_MARK_BYTES = 1 << 17
_MOST_PASSES = 3
_PLACED_ROWS = 1 << 16  # at once, for their places take 20 bytes each while they are found

_jit = numba.njit(nogil=True, cache=True)


def check_permutation(old_to_new: IdArray, num_nodes: int) -> None:
    """Refuse what does not hold each node once.

    Raises
    ------
    InputError
        It does not.
    """
    if len(old_to_new) != num_nodes or not _is_permutation(old_to_new, np.zeros(num_nodes // 64 + 1, np.uint64)):
        raise InputError(f"a node order must hold each of 0..{num_nodes - 1} once (got {len(old_to_new)} ids)")


def _offset_pieces(store: GraphStore) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """The old offsets, some nodes at a time: the first node and the offsets of its list and of those that follow."""
    reader, num_nodes = store.reader(INDPTR), store.info.num_nodes
    for first in range(0, num_nodes, _OFFSET_NODES):
        yield first, reader.read_rows(first, min(first + _OFFSET_NODES, num_nodes) + 1)


def reordered_indptr(store: GraphStore, old_to_new: IdArray) -> npt.NDArray[np.int64]:
    """Offsets in the new order; the old ones are checked on the way.

    Raises
    ------
    StorageError
        The old ones do not ascend from 0 to E.
    """
    reader, num_nodes = store.reader(INDPTR), store.info.num_nodes
    check_offset_type(store.path, reader.extent.dtype)
    ends = int(reader.read_rows(0, 1)[0]), int(reader.read_rows(num_nodes, num_nodes + 1)[0])
    check_offset_ends(store.path, *ends, store.info.num_edges)
    indptr = np.zeros(num_nodes + 1, np.int64)
    for first, offsets in _offset_pieces(store):
        check_offset_piece(store.path, offsets, first)
        _place_degrees(offsets, old_to_new[first : first + len(offsets) - 1], indptr)
    np.cumsum(indptr, out=indptr)
    return indptr


class Reordered:
    """The parts of a store in another node order, each made in as many passes over its old self as memory asks for.

    Parameters
    ----------
    store : GraphStore
    old_to_new : (N,) int32 or int64
        A permutation.
    indptr : (N + 1,) int64
        Offsets in the new order.
    work_bytes : int
        Memory for pieces of a part.
    scratch : Path, optional
        Directory for files by which rows change places where that reads and writes less than many passes.
    """

    def __init__(
        self,
        store: GraphStore,
        old_to_new: IdArray,
        indptr: npt.NDArray[np.int64],
        work_bytes: int,
        scratch: Path | None = None,
    ) -> None:
        self._store, self._old_to_new, self._indptr = store, old_to_new, indptr
        self._work_bytes, self._scratch = work_bytes, scratch

    def rows(self, name: str) -> ArrayStream:
        """A dataset with one entry a node."""
        extent = self._store.extent(name)
        return self._permuted(lambda: row_chunks(self._store, name), extent.shape, extent.dtype)

    def old_ids(self) -> ArrayStream:
        """The old id of each node."""
        num_nodes, step = self._store.info.num_nodes, CHUNK_BYTES // 8

        def pieces() -> Iterator[npt.NDArray[Any]]:
            return (np.arange(first, min(first + step, num_nodes)) for first in range(0, num_nodes, step))

        return self._permuted(pieces, (num_nodes,), np.dtype(np.int64))

    def labels(self) -> ArrayStream | None:
        """Labels of either kind, checked to be labels."""
        store = self._store
        if not (store.has(LABELS) or store.info.is_multi_label):
            return None
        end = 2 if store.info.is_multi_label else store.info.num_classes
        stream = self.rows(MULTI_LABELS if store.info.is_multi_label else LABELS)

        def checked() -> Iterator[npt.NDArray[Any]]:
            for chunk in stream.chunks:
                check_range(store.path, "labels", chunk.reshape(-1).astype(np.int32, copy=False), -1, end)
                yield chunk

        return ArrayStream(stream.shape, stream.dtype, checked())

    def split(self, split: Split) -> ArrayStream:
        """A split under the new ids, in ascending order: a bit for each node that is in it."""
        store, name = self._store, f"splits/{split}"
        num_nodes = store.info.num_nodes

        def pieces() -> Iterator[npt.NDArray[np.int64]]:
            marks = np.zeros(num_nodes // 64 + 1, np.uint64)
            for nodes in row_chunks(store, name):
                check_range(store.path, f"{split} nodes", nodes, 0, num_nodes)
                _mark(marks, self._old_to_new[nodes])
            if int(np.bitwise_count(marks).sum(dtype=np.int64)) != store.extent(name).shape[0]:
                raise StorageError(f"{store.path} is damaged or crafted: {split} nodes repeat; delete it and run again")
            bits = marks.view(np.uint8)
            for start in range(0, len(bits), _MARK_BYTES):
                part = np.unpackbits(bits[start : start + _MARK_BYTES], bitorder="little")
                yield 8 * start + np.flatnonzero(part)

        return ArrayStream(store.extent(name).shape, np.dtype(np.int64), pieces())

    def lists(self, name: str) -> ArrayStream:
        """A dataset with one entry an edge; ids become the new ones."""
        extent = self._store.extent(name)
        num_edges = extent.shape[0]

        def pieces() -> Iterator[IdArray]:
            ids = max(1, self._work_bytes // extent.dtype.itemsize)
            room = np.empty(min(ids, num_edges), extent.dtype)
            for first in range(0, num_edges, ids):
                out = room[: num_edges - first]
                for node, offsets in _offset_pieces(self._store):
                    self._move_lists(name, node, offsets, out, first)
                yield out

        return ArrayStream(extent.shape, extent.dtype, pieces())

    def extras(self) -> Extras:
        """Relations, links and graph numbers under the new ids."""
        store, link_sizes = self._store, self._store.info.link_sizes
        return Extras(
            relations=self.lists(RELATION) if store.has(RELATION) else None,
            relation_names=store.info.relation_names,
            links={split: self._links(split) for split in SPLITS if split in link_sizes},
            graph_ids=self.rows(GRAPH_ID) if store.info.is_union else None,
            graph_labels=store.read_graph_labels() if store.has(GRAPH_LABELS) else None,
        )

    def _values(self, name: str) -> tuple[str, int]:
        """What a dataset of edges holds, and the end of its values."""
        if name == INDICES:
            return "the adjacency lists", self._store.info.num_nodes
        return "the relations", len(self._store.info.relation_names)

    def _links(self, split: Split) -> Links:
        return self._store.read_links(split).renumbered(self._old_to_new)

    def _permuted(
        self, read: Callable[[], Iterable[npt.NDArray[Any]]], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> ArrayStream:
        """Rows in the new order: as many as memory holds at a time, in one pass over the old ones each, or by files."""
        row_bytes = max(1, int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize)
        rows = max(1, self._work_bytes // row_bytes)
        if self._scratch is not None and goes_by_files(shape[0] * row_bytes, self._work_bytes):
            old_to_new, folder = self._old_to_new, self._scratch
            moved = permute_by_files(read(), old_to_new, folder, shape=shape, dtype=dtype, rows_at_once=rows)
            return ArrayStream(shape, dtype, moved)

        def pieces() -> Iterator[npt.NDArray[Any]]:
            room = np.empty((min(rows, shape[0]), *shape[1:]), dtype)
            for first in range(0, shape[0], rows):
                out = room[: shape[0] - first]
                old = 0
                for chunk in read():
                    for at in range(0, len(chunk), _PLACED_ROWS):
                        some = chunk[at : at + _PLACED_ROWS]
                        slot = self._old_to_new[old + at : old + at + len(some)] - first
                        here = np.flatnonzero((slot >= 0) & (slot < len(out)))
                        out[slot[here]] = some[here]
                    old += len(chunk)
                yield out

        return ArrayStream(shape, dtype, pieces())

    def _move_lists(self, name: str, node: int, offsets: npt.NDArray[np.int64], out: IdArray, out_start: int) -> None:
        """Copy the lists that begin at `offsets`, those of `node` and following, as far as `out` holds them."""
        reader, old_to_new = self._store.reader(name), self._old_to_new
        step, last = CHUNK_BYTES // out.itemsize, int(offsets[-1])
        start = int(offsets[0])
        while start < last:
            stop = min(last, (start // step + 1) * step)  # at the end of a block, so that none is read twice
            chunk = reader.read_rows(start, stop)
            if not out_start:
                what, end = self._values(name)
                check_range(self._store.path, what, chunk, 0, end, first=start)
            _move_rows(chunk, start, node, offsets, self._indptr, old_to_new, name == INDICES, out, out_start)
            start = stop


def goes_by_files(nbytes: int, work_bytes: int) -> bool:
    """Whether rows that take so many bytes in all are better written to files and read again than read many times."""
    return nbytes > _MOST_PASSES * work_bytes


@_jit
def _is_permutation(ids: IdArray, seen: npt.NDArray[np.uint64]) -> bool:
    """Whether ids are in range and none comes twice; `seen` has a bit each, all zero."""
    for v in ids:
        if v < 0 or v >= len(ids):
            return False
        bit = np.uint64(1) << np.uint64(v & 63)
        if seen[v >> 6] & bit:
            return False
        seen[v >> 6] |= bit
    return True


@_jit
def _mark(marks: npt.NDArray[np.uint64], ids: IdArray) -> None:
    for v in ids:
        marks[v >> 6] |= np.uint64(1) << np.uint64(v & 63)


@_jit
def _place_degrees(offsets: npt.NDArray[np.int64], new_ids: IdArray, indptr: npt.NDArray[np.int64]) -> None:
    for i in range(len(new_ids)):
        indptr[new_ids[i] + 1] = offsets[i + 1] - offsets[i]


@_jit
def _move_rows(
    chunk: IdArray,
    chunk_start: int,
    node: int,
    offsets: npt.NDArray[np.int64],
    indptr: npt.NDArray[np.int64],
    old_to_new: IdArray,
    are_ids: bool,
    out: IdArray,
    out_start: int,
) -> None:
    """Copy what `chunk` (old edges from `chunk_start`) and `out` (new edges from `out_start`) have in common.

    `offsets` are those of the old lists of `node` and following.
    """
    chunk_stop, out_stop = chunk_start + len(chunk), out_start + len(out)
    v = np.searchsorted(offsets, chunk_start, side="right") - 1
    while v < len(offsets) - 1 and offsets[v] < chunk_stop:
        shift = indptr[old_to_new[node + v]] - offsets[v]
        first = max(offsets[v], chunk_start, out_start - shift)
        last = min(offsets[v + 1], chunk_stop, out_stop - shift)
        for e in range(first, last):
            value = chunk[e - chunk_start]
            out[e + shift - out_start] = old_to_new[value] if are_ids else value
        v += 1
