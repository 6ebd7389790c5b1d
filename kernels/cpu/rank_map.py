"""Rank-map bodies: build from ascending ids, look up many ids."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import popcount, slot_of

_ONE = np.uint64(1)


@njit(nogil=True, cache=True)
def set_bits(bits: npt.NDArray[np.uint64], ids: npt.NDArray[np.int64]) -> None:
    """Set the bit of every id."""
    for v in ids:
        bits[v >> 6] |= _ONE << np.uint64(v & 63)


@njit(nogil=True, cache=True)
def rank_words(bits: npt.NDArray[np.uint64], rank: npt.NDArray[np.uint32]) -> None:
    """Write the number of set bits before each word."""
    total = np.int64(0)
    for word in range(len(bits)):
        rank[word] = total
        total += np.int64(popcount(bits[word]))


@njit(nogil=True, cache=True)
def slots(
    bits: npt.NDArray[np.uint64],
    rank: npt.NDArray[np.uint32],
    ids: npt.NDArray[np.integer],
    out: npt.NDArray[np.int64],
) -> None:
    """Write the slot of every id, -1 for an id that is not in the map."""
    for i in range(len(ids)):
        out[i] = slot_of(bits, rank, ids[i])
