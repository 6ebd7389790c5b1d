"""Relabel: global neighbor ids to local source positions, by first appearance after the destinations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import prefetch
from kernels.cpu.stamps import StampTable
from kernels.mfg import IdArray, SampleTooLargeError

I64Array = npt.NDArray[np.int64]

# Edges ahead whose table entries are asked for (measured: half as far costs a fifth, twice as far gains nothing).
_AHEAD = 128
_MAX_LOCAL = 2**31 - 1


def relabel(
    uniq: IdArray, uniq_ptr: I64Array, neighbors: IdArray, edge_ptr: I64Array, *, stamps: StampTable
) -> tuple[IdArray, I64Array, npt.NDArray[np.int32]]:
    """As `kernels.reference.relabel`, through a stamp table over all nodes; int32 `neighbors` are overwritten.

    Raises
    ------
    SampleTooLargeError
        If a batch may have more sources than an int32 counts.
    """
    most = np.minimum(np.diff(uniq_ptr) + np.diff(edge_ptr), len(stamps.entries))
    if most.max(initial=0) > _MAX_LOCAL:
        raise SampleTooLargeError(
            f"a hop of up to {most.max()} sources does not fit int32: use a smaller batch_size or fanouts"
        )
    # One more than there can be sources: the loop stores each neighbor before it knows whether it is new.
    src, src_ptr = np.empty(most.sum() + 1, uniq.dtype), np.zeros_like(uniq_ptr)
    local: Any = neighbors if neighbors.dtype == np.int32 else np.empty(len(neighbors), np.int32)
    stamp = stamps.take(len(edge_ptr))
    _relabel(uniq, uniq_ptr, neighbors, edge_ptr, stamps.entries, stamp, src, src_ptr, local)
    return src[: src_ptr[-1]], src_ptr, local


@njit(nogil=True, cache=True)
def _relabel(
    uniq: IdArray,
    uniq_ptr: I64Array,
    neighbors: IdArray,
    edge_ptr: I64Array,
    entries: I64Array,
    stamp: int,
    src: IdArray,
    src_ptr: I64Array,
    local: npt.NDArray[np.int32],
) -> None:
    end = np.int64(0)
    for batch in range(len(edge_ptr) - 1):
        oldest = fresh = (stamp + batch) << 32
        for i in range(uniq_ptr[batch], uniq_ptr[batch + 1]):
            entries[uniq[i]] = fresh
            src[end] = uniq[i]
            fresh += 1
            end += 1
        last = edge_ptr[batch + 1] - 1
        for e in range(edge_ptr[batch], edge_ptr[batch + 1]):
            prefetch(entries, neighbors[min(e + _AHEAD, last)])
            v = neighbors[e]
            # Without a branch: whether a neighbor is new is a coin toss that no predictor learns.
            is_new = entries[v] < oldest
            entry = fresh if is_new else entries[v]
            entries[v] = entry
            src[end] = v
            local[e] = entry - oldest
            fresh += is_new
            end += is_new
        src_ptr[batch + 1] = end
