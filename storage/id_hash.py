"""Hash tables of integers with open addressing, at most half full."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from storage.csc import empty_ids
from storage.formats.base import IdArray

_jit = numba.njit(nogil=True, cache=True)

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
EMPTY = np.iinfo(np.int64).min
"""Marks a free slot of a set; no member may be it."""


class HashIndex:
    """Finds the position of any of N distinct integers, by a hash table of 8 to 16 bytes each beside the integers.

    Parameters
    ----------
    ids_N : (N,) int64
        Distinct; held, not copied.
    """

    def __init__(self, ids_N: npt.NDArray[np.int64]) -> None:
        self._ids_N = ids_N
        self._table = empty_ids(capacity(len(ids_N)), len(ids_N))
        self._table.fill(-1)
        _fill_table(self._table, ids_N)

    def look_up(self, ids: IdArray) -> IdArray:
        """Position of each id, -1 for those that are not there."""
        return _look_up(self._table, self._ids_N, ids)


def capacity(size: int) -> int:
    """Slots for `size` keys: a power of two, at most half full."""
    return 1 << max(12, (2 * size - 1).bit_length())


@_jit
def insert(keys: npt.NDArray[np.int64], size: int, ids: IdArray, start: int) -> tuple[int, int]:
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
def _slot(keys: npt.NDArray[np.int64], key: np.int64) -> np.int64:
    """Slot that holds `key`, or the empty one where it belongs."""
    slot = _first_slot(key, len(keys))
    while keys[slot] != EMPTY and keys[slot] != key:
        slot = (slot + 1) & (len(keys) - 1)
    return slot


@_jit
def _first_slot(key: np.int64, slots: int) -> np.int64:
    """Where to look for a key first."""
    mixed = np.uint64(key) * _MULTIPLIER
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(slots - 1))


@_jit
def _fill_table(table: IdArray, ids_N: npt.NDArray[np.int64]) -> None:
    """Put each position where its id belongs; the table starts as -1."""
    for node in range(len(ids_N)):
        slot = _first_slot(ids_N[node], len(table))
        while table[slot] >= 0:
            slot = (slot + 1) & (len(table) - 1)
        table[slot] = node


@_jit
def _look_up(table: IdArray, ids_N: npt.NDArray[np.int64], ids: IdArray) -> IdArray:
    out = np.empty(len(ids), table.dtype)
    for i in range(len(ids)):
        key = np.int64(ids[i])
        slot = _first_slot(key, len(table))
        while table[slot] >= 0 and ids_N[table[slot]] != key:
            slot = (slot + 1) & (len(table) - 1)
        out[i] = table[slot]
    return out
