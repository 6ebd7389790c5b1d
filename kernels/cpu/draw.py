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
"""The identity 0..n-1: shuffled for one row, then put back. Longer lists go through a hash."""

_SHUFFLE_SLOTS = 4096
_GOLDEN = np.uint64(GOLDEN)


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
    """Turn the draws of every row into the positions that its swaps leave in front."""
    at = 0
    for row in range(len(degrees)):
        if degrees[row] > len(shuffle):
            _swap_in_hash(draws[at : at + fanout], positions[at : at + fanout])
        else:
            for i in range(fanout):
                j = draws[at + i]
                positions[at + i] = shuffle[j]
                shuffle[j] = shuffle[i]  # what stands at i now is never asked for again: later draws are above i
            for i in range(fanout):
                shuffle[draws[at + i]] = draws[at + i]
        at += fanout


@njit(nogil=True, cache=True)
def _swap_in_hash(draws: I64Array, positions: I64Array) -> None:
    num_slots = 4
    while num_slots < 2 * len(draws):
        num_slots *= 2
    held, value = np.full(num_slots, -1, np.int64), np.empty(num_slots, np.int64)
    for i in range(len(draws)):
        slot_i, slot_j = _find(held, i), _find(held, draws[i])
        at_i = value[slot_i] if held[slot_i] == i else np.int64(i)
        positions[i] = value[slot_j] if held[slot_j] == draws[i] else draws[i]
        held[slot_j], value[slot_j] = draws[i], at_i


@njit(nogil=True, cache=True)
def _find(held: I64Array, position: int) -> np.int64:
    """Slot that holds `position`, or the free one where it belongs (linear probing, at most half full)."""
    slot = np.int64((np.uint64(position) * _GOLDEN) >> np.uint64(32)) & (len(held) - 1)
    while held[slot] != position and held[slot] != -1:
        slot = (slot + 1) & (len(held) - 1)
    return slot
