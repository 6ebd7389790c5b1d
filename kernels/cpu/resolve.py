"""Where each requested row lives: device cache, host memory, or the staging array of rows that a group shares."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import prefetch, slot_of
from kernels.mfg import IdArray

DEVICE, HOST, STAGED = 0, 1, 2
"""Tiers in the order in which `gather_rows` is given their base addresses."""

_AHEAD = 16


@njit(nogil=True, cache=True)
def resolve_rows(
    bits: npt.NDArray[np.uint64],
    rank: npt.NDArray[np.uint32],
    ids: IdArray,
    tier_n: npt.NDArray[np.uint8],
    slot_n: npt.NDArray[np.int64],
) -> None:
    """Write where every id lives: its slot on the device if the rank map has one, else itself in host memory."""
    for i in range(len(ids)):
        slot = slot_of(bits, rank, ids[i])
        tier_n[i] = HOST if slot < 0 else DEVICE
        slot_n[i] = ids[i] if slot < 0 else slot


@njit(nogil=True, cache=True)
def stage_repeats(
    ids: IdArray,
    tier_n: npt.NDArray[np.uint8],
    slot_n: npt.NDArray[np.int64],
    first_N: npt.NDArray[np.int32],
    staged_ids: npt.NDArray[np.int64],
) -> int:
    """Give every host row that is requested more than once a slot in the staging array, in place.

    Parameters
    ----------
    ids : (n,) integer
        Requests of the whole group.
    tier_n, slot_n : (n,)
        As `resolve_rows` wrote them.
    first_N : (N,) int32
        Scratch over all nodes, never cleared: an entry says where its node was requested first, and it counts
        only if the request there is for that node and was passed already (a sparse set, Briggs and Torczon 1993).
    staged_ids : (>= n // 2,) int64
        Receives the id of each staging slot, by first repetition.

    Returns
    -------
    int
        Number of staging slots.
    """
    num_staged = 0
    last = len(ids) - 1
    for i in range(len(ids)):
        prefetch(first_N, ids[min(i + _AHEAD, last)])
        if tier_n[i] == DEVICE:
            continue
        first = first_N[ids[i]]
        if not (0 <= first < i and ids[first] == ids[i]):
            first_N[ids[i]] = i
            continue
        if tier_n[first] == HOST:
            staged_ids[num_staged] = ids[i]
            tier_n[first] = STAGED
            slot_n[first] = num_staged
            num_staged += 1
        tier_n[i] = STAGED
        slot_n[i] = slot_n[first]
    return num_staged
