"""How many distinct values there are, about, in a few kilobytes (HyperLogLog; Flajolet et al. 2007)."""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

_jit = numba.njit(nogil=True, cache=True)

_INDEX_BITS = 14
_REGISTERS = 1 << _INDEX_BITS
_ALPHA = 0.7213 / (1 + 1.079 / _REGISTERS)


class DistinctSketch:
    """Estimates the number of distinct hashes that were added, to about one percent."""

    def __init__(self) -> None:
        self._largest_R = np.zeros(_REGISTERS, np.uint8)

    def add(self, hashes: npt.NDArray[np.uint64]) -> None:
        """Add hashes, in which every bit of a value must have reached every bit."""
        _note(self._largest_R, hashes)

    def estimate(self) -> int:
        """Number of distinct hashes, about."""
        raw = _ALPHA * _REGISTERS**2 / float(np.sum(2.0 ** -self._largest_R.astype(np.float64)))
        empty = int(np.count_nonzero(self._largest_R == 0))
        if raw <= 2.5 * _REGISTERS and empty:
            return round(_REGISTERS * math.log(_REGISTERS / empty))
        return round(raw)


@_jit
def _note(largest_R: npt.NDArray[np.uint8], hashes: npt.NDArray[np.uint64]) -> None:
    """Keep in each register the longest run of zeros, and one, that hashes of its index begin with."""
    for i in range(len(hashes)):
        index = hashes[i] >> np.uint64(64 - _INDEX_BITS)
        rest = hashes[i] << np.uint64(_INDEX_BITS)
        run = 1
        while run <= 64 - _INDEX_BITS and not rest >> np.uint64(63):
            rest <<= np.uint64(1)
            run += 1
        largest_R[index] = max(largest_R[index], np.uint8(run))
