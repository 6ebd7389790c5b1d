"""The largest scores of all nodes by counting their bits, without sorting: 512 KB of scratch however many nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

_LEVEL_BITS = 16
_BINS = 1 << _LEVEL_BITS
_LOW = np.uint64(_BINS - 1)


def top_ids(score_N: npt.NDArray[np.float64] | npt.NDArray[np.integer], k: int) -> npt.NDArray[np.int64]:
    """Ids of the `k` largest scores above zero.

    Parameters
    ----------
    score_N : (N,) float64, int32 or int64
        Not negative, no NaN.
    k : int
        How many at most; fewer where fewer scores are above zero.

    Returns
    -------
    (<= k,) int64
        Ascending ids. Of equal scores the lower ids are taken.
    """
    if k <= 0:
        return np.empty(0, np.int64)
    keys = _keys(score_N)
    threshold, num_ties = _threshold(keys, k)
    out = np.empty(min(k, len(keys)), np.int64)
    return out[: _collect(keys, np.uint64(threshold), num_ties, out)]


def top_sum(score_N: npt.NDArray[np.integer], k: int) -> int:
    """Sum of the `k` largest of N integers that are not negative, without naming which they are."""
    if k <= 0:
        return 0
    threshold, num_ties = _threshold(_keys(score_N), k)
    return int(_sum_above(score_N, int(threshold))) + int(threshold) * num_ties


def _keys(score_N: npt.NDArray[Any]) -> npt.NDArray[np.unsignedinteger]:
    """Of numbers >= 0 the bits ascend with the value."""
    return np.ascontiguousarray(score_N).view(np.uint32 if score_N.itemsize == 4 else np.uint64)


@njit(nogil=True, cache=True)
def _sum_above(score_N: npt.NDArray[np.integer], threshold: int) -> np.int64:
    total = np.int64(0)
    for score in score_N:
        if score > threshold:
            total += score
    return total


@njit(nogil=True, cache=True)
def _threshold(keys: npt.NDArray[np.unsignedinteger], k: int) -> tuple[np.uint64, int]:
    """Key of the last one taken, and how many of that key are."""
    prefix, left = np.uint64(0), k
    count = np.zeros(_BINS, np.int64)
    for level in range(3, -1, -1):
        shift = np.uint64(level * _LEVEL_BITS)
        count[:] = 0
        for stored in keys:
            key = np.uint64(stored)
            # Shifted twice: a shift by all 64 bits is undefined.
            if key != 0 and ((key >> shift) >> np.uint64(_LEVEL_BITS)) == prefix:
                count[(key >> shift) & _LOW] += 1
        chosen = _BINS - 1
        while chosen > 0 and count[chosen] < left:
            left -= count[chosen]
            chosen -= 1
        prefix = (prefix << np.uint64(_LEVEL_BITS)) | np.uint64(chosen)
    return prefix, left


@njit(nogil=True, cache=True)
def _collect(
    keys: npt.NDArray[np.unsignedinteger], threshold: np.uint64, num_ties: int, out: npt.NDArray[np.int64]
) -> int:
    taken = 0
    for v in range(len(keys)):
        key = np.uint64(keys[v])
        if key == 0 or key < threshold:
            continue
        if key == threshold:
            if num_ties == 0:
                continue
            num_ties -= 1
        if taken == len(out):  # scores may have grown since the threshold was found
            return taken
        out[taken] = v
        taken += 1
    return taken
