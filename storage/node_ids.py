"""Node ids: from the integers that occur in a file (gaps and all) to 0..N-1, in one pass over the edges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from storage.csc import empty_ids
from storage.errors import InputError
from storage.formats.base import EdgeChunk, EdgeReader, IdArray, NumberedEdges, read_ahead

_jit = numba.njit(nogil=True, cache=True)

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
EMPTY = np.iinfo(np.int64).min
"""Marks a free slot; no id may be it."""
_FIRST_CAPACITY = 1 << 12
_TABLE_SPREAD = 4


@dataclass(frozen=True)
class NodeIds:
    """The ids that occur in a graph, in ascending order: the position of an id is its node."""

    ids_N: npt.NDArray[np.int64]
    """(N,) ids, ascending."""

    @property
    def num_nodes(self) -> int:
        """Number of ids."""
        return len(self.ids_N)

    @property
    def is_identity(self) -> bool:
        """Whether the ids are 0..N-1 already."""
        return self.num_nodes == 0 or (self.ids_N[0] == 0 and self.ids_N[-1] == self.num_nodes - 1)

    def map_chunks(self, chunks: Iterable[EdgeChunk]) -> Iterator[EdgeChunk]:
        """Replace the ids of edges by their nodes; an id that is not there becomes -1."""
        first, spread = int(self.ids_N[0]), int(self.ids_N[-1]) - int(self.ids_N[0]) + 1
        if spread <= _TABLE_SPREAD * self.num_nodes:
            table = empty_ids(spread, self.num_nodes)
            table.fill(-1)
            table[self.ids_N - first] = np.arange(self.num_nodes)
            for src, dst in chunks:
                yield _look_up(table, first, src), _look_up(table, first, dst)
        else:
            index = HashIndex(self.ids_N)
            for src, dst in chunks:
                yield index.look_up(src), index.look_up(dst)


@dataclass(frozen=True)
class _MappedEdges:
    """Edges with their ids replaced by nodes."""

    reader: EdgeReader
    ids: NodeIds

    def chunks(self) -> Iterator[EdgeChunk]:
        """Read and map the edges anew."""
        return self.ids.map_chunks(self.reader.chunks())

    def locate(self, row: int) -> str:
        """Say where edge number `row` stands."""
        return self.reader.locate(row)


def number_integers(reader: EdgeReader) -> NumberedEdges:
    """Number the integers that occur in edges, in ascending order.

    Raises
    ------
    InputError
        An id is negative.
    """
    ids = discover_ids(reader)
    if ids.is_identity:
        return NumberedEdges(reader, ids.num_nodes, None)
    return NumberedEdges(_MappedEdges(reader, ids), ids.num_nodes, ids.ids_N)


class HashIndex:
    """Finds the position of any of N distinct integers, by a hash table of 24 to 48 bytes each.

    Parameters
    ----------
    ids_N : (N,) int64
        Distinct, none of them the lowest int64.
    """

    def __init__(self, ids_N: npt.NDArray[np.int64]) -> None:
        self._keys = np.full(_capacity(len(ids_N)), EMPTY)
        self._nodes = empty_ids(len(self._keys), len(ids_N))
        _fill_hash(self._keys, self._nodes, ids_N)

    def look_up(self, ids: IdArray) -> IdArray:
        """Position of each id, -1 for those that are not there."""
        return _look_up_hash(self._keys, self._nodes, ids)


def discover_ids(reader: EdgeReader) -> NodeIds:
    """Collect the ids that occur in edges, in one pass.

    A hash set with open addressing, at most half full: 16 to 32 bytes an id (twice that while it grows), whatever the
    ids are.

    Parameters
    ----------
    reader : EdgeReader

    Returns
    -------
    NodeIds

    Raises
    ------
    InputError
        An id is negative.
    """
    keys = np.full(_FIRST_CAPACITY, EMPTY)
    size = row = 0
    for chunk in read_ahead(reader.chunks()):
        for ids in chunk:
            if ids.min(initial=0) < 0:
                place = int(np.argmax(ids < 0))
                raise InputError(f"{reader.locate(row + place)}: id {ids[place]} is negative: correct the row")
            done = 0
            while True:
                done, size = _insert(keys, size, ids, done)
                if done == len(ids):
                    break
                keys = _grown(keys)
        row += len(chunk[0])
    return NodeIds(np.sort(keys[keys != EMPTY]))


def _capacity(size: int) -> int:
    """Slots for `size` keys: a power of two, at most half full."""
    return 1 << max(12, (2 * size - 1).bit_length())


def _grown(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    larger = np.full(2 * len(keys), EMPTY)
    _insert(larger, 0, keys[keys != EMPTY], 0)
    return larger


@_jit
def _slot(keys: npt.NDArray[np.int64], key: np.int64) -> np.int64:
    """Slot that holds `key`, or the empty one where it belongs."""
    mask = np.uint64(len(keys) - 1)
    mixed = np.uint64(key) * _MULTIPLIER
    slot = np.int64((mixed ^ (mixed >> np.uint64(32))) & mask)
    while keys[slot] != EMPTY and keys[slot] != key:
        slot = (slot + 1) & (len(keys) - 1)
    return slot


@_jit
def _insert(keys: npt.NDArray[np.int64], size: int, ids: IdArray, start: int) -> tuple[int, int]:
    """Add ids from `start` on until the table is half full; (ids done, keys in the table)."""
    for i in range(start, len(ids)):
        key = np.int64(ids[i])
        slot = _slot(keys, key)
        if keys[slot] == EMPTY:
            if 2 * (size + 1) > len(keys):
                return i, size
            keys[slot] = key
            size += 1
    return len(ids), size


@_jit
def _fill_hash(keys: npt.NDArray[np.int64], nodes: IdArray, ids_N: npt.NDArray[np.int64]) -> None:
    for node in range(len(ids_N)):
        slot = _slot(keys, ids_N[node])
        keys[slot] = ids_N[node]
        nodes[slot] = node


@_jit
def _look_up_hash(keys: npt.NDArray[np.int64], nodes: IdArray, ids: IdArray) -> IdArray:
    out = np.empty(len(ids), nodes.dtype)
    for i in range(len(ids)):
        slot = _slot(keys, np.int64(ids[i]))
        out[i] = -1 if keys[slot] == EMPTY else nodes[slot]
    return out


@_jit
def _look_up(table: IdArray, first: int, ids: IdArray) -> IdArray:
    out = np.empty(len(ids), table.dtype)
    for i in range(len(ids)):
        offset = ids[i] - first
        out[i] = table[offset] if 0 <= offset < len(table) else -1
    return out
