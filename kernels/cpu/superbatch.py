"""Super-batch bodies: the stamp table, unique nodes a batch, and the degree classifier (GARDEN §IV-D)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.mfg import IdArray

_MAX_STAMP = 2**31 - 1


class StampTable:
    """Local id of each node in the set being numbered: 8 bytes a node, never cleared between sets.

    The high half of an entry is the stamp of the set that wrote it, so raising the stamp empties the table.
    """

    def __init__(self, num_nodes: int) -> None:
        self.entries = np.zeros(num_nodes, np.int64)
        self._last = 0

    def take(self, count: int) -> int:
        """First of `count` stamps that no entry holds."""
        if self._last + count > _MAX_STAMP:
            self.entries.fill(0)
            self._last = 0
        first = self._last + 1
        self._last += count
        return first


def unique_per_batch(
    nodes: IdArray, batch_ptr: npt.NDArray[np.int64], *, stamps: StampTable
) -> tuple[IdArray, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """As `kernels.reference.unique_per_batch`, through a stamp table over all nodes."""
    uniq, uniq_ptr = np.empty_like(nodes), np.zeros_like(batch_ptr)
    inverse = np.empty(len(nodes), np.int64)
    _unique(nodes, batch_ptr, stamps.entries, stamps.take(len(batch_ptr)), uniq, uniq_ptr, inverse)
    return uniq[: uniq_ptr[-1]], uniq_ptr, inverse


@njit(nogil=True, cache=True)
def _unique(
    nodes: IdArray,
    batch_ptr: npt.NDArray[np.int64],
    entries: npt.NDArray[np.int64],
    stamp: int,
    uniq: IdArray,
    uniq_ptr: npt.NDArray[np.int64],
    inverse: npt.NDArray[np.int64],
) -> None:
    end = np.int64(0)
    for batch in range(len(batch_ptr) - 1):
        start = end
        for i in range(batch_ptr[batch], batch_ptr[batch + 1]):
            entry = entries[nodes[i]]
            if entry >> 32 != stamp + batch:
                entry = (stamp + batch) << 32 | (end - start)
                entries[nodes[i]] = entry
                uniq[end] = nodes[i]
                end += 1
            inverse[i] = entry & 0xFFFFFFFF
        uniq_ptr[batch + 1] = end


def classify_by_degree(
    uniq: IdArray,
    uniq_ptr: npt.NDArray[np.int64],
    degree_U: npt.NDArray[np.int64],
    fanout: int,
    *,
    replace: bool = False,
) -> tuple[IdArray, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """As `kernels.reference.classify_by_degree`, in two sequential passes."""
    classified, permutation = np.empty_like(uniq), np.empty(len(uniq), np.int64)
    bound = np.empty(len(uniq_ptr) - 1, np.int64)
    _classify(uniq, uniq_ptr, degree_U, full_limit(fanout, replace), classified, permutation, bound)
    return classified, permutation, bound


def full_limit(fanout: int, replace: bool) -> int:
    """Greatest degree at which a node keeps its list as it is."""
    if fanout < 0:
        return np.iinfo(np.int64).max
    return 0 if replace else fanout


@njit(nogil=True, cache=True)
def _classify(
    uniq: IdArray,
    uniq_ptr: npt.NDArray[np.int64],
    degree_U: npt.NDArray[np.int64],
    limit: int,
    classified: IdArray,
    permutation: npt.NDArray[np.int64],
    bound: npt.NDArray[np.int64],
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
