"""Loops over the edges of a range of destinations: count rows, fill them, merge repeated sources."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

IdArray = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Seen = npt.NDArray[np.uint64]

_jit: Any = numba.njit(nogil=True, cache=True)


@_jit
def count_rows(rows: IdArray, first: int, indptr: npt.NDArray[np.int64]) -> None:
    """Count row lengths into indptr[v + 2] from (n, columns) edges of destination v + first, source, ...."""
    for i in range(len(rows)):
        indptr[rows[i, 0] - first + 2] += 1


@_jit
def fill_rows(
    rows: IdArray, first: int, indptr: npt.NDArray[np.int64], ids: IdArray, relations: npt.NDArray[np.int32]
) -> None:
    """Put each source (and relation) into its row; indptr[v + 1] moves from the row's start to its end."""
    for i in range(len(rows)):
        v = rows[i, 0] - first + 1
        place = indptr[v]
        ids[place] = rows[i, 1]
        if rows.shape[1] == 3:
            relations[place] = rows[i, 2]
        indptr[v] = place + 1


@_jit
def merge_list(ids: IdArray, start: int, stop: int, out: int, seen: Seen, remove: bool) -> tuple[int, int]:
    """Count repeated ids among ids[start:stop] and move those that stay to `out` and on.

    `seen` has a bit a node and remembers pieces of the same list. Returns how many were repeated, and where the next
    one would go.
    """
    one = np.uint64(1)
    found = 0
    for e in range(start, stop):
        u = ids[e]
        bit = one << np.uint64(u & 63)
        if seen[u >> 6] & bit:
            found += 1
            if remove:
                continue
        seen[u >> 6] |= bit
        ids[out] = u
        out += 1
    return found, out


@_jit
def merge_duplicates(indptr: npt.NDArray[np.int64], ids: IdArray, seen: Seen, remove: bool) -> int:
    """Count repeated ids within rows and, on request, close the gaps in place; `seen` is all zero, before and after."""
    found = 0
    out = start = np.int64(0)
    for v in range(len(indptr) - 1):
        stop, row = indptr[v + 1], out
        its_found, out = merge_list(ids, start, stop, out, seen, remove)
        found += its_found
        for e in range(row, out):
            seen[ids[e] >> 6] = 0
        start = stop
        indptr[v + 1] = out
    return found


@_jit
def count_between(ids: IdArray, first: int, counts: npt.NDArray[np.int64]) -> None:
    """Count the ids from `first` on that have a counter."""
    for u in ids:
        if 0 <= u - first < len(counts):
            counts[u - first] += 1
