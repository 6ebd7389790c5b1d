"""Sharing rows among threads: contiguous ranges of about equal work over functions that release the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import numpy.typing as npt

# Below this many operations a thread's share is not worth waking it for (tens of microseconds).
_MIN_WORK = 1 << 17


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="row-ranges")


# A forked child inherits the object but none of its threads.
os.register_at_fork(after_in_child=_pool.cache_clear)


def worthwhile_parts(work: int, threads: int) -> int:
    """How many threads `work` operations deserve: 1 to `threads`."""
    return max(1, min(threads, work // _MIN_WORK))


def split_evenly(num_rows: int, parts: int) -> npt.NDArray[np.int64]:
    """(parts + 1,) int64 boundaries of ranges with about equally many rows."""
    bounds: npt.NDArray[np.int64] = np.arange(parts + 1, dtype=np.int64) * num_rows // parts
    return bounds


def split_by_edges(indptr: npt.NDArray[np.int64], parts: int) -> npt.NDArray[np.int64]:
    """(parts + 1,) int64 boundaries of ranges with about equally many rows plus edges, from (rows + 1,) offsets."""
    work_R = indptr + np.arange(len(indptr))
    shares = work_R[0] + split_evenly(int(work_R[-1] - work_R[0]), parts)
    bounds: npt.NDArray[np.int64] = np.searchsorted(work_R, shares)
    bounds[-1] = len(indptr) - 1
    return bounds


def run_ranges(body: Callable[[int, int], None], bounds: npt.NDArray[np.int64]) -> None:
    """Call `body(begin, end)` on each range, one thread a range, the first in the caller's.

    `body` must release the GIL and write only what belongs to its range.
    """
    ranges = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
    others = [_pool().submit(body, begin, end) for begin, end in ranges[1:]]
    body(*ranges[0])
    for other in others:
        other.result()
