"""Super-batch bodies: unique nodes of each batch, and the degree classifier (GARDEN §IV-D, Algorithm 1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.stamps import StampTable
from kernels.mfg import IdArray

I64Array = npt.NDArray[np.int64]


def unique_per_batch(nodes: IdArray, batch_ptr: I64Array, *, stamps: StampTable) -> tuple[IdArray, I64Array, I64Array]:
    """As `kernels.reference.unique_per_batch`, through a stamp table over all nodes."""
    uniq, uniq_ptr, inverse = np.empty_like(nodes), np.zeros_like(batch_ptr), np.empty(len(nodes), np.int64)
    _unique(nodes, batch_ptr, stamps.entries, stamps.take(len(batch_ptr)), uniq, uniq_ptr, inverse)
    return uniq[: uniq_ptr[-1]], uniq_ptr, inverse


@njit(nogil=True, cache=True)
def _unique(
    nodes: IdArray,
    batch_ptr: I64Array,
    entries: I64Array,
    stamp: int,
    uniq: IdArray,
    uniq_ptr: I64Array,
    inverse: I64Array,
) -> None:
    end = np.int64(0)
    for batch in range(len(batch_ptr) - 1):
        oldest = (stamp + batch) << 32
        for i in range(batch_ptr[batch], batch_ptr[batch + 1]):
            v = nodes[i]
            if entries[v] < oldest:
                entries[v] = oldest | (end - uniq_ptr[batch])
                uniq[end] = v
                end += 1
            inverse[i] = entries[v] - oldest
        uniq_ptr[batch + 1] = end


def full_limit(fanout: int, replace: bool) -> int:
    """Greatest degree at which a node keeps its list as it is (a full node)."""
    if fanout < 0:
        return int(np.iinfo(np.int64).max)
    return 0 if replace else fanout


def classify_by_degree(
    uniq: IdArray, uniq_ptr: I64Array, degree_U: I64Array, fanout: int, *, replace: bool = False
) -> tuple[IdArray, I64Array, I64Array]:
    """As `kernels.reference.classify_by_degree`; a thread's running counts stand in for the scan."""
    classified, permutation = np.empty_like(uniq), np.empty(len(uniq), np.int64)
    bound = np.empty(len(uniq_ptr) - 1, np.int64)
    _classify(uniq, uniq_ptr, degree_U, full_limit(fanout, replace), classified, permutation, bound)
    return classified, permutation, bound


@njit(nogil=True, cache=True)
def _classify(
    uniq: IdArray,
    uniq_ptr: I64Array,
    degree_U: I64Array,
    limit: int,
    classified: IdArray,
    permutation: I64Array,
    bound: I64Array,
) -> None:
    for batch in range(len(uniq_ptr) - 1):
        full = np.int64(uniq_ptr[batch])
        drawn = full
        for t in range(uniq_ptr[batch], uniq_ptr[batch + 1]):
            drawn += degree_U[t] <= limit
        bound[batch] = drawn
        for t in range(uniq_ptr[batch], uniq_ptr[batch + 1]):
            is_full = degree_U[t] <= limit
            out = full if is_full else drawn
            classified[out] = uniq[t]
            permutation[out] = t
            full += is_full
            drawn += not is_full
