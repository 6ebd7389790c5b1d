"""Positions drawn from lists, many rows at a time: a partial Fisher-Yates shuffle of each, touching only its swaps.

Position i swaps with position j_i, uniform in [i, degree); what then stands in the first `fanout` positions is drawn.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import child, multiply_high
from kernels.mfg import IdArray
from kernels.rng import GOLDEN

I64Array = npt.NDArray[np.int64]
Shuffle: TypeAlias = npt.NDArray[np.int32]
"""The identity 0..n-1: shuffled for one row, then put back. Longer lists go through a scratch array or a hash."""

_SHUFFLE_SLOTS = 4096
_GOLDEN = np.uint64(GOLDEN)
_DENSE = 4
"""Where a list is at most so many times as long as its sample, an array of it takes less than a hash of the swaps."""
_INT32_END = 1 << 31


def new_shuffle(slots: int = _SHUFFLE_SLOTS) -> Shuffle:
    """Scratch for `shuffle_rows`; 16 KiB by default, so that it stays in L1."""
    return np.arange(slots, dtype=np.int32)


@njit(nogil=True, cache=True)
def draw_rows(
    stream_key: np.uint64, nodes: IdArray, degrees: I64Array, fanout: int, replace: bool, draws: I64Array
) -> None:
    """Write the `fanout` draws j_i of each row, row after row; with replacement they lie in [0, degree)."""
    at = 0
    for row in range(len(nodes)):
        key = child(stream_key, np.uint64(nodes[row]))
        for i in range(fanout):
            low = 0 if replace else i
            draws[at + i] = low + np.int64(multiply_high(child(key, np.uint64(i)), np.uint64(degrees[row] - low)))
        at += fanout


@njit(nogil=True, cache=True)
def shuffle_rows(degrees: I64Array, fanout: int, shuffle: Shuffle, draws: I64Array, positions: I64Array) -> None:
    """Turn the draws of every row into the positions that its swaps leave in front.

    Lists longer than `shuffle` take at most 16 bytes a draw of scratch (twice that from 2**31 entries on), and may have
    their positions written over their draws.
    """
    at = 0
    for row in range(len(degrees)):
        degree, drawn, out = degrees[row], draws[at : at + fanout], positions[at : at + fanout]
        if degree > len(shuffle):
            if degree >= _INT32_END:
                _swap_in_hash(drawn, out, np.full(2 * fanout, -1, np.int64), np.empty(2 * fanout, np.int64))
            elif degree <= _DENSE * fanout:
                _swap_in_array(drawn, out, _identity(degree))
            else:
                _swap_in_hash(drawn, out, np.full(2 * fanout, -1, np.int32), np.empty(2 * fanout, np.int32))
        else:
            _swap_in_array(drawn, out, shuffle)
            for i in range(fanout):
                shuffle[drawn[i]] = drawn[i]
        at += fanout


@njit(nogil=True, cache=True)
def _identity(length: int) -> Shuffle:
    shuffle = np.empty(length, np.int32)
    for i in range(length):
        shuffle[i] = i
    return shuffle


@njit(nogil=True, cache=True)
def _swap_in_array(draws: I64Array, positions: I64Array, shuffle: Shuffle) -> None:
    for i in range(len(draws)):
        j = draws[i]
        positions[i] = shuffle[j]
        shuffle[j] = shuffle[i]  # what stands at i now is never asked for again: later draws are above i


@njit(nogil=True, cache=True)
def _swap_in_hash(draws: I64Array, positions: I64Array, held: IdArray, value: IdArray) -> None:
    """The same, where only the positions that swaps wrote are held: their numbers, or -1, and what stands there."""
    for i in range(len(draws)):
        j = draws[i]
        slot_i, slot_j = _find(held, i), _find(held, j)
        at_i = value[slot_i] if held[slot_i] == i else i
        positions[i] = value[slot_j] if held[slot_j] == j else j
        held[slot_j], value[slot_j] = j, at_i


@njit(nogil=True, cache=True)
def _find(held: IdArray, position: int) -> np.int64:
    """Slot that holds `position`, or the free one where it belongs (linear probing, at most half full)."""
    mixed = (np.uint64(position) * _GOLDEN) >> np.uint64(32)
    slot = np.int64((mixed * np.uint64(len(held))) >> np.uint64(32))
    while held[slot] != position and held[slot] != -1:
        slot += 1
        if slot == len(held):
            slot = np.int64(0)
    return slot
