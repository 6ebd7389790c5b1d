"""Finds the position of a key among many by its hash, in little more than the hash and the position."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numba
import numpy as np
import numpy.typing as npt

from storage.csc import empty_ids, id_dtype
from storage.formats.base import IdArray

_jit = numba.njit(nogil=True, cache=True)

_BUCKET_KEYS = 8  # on average: a cache line of hashes


class HashIndex:
    """Finds the position of any of N hashes: 12.5 bytes each (17 from 2^31 on), sorted into buckets of about eight.

    Parameters
    ----------
    read : callable
        Gives the hashes anew, uint64, in the order of their positions; they are read twice.
    num_keys : int
        N, below 2^35.
    """

    def __init__(self, read: Callable[[], Iterable[npt.NDArray[np.uint64]]], num_keys: int) -> None:
        self._hashes = np.empty(num_keys, np.uint64)
        self._positions = empty_ids(num_keys, num_keys)
        ends = np.zeros(num_keys // _BUCKET_KEYS + 3, id_dtype(num_keys))
        for hashes in read():
            _count(hashes, ends)
        np.cumsum(ends, out=ends)
        done = 0
        for hashes in read():
            _place(hashes, done, ends, self._hashes, self._positions)
            done += len(hashes)
        self._starts = ends[:-1]

    @staticmethod
    def nbytes_for(num_keys: int) -> int:
        """Bytes that an index of so many keys takes."""
        size = id_dtype(num_keys).itemsize
        return num_keys * (8 + size) + (num_keys // _BUCKET_KEYS + 3) * size

    @property
    def has_repeats(self) -> bool:
        """Whether two hashes are equal: then only one of the two is found."""
        return bool(_has_repeats(self._starts, self._hashes))

    def look_up(self, hashes: npt.NDArray[np.uint64]) -> IdArray:
        """Position of each hash, -1 for those that are not there."""
        return _look_up(hashes, self._starts, self._hashes, self._positions)


@_jit
def _bucket(hash_: np.uint64, buckets: int) -> np.int64:
    """Bucket of a hash; they ascend with the hashes."""
    return np.int64(((hash_ >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32))


@_jit
def _count(hashes: npt.NDArray[np.uint64], ends: IdArray) -> None:
    """Count the hashes of bucket b into ends[b + 2]."""
    for hash_ in hashes:
        ends[_bucket(hash_, len(ends) - 2) + 2] += 1


@_jit
def _place(
    hashes: npt.NDArray[np.uint64], first: int, ends: IdArray, placed: npt.NDArray[np.uint64], positions: IdArray
) -> None:
    """Put hashes into their buckets; ends[b + 1] moves from the start of bucket b to its end."""
    for i in range(len(hashes)):
        bucket = _bucket(hashes[i], len(ends) - 2) + 1
        place = ends[bucket]
        placed[place], positions[place] = hashes[i], first + i
        ends[bucket] = place + 1


@_jit
def _has_repeats(starts: IdArray, hashes: npt.NDArray[np.uint64]) -> bool:
    for bucket in range(len(starts) - 1):
        for i in range(starts[bucket], starts[bucket + 1]):
            for j in range(starts[bucket], i):
                if hashes[i] == hashes[j]:
                    return True
    return False


@_jit
def _look_up(
    wanted: npt.NDArray[np.uint64], starts: IdArray, hashes: npt.NDArray[np.uint64], positions: IdArray
) -> IdArray:
    out = np.empty(len(wanted), positions.dtype)
    for i in range(len(wanted)):
        bucket = _bucket(wanted[i], len(starts) - 1)
        out[i] = -1
        for place in range(starts[bucket], starts[bucket + 1]):
            if hashes[place] == wanted[i]:
                out[i] = positions[place]
                break
    return out
