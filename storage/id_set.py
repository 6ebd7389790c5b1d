"""A growing set of integers: a bit each where they lie close together, a hash table where they lie far apart."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from storage.formats.base import IdArray
from storage.id_hash import EMPTY, capacity, insert

_jit = numba.njit(nogil=True, cache=True)

_FIRST_IDS = 1 << 16
_SMALL_BYTES = 32 << 20
"""Bits may take so much, however few ids there are."""
_HASH_BYTES = 16
"""Least bytes an id in the hash table."""


class IdSet:
    """Collects integers from 0 on.

    Memory: an eighth of a byte for each integer up to the largest one, or 16 to 32 bytes an id (twice that while the
    hash table grows), whichever is less.
    """

    def __init__(self) -> None:
        self._bits: npt.NDArray[np.uint64] | None = np.zeros(_FIRST_IDS // 64, np.uint64)
        self._keys = np.empty(0, np.int64)
        self._size = 0
        self._largest = -1

    @property
    def nbytes(self) -> int:
        """Bytes it takes now."""
        return self._keys.nbytes if self._bits is None else self._bits.nbytes

    @staticmethod
    def bytes_for(count: int, largest: int) -> int:
        """Most bytes that a set of `count` ids up to `largest` takes, once or while it is collected."""
        as_bits = 8 << (max(0, largest) // 64).bit_length()
        if largest // 8 <= _SMALL_BYTES:
            return as_bits
        hashed = max(8 * capacity(count), _SMALL_BYTES)  # there may have been bits while all ids were small
        return max(as_bits, hashed) if largest // 8 <= _HASH_BYTES * count else hashed

    def bytes_with(self, largest: int) -> int:
        """Bytes it takes at least once it holds an id as large as that."""
        as_bits = 8 << (max(0, largest) // 64).bit_length()
        return max(self.nbytes, as_bits if largest // 8 <= _SMALL_BYTES else 0)

    def add(self, ids: IdArray) -> None:
        """Add ids, which must not be negative."""
        self._largest = max(self._largest, int(ids.max(initial=-1)))
        if self._bits is not None and self._largest >= 64 * len(self._bits):
            self._make_room(self._bits)
        if self._bits is not None:
            _mark(self._bits, ids)
        else:
            self._insert(ids, 0)

    def sorted(self) -> npt.NDArray[np.int64]:
        """Give all ids in ascending order."""
        if self._bits is None:
            return np.sort(self._keys[self._keys != EMPTY])
        ids = np.empty(int(np.bitwise_count(self._bits).sum(dtype=np.int64)), np.int64)
        _list_marks(self._bits, ids)
        return ids

    def _fits_bits(self, count: int) -> bool:
        """Whether bits take less than a hash table of `count` ids, or little."""
        return self._largest // 8 <= max(_SMALL_BYTES, _HASH_BYTES * count)

    def _make_room(self, bits: npt.NDArray[np.uint64]) -> None:
        """Grow the bits, or leave them for a hash table."""
        if self._fits_bits(int(np.bitwise_count(bits).sum(dtype=np.int64))):
            self._bits = np.zeros(1 << (self._largest // 64).bit_length(), np.uint64)
            self._bits[: len(bits)] = bits
            return
        present = self.sorted()
        self._bits, self._keys, self._size = None, np.full(capacity(len(present)), EMPTY), 0
        self._insert(present, 0)

    def _insert(self, ids: IdArray, done: int) -> None:
        """Add the ids from `done` on to the hash table; where it would outgrow bits, go over to them."""
        while True:
            done, self._size = insert(self._keys, self._size, ids, done)
            if done == len(ids):
                return
            present = self._keys[self._keys != EMPTY]
            if self._fits_bits(self._size):
                self._bits = np.zeros(1 << (self._largest // 64).bit_length(), np.uint64)
                self._keys = np.empty(0, np.int64)
                _mark(self._bits, present)
                _mark(self._bits, ids[done:])
                return
            self._keys = np.full(2 * len(self._keys), EMPTY)
            _, self._size = insert(self._keys, 0, present, 0)


@_jit
def _mark(bits: npt.NDArray[np.uint64], ids: IdArray) -> None:
    """Set the bit of each id, all of which have one."""
    for i in range(len(ids)):
        bits[ids[i] >> 6] |= np.uint64(1) << np.uint64(ids[i] & 63)


@_jit
def _list_marks(bits: npt.NDArray[np.uint64], ids: npt.NDArray[np.int64]) -> None:
    """List the positions of the bits that are set."""
    place = 0
    for word in range(len(bits)):
        rest = bits[word]
        if rest == 0:
            continue
        for bit in range(64):
            if (rest >> np.uint64(bit)) & np.uint64(1):
                ids[place] = 64 * word + bit
                place += 1
