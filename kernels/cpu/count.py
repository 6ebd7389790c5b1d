"""Access counting for the profile stage."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.mfg import IdArray


def count_accesses(counts_N: npt.NDArray[np.integer], ids: IdArray) -> None:
    """Add one to `counts_N[v]` for every `v` in `ids`, repeats included, in place.

    Threads must not share `counts_N`.
    """
    _count(counts_N, ids)


@njit(nogil=True, cache=True)
def _count(counts_N: npt.NDArray[np.integer], ids: IdArray) -> None:
    for v in ids:
        counts_N[v] += 1
