"""Dropout keyed by identity, in numba: the mask is a hash of (key, position) and never stored."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import child

LANES = 4
"""Elements served by one 64-bit draw, 16 bits each."""
LANE_RANGE = 1 << 16
"""Values of a lane: probabilities are multiples of 2**-16."""


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
    size = x.size
    for word in range(begin, end):
        bits = child(key, np.uint64(word))
        first = word * LANES
        for lane in range(min(LANES, size - first)):
            kept = np.int64((bits >> np.uint64(16 * lane)) & np.uint64(LANE_RANGE - 1)) >= threshold
            out[first + lane] = x[first + lane] * scale if kept else np.float32(0)
