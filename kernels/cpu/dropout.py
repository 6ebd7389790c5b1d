"""Dropout keyed by identity, in numba: the mask is a hash of (key, position) and never stored."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import child

U64 = np.uint64

LANES = 4
"""Elements served by one 64-bit draw."""
LANE_BITS = 16
"""Bits of the draw for each."""
LANE_RANGE = 1 << LANE_BITS
"""Values of a lane: probabilities are multiples of 2**-16."""
_LANE_MASK = U64(LANE_RANGE - 1)
_ZERO = np.float32(0)


@njit(nogil=True, cache=True)
def drop_elements(
    key: np.uint64,
    threshold: int,
    scale: np.float32,
    x: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
    begin: int,
    end: int,
) -> None:
    """Fill `out` for the draws [begin, end), each of which serves four elements: x * scale, or 0 where dropped.

    Parameters
    ----------
    key : uint64
    threshold : int
        Of 65536: an element is dropped where its 16 bits lie below.
    scale : float32
        Factor of what is kept.
    x, out : (n,) float32
    """
    lowest, whole = U64(threshold), min(end, x.size // LANES)
    # Apart from the last, partial draw: without a bound to check the compiler handles many draws at once.
    for draw in range(begin, whole):
        bits, first = child(key, U64(draw)), U64(draw) * U64(LANES)
        for lane in range(LANES):
            i = first + U64(lane)
            kept = (bits >> U64(LANE_BITS * lane)) & _LANE_MASK >= lowest
            out[i] = x[i] * (scale if kept else _ZERO)
    for draw in range(max(begin, whole), end):
        bits = child(key, U64(draw))
        for lane in range(x.size - draw * LANES):
            kept = (bits >> U64(LANE_BITS * lane)) & _LANE_MASK >= lowest
            out[draw * LANES + lane] = x[draw * LANES + lane] * (scale if kept else _ZERO)
