"""Which nodes a full-neighbor hop needs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.mfg import IdArray


@njit(nogil=True, cache=True)
def mark_neighbors(
    indptr: npt.NDArray[np.int64], indices: IdArray, nodes: IdArray, marked_N: npt.NDArray[np.bool_]
) -> None:
    """Set `marked_N` for each of `nodes` and for all their in-neighbors."""
    for v in nodes:
        marked_N[v] = True
        for e in range(indptr[v], indptr[v + 1]):
            marked_N[indices[e]] = True
