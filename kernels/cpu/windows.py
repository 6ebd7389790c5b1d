"""Expanding many frontiers window by window of ids, and putting what was drawn back in each frontier's order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.mfg import IdArray

I64Array = npt.NDArray[np.int64]


@njit(nogil=True, cache=True)
def window_ends(ids: IdArray, cursor_H: I64Array, end_H: I64Array, most: int, out_H: I64Array) -> None:
    """Where the window ends in each of some ascending lists: with the largest id that keeps it within `most` entries.

    It holds at least the smallest id that is left, of every list.

    Parameters
    ----------
    ids : (n,) integer
        Lists of strictly ascending ids, one after the other.
    cursor_H, end_H : (H,) int64
        What is left of each.
    most : int
    out_H : (H,) int64
        Receives where the window ends.
    """
    low, high = np.int64(-1), np.int64(-1)
    for h in range(len(cursor_H)):
        if cursor_H[h] < end_H[h]:
            first, last = np.int64(ids[cursor_H[h]]), np.int64(ids[end_H[h] - 1])
            low = first if low < 0 else min(low, first)
            high = max(high, last)
    while low < high:
        middle = low + (high - low + 1) // 2
        count = np.int64(0)
        for h in range(len(cursor_H)):
            count += np.searchsorted(ids[cursor_H[h] : end_H[h]], middle, side="right")
        if count <= most:
            low = middle
        else:
            high = middle - 1
    for h in range(len(cursor_H)):
        out_H[h] = cursor_H[h] + np.searchsorted(ids[cursor_H[h] : end_H[h]], low, side="right")


@njit(nogil=True, cache=True)
def place_rows(
    values: IdArray, count_U: npt.NDArray[np.int32], order: I64Array, row_ptr: I64Array, out: IdArray
) -> None:
    """Copy rows that lie one after the other to their places: row k, of `count_U[k]` values, is row `order[k]`."""
    at = 0
    for k in range(len(order)):
        to = row_ptr[order[k]]
        for _ in range(count_U[k]):
            out[to] = values[at]
            at += 1
            to += 1
