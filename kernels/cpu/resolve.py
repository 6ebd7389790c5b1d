"""Where each requested row lives: device cache, host memory, or the staging array of rows that a group shares."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import popcount, prefetch
from kernels.mfg import IdArray

DEVICE, HOST, STAGED, DYNAMIC = 0, 1, 2, 3
"""Tiers in the order in which `gather_rows` is given their base addresses."""

_ONE = np.uint64(1)
_AHEAD = 16


@njit(nogil=True, cache=True)
def resolve_rows(
    bits: npt.NDArray[np.uint64],
    rank: npt.NDArray[np.uint32],
    ids: IdArray,
    tier_n: npt.NDArray[np.uint8],
    slot_n: npt.NDArray[np.int64],
    missed: npt.NDArray[np.int32],
) -> int:
    """Write where every id lives: its slot on the device if the rank map has one, else itself in host memory.

    Parameters
    ----------
    bits, rank
        Arrays of a `RankMap`.
    ids : (n,) int32 or int64
    tier_n, slot_n : (n,)
        Receive the tier and the slot.
    missed : (n + 1,)
        Receives the positions of the ids in host memory, ascending.

    Returns
    -------
    int
        Number of ids in host memory.
    """
    num_missed = 0
    for i in range(len(ids)):
        # No branch: hits and misses alternate without a pattern, and a wrong guess costs more than all of this.
        v = np.int64(ids[i])
        word, bit = bits[v >> 6], np.uint64(v & 63)
        hit = np.int64((word >> bit) & _ONE)
        slot = np.int64(rank[v >> 6]) + np.int64(popcount(word & ((_ONE << bit) - _ONE)))
        tier_n[i] = 1 - hit
        slot_n[i] = v + (slot - v) * hit
        missed[num_missed] = i
        num_missed += int(1 - hit)
    return num_missed


@njit(nogil=True, cache=True)
def stage_repeats(
    ids: IdArray,
    missed: npt.NDArray[np.int32],
    tier_n: npt.NDArray[np.uint8],
    slot_n: npt.NDArray[np.int64],
    first_N: npt.NDArray[np.int32],
    staged_ids: npt.NDArray[np.int64],
) -> int:
    """Give every host row that is requested more than once a slot in the staging array, in place.

    Parameters
    ----------
    ids : (n,) int32 or int64
        Requests of the whole group.
    missed : (m,) int32
        Positions of the requests to host memory, ascending.
    tier_n, slot_n : (n,)
        As `resolve_rows` wrote them.
    first_N : (N,) int32
        Scratch over all nodes, never cleared: an entry says where its node was missed first, and it counts
        only if that position was passed already and asks for that node (a sparse set, Briggs and Torczon 1993).
    staged_ids : (>= m // 2,) int64
        Receives the id of each staging slot, by first repetition.

    Returns
    -------
    int
        Number of staging slots.
    """
    num_staged = 0
    for j in range(len(missed)):
        prefetch(first_N, ids[missed[min(j + _AHEAD, len(missed) - 1)]])
        i = missed[j]
        v = ids[i]
        first = first_N[v]
        if not (0 <= first < i and ids[first] == v):
            first_N[v] = i
            continue
        if tier_n[first] == HOST:
            staged_ids[num_staged] = v
            tier_n[first] = STAGED
            slot_n[first] = num_staged
            num_staged += 1
        tier_n[i] = STAGED
        slot_n[i] = slot_n[first]
    return num_staged
