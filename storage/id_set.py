"""Integers that lie close together: a bit each, and how many are set before each word, to find their positions."""

from __future__ import annotations

from collections.abc import Iterator

import numba
import numpy as np
import numpy.typing as npt

from kernels.cpu.rank_map import rank_words
from kernels.rank_map import RankMap
from storage.formats.base import IdArray

_jit = numba.njit(nogil=True, cache=True)

_FIRST_WORDS = 1 << 10
_LISTED_WORDS = 1 << 14


class IdSet:
    """Collects integers from 0 on, in an eighth of a byte to a quarter for each up to the largest one."""

    def __init__(self) -> None:
        self._bits = np.zeros(_FIRST_WORDS, np.uint64)
        self.largest = -1
        """The largest integer that was added."""

    @staticmethod
    def bytes_for(largest: int) -> int:
        """Bytes that a set takes which holds an integer as large as that, while it grows to hold it."""
        return 12 << max(_FIRST_WORDS - 1, max(0, largest) // 64).bit_length()

    def add(self, ids: IdArray) -> None:
        """Add ids, which must not be negative."""
        self.largest = max(self.largest, int(ids.max(initial=-1)))
        if self.largest >= 64 * len(self._bits):
            grown = np.zeros(1 << (self.largest // 64).bit_length(), np.uint64)
            grown[: len(self._bits)] = self._bits
            self._bits = grown
        _mark(self._bits, ids)

    def count(self) -> int:
        """How many integers were added."""
        return int(sum(np.bitwise_count(words).sum(dtype=np.int64) for words in self._pieces()))

    def ascending(self) -> Iterator[npt.NDArray[np.int64]]:
        """Give all integers in ascending order, some at a time."""
        for start, words in zip(range(0, len(self._bits), _LISTED_WORDS), self._pieces(), strict=True):
            held = np.unpackbits(words.view(np.uint8), bitorder="little")
            if len(ids := np.flatnonzero(held)):
                yield ids + 64 * start

    def _pieces(self) -> Iterator[npt.NDArray[np.uint64]]:
        return (self._bits[start : start + _LISTED_WORDS] for start in range(0, len(self._bits), _LISTED_WORDS))


def rank_map_of(pieces: Iterator[npt.NDArray[np.int64]], first: int, num_ids: int, spread: int) -> RankMap:
    """Map integers to their positions.

    Parameters
    ----------
    pieces : iterator of arrays
        The integers, some at a time.
    first : int
        The least of them; the map is of what they are above it.
    num_ids : int
        How many they are, below 2^32.
    spread : int
        By how much the largest is above the least, and one.
    """
    bits = np.zeros(-(-spread // 64), np.uint64)
    for ids in pieces:
        _mark(bits, ids - first)
    rank = np.empty(len(bits), np.uint32)
    rank_words(bits, rank)
    return RankMap(bits, rank, spread, num_ids)


@_jit
def _mark(bits: npt.NDArray[np.uint64], ids: IdArray) -> None:
    """Set the bit of each id, all of which have one."""
    for i in range(len(ids)):
        bits[ids[i] >> 6] |= np.uint64(1) << np.uint64(ids[i] & 63)
