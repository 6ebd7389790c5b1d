"""What becomes of freed memory: kept for reuse where steps ask for the same arrays again, given back under a budget.

By default glibc maps every array above 32 MiB anew and gives it back when it is freed, so that each step pays for the
kernel's zeroing of pages once more: measured with three layers of width 128, a quarter of an epoch's CPU time.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

# `mallopt` parameters and their defaults (malloc.h, mallopt(3)).
_TRIM_THRESHOLD, _DEFAULT_TRIM_THRESHOLD = -1, 128 << 10
_MMAP_MAX, _DEFAULT_MMAP_MAX = -4, 65536
_MMAP_THRESHOLD, _LARGE_BYTES = -3, 128 << 10
_NEVER = 2**31 - 1

_lock = threading.Lock()
_users = [0]


@contextmanager
def kept_memory() -> Iterator[None]:
    """Let the process keep freed memory for a while; what is left over at the end goes back to the system.

    It holds for arrays of any size of the main thread, whose heap grows without limit, and in other threads for those
    that fit one of glibc's heaps for threads, 64 MiB; there, larger ones are mapped anew as ever. Training's large
    arrays are those of its steps, which the thread that calls it makes.

    Nests, also across threads. Peak memory is that of the largest moment, as without it, plus fragmentation. Where the
    C library is not glibc nothing happens.
    """
    _enter(+1)
    try:
        yield
    finally:
        _enter(-1)


@contextmanager
def reused_heap(nbytes: int) -> Iterator[None]:
    """Let the calling thread reuse so many bytes for a while, by arrays of any size; what is beyond goes back at once.

    For a process with a budget, which knows how much its steps take. glibc serves an array from its heap, whatever the
    size, where the heap has room, and asks the system only where it has none: so the heap is made that large once.
    Measured with three layers of width 128: a third of a step's CPU time was the kernel's zeroing of pages.

    Only the main thread's heap can grow so far: in other threads nothing happens, nor within `kept_memory`, nor where
    the C library is not glibc. What is left over at the end goes back to the system.
    """
    libc = ctypes.CDLL(None)
    if not nbytes or threading.current_thread() is not threading.main_thread() or not hasattr(libc, "mallopt"):
        yield
        return
    with _lock:
        is_kept = _users[0] > 0
        if not is_kept:
            libc.mallopt(_TRIM_THRESHOLD, _NEVER)
            libc.mallopt(_MMAP_MAX, 0)
            np.empty(nbytes, np.uint8)  # freed at once, and never touched: no page is taken yet
            libc.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
    try:
        yield
    finally:
        with _lock:
            if not _users[0] and not is_kept:
                libc.mallopt(_TRIM_THRESHOLD, _DEFAULT_TRIM_THRESHOLD)
                libc.malloc_trim(0)


def _enter(change: int) -> None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    with _lock:
        before, _users[0] = _users[0], _users[0] + change
        if before == 0:
            libc.mallopt(_MMAP_MAX, 0)
            libc.mallopt(_TRIM_THRESHOLD, _NEVER)
        elif _users[0] == 0:
            libc.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
            libc.mallopt(_TRIM_THRESHOLD, _DEFAULT_TRIM_THRESHOLD)
            libc.malloc_trim(0)


def give_back_large_arrays() -> None:
    """Have arrays of 128 KiB and more go back to the system as soon as they are freed, from now on.

    For a process with a budget: glibc otherwise raises the size above which it does so to that of the largest array
    freed so far, up to 32 MiB, and keeps what is smaller. `kept_memory` goes before, while it lasts. Where the C
    library is not glibc nothing happens.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
