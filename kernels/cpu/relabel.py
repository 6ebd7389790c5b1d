"""Relabel: global neighbor ids to local source positions, by first appearance after the destinations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import prefetch
from kernels.cpu.superbatch import StampTable
from kernels.mfg import IdArray

_AHEAD = 24


def relabel(
    uniq: IdArray,
    uniq_ptr: npt.NDArray[np.int64],
    neighbors: IdArray,
    edge_ptr: npt.NDArray[np.int64],
    *,
    stamps: StampTable,
) -> tuple[IdArray, npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """As `kernels.reference.relabel`, through a stamp table over all nodes."""
    most = np.minimum(np.diff(uniq_ptr) + np.diff(edge_ptr), len(stamps.entries))
    src, src_ptr = np.empty(most.sum(), uniq.dtype), np.zeros_like(uniq_ptr)
    local = np.empty(len(neighbors), np.int32)
    stamp = stamps.take(len(edge_ptr))
    _relabel(uniq, uniq_ptr, neighbors, edge_ptr, stamps.entries, stamp, src, src_ptr, local)
    return src[: src_ptr[-1]], src_ptr, local


@njit(nogil=True, cache=True)
def _relabel(
    uniq: IdArray,
    uniq_ptr: npt.NDArray[np.int64],
    neighbors: IdArray,
    edge_ptr: npt.NDArray[np.int64],
    entries: npt.NDArray[np.int64],
    stamp: int,
    src: IdArray,
    src_ptr: npt.NDArray[np.int64],
    local: npt.NDArray[np.int32],
) -> None:
    end = np.int64(0)
    for batch in range(len(edge_ptr) - 1):
        start = end
        high = (stamp + batch) << 32
        for i in range(uniq_ptr[batch], uniq_ptr[batch + 1]):
            src[end] = uniq[i]
            entries[uniq[i]] = high | (end - start)
            end += 1
        last = edge_ptr[batch + 1] - 1
        for e in range(edge_ptr[batch], edge_ptr[batch + 1]):
            prefetch(entries, neighbors[min(e + _AHEAD, last)])
            v = neighbors[e]
            entry = entries[v]
            if entry >> 32 != stamp + batch:
                entry = high | (end - start)
                entries[v] = entry
                src[end] = v
                end += 1
            local[e] = entry & 0xFFFFFFFF
        src_ptr[batch + 1] = end
