"""Sets of ids, a bit a node: 64 of them in a word."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import popcount
from kernels.mfg import IdArray

U64 = np.uint64
U64Array = npt.NDArray[np.uint64]
WORD_BITS = 64


def no_bits(num_sets: int, num_nodes: int) -> U64Array:
    """(num_sets, W) uint64: empty sets of ids below `num_nodes`."""
    return np.zeros((num_sets, -(-num_nodes // WORD_BITS)), U64)


def bits_bytes(num_nodes: int) -> int:
    """Bytes of a set of ids below `num_nodes`."""
    return -(-num_nodes // WORD_BITS) * WORD_BITS // 8


@njit(nogil=True, cache=True)
def mark_bits(bits: U64Array, ids: IdArray) -> None:
    """Set the bit of each id."""
    for v in ids:
        bits[v >> 6] |= U64(1) << U64(v & 63)


@njit(nogil=True, cache=True)
def take_ids(bits: U64Array, start: int, out: IdArray) -> tuple[int, int]:
    """Write the next ids that are set, from `start` on, as many as fit; returns their number and where to go on."""
    count, v, end = 0, start, len(bits) * 64
    while v < end and count < len(out):
        word = bits[v >> 6] >> U64(v & 63)
        if word == 0:
            v = ((v >> 6) + 1) << 6
            continue
        v += int(popcount((word & (~word + U64(1))) - U64(1)))  # zeros below the lowest one
        out[count] = v
        count += 1
        v += 1
    return count, v
