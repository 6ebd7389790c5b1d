"""Memory that was freed goes back to the system, so that a budget holds for what a process really takes."""

from __future__ import annotations

import ctypes


def return_freed_memory() -> None:
    """Ask the C library to give back what it keeps of freed arrays.

    glibc keeps arrays of up to 32 MiB for itself once one of that size was freed: between steps that each take several
    arrays with one entry a node, they would add up. Where the library has no such call, nothing happens.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
