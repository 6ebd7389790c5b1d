"""One hop of inclusion probabilities: how likely a mini-batch that holds some nodes samples each neighbor of theirs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.mfg import IdArray


@njit(nogil=True, cache=True)
def absence_after_hop(
    indptr: npt.NDArray[np.int64],
    indices: IdArray,
    inclusion_N: npt.NDArray[np.float32],
    fanout: int,
    replace: bool,
    log_absence_N: npt.NDArray[np.float32],
) -> None:
    """Add to each node the logarithms of the probabilities that no list samples it.

    Parameters
    ----------
    indptr, indices
        Topology (CSC).
    inclusion_N : (N,) float32
        Probability that a mini-batch holds the node as a destination of this hop.
    fanout : int
        -1 takes all neighbors.
    replace : bool
        Draw with replacement.
    log_absence_N : (N,) float32
        Changed in place.
    """
    for v in range(len(inclusion_N)):
        degree = indptr[v + 1] - indptr[v]
        if degree == 0 or inclusion_N[v] == 0:
            continue
        drawn = 1.0
        if replace and fanout > 0:
            drawn = 1.0 - (1.0 - 1.0 / degree) ** fanout
        elif 0 <= fanout < degree:
            drawn = fanout / degree
        # A certain one would be -inf, and times 0 no number.
        step = np.float32(np.log1p(-min(inclusion_N[v] * drawn, 1 - 1e-7)))
        for e in range(indptr[v], indptr[v + 1]):
            log_absence_N[indices[e]] += step
