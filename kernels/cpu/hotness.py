"""Scores of what a static cache misses, and where the rows of a dynamic cache lie."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import popcount
from kernels.mfg import IdArray

_ONE = np.uint64(1)


@njit(nogil=True, cache=True)
def add_scores(score_N: npt.NDArray[np.float64], ids: IdArray, missed: npt.NDArray[np.int32], weight: float) -> None:
    """Add a weight to the score of every id at the positions `missed`."""
    for i in missed:
        score_N[ids[i]] += weight


@njit(nogil=True, cache=True)
def score_replay(
    nodes: IdArray,
    is_static_N: npt.NDArray[np.bool_],
    is_dynamic_N: npt.NDArray[np.bool_],
    score_N: npt.NDArray[np.float64],
    weight: float,
) -> tuple[int, int]:
    """Score one mini-batch of a trace; returns the hits of the static and of the dynamic set."""
    static, dynamic = 0, 0
    for v in nodes:
        if is_static_N[v]:
            static += 1
        else:
            score_N[v] += weight
            dynamic += is_dynamic_N[v]
    return static, dynamic


@njit(nogil=True, cache=True)
def resolve_dynamic(
    bits: npt.NDArray[np.uint64],
    rank: npt.NDArray[np.uint32],
    slot_K: npt.NDArray[np.int32],
    ids: IdArray,
    missed: npt.NDArray[np.int32],
    tier: int,
    tier_n: npt.NDArray[np.uint8],
    slot_n: npt.NDArray[np.int64],
) -> int:
    """Send the ids that the dynamic cache holds there, and close the gaps in `missed`.

    Parameters
    ----------
    bits, rank
        Arrays of the `RankMap` of what the dynamic cache holds.
    slot_K : (K,) int32
        Slot of each of them, by rank.
    ids : (n,) int32 or int64
    missed : (m,) int32
        Positions that the static cache misses, ascending; those that are left come first afterwards.
    tier : int
        Number of the dynamic tier.
    tier_n, slot_n : (n,)
        Changed in place.

    Returns
    -------
    int
        How many are left.
    """
    left = 0
    for i in missed:
        v = np.int64(ids[i])
        word, bit = bits[v >> 6], np.uint64(v & 63)
        if (word >> bit) & _ONE:
            held = np.int64(rank[v >> 6]) + np.int64(popcount(word & ((_ONE << bit) - _ONE)))
            tier_n[i], slot_n[i] = tier, slot_K[held]
        else:
            missed[left] = i
            left += 1
    return left
