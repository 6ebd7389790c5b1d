"""Relabel through a hash table of the batch instead of a table over all nodes: memory follows the batch, not the graph.

The integers are those of `kernels.reference.relabel`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import prefetch
from kernels.mfg import IdArray, SampleTooLargeError
from kernels.rng import GOLDEN

I64Array = npt.NDArray[np.int64]
I32Array = npt.NDArray[np.int32]

_GOLDEN = np.uint64(GOLDEN)
_AHEAD = 32
_MAX_LOCAL = 2**31 - 1
_LEAST_SLOTS = 1 << 8
SLOT_BYTES = 12
"""Of the table at most: an id and a local position. There are two to four slots for each node that may be found."""


def table_slots(most_nodes: int) -> int:
    """Slots of the table for so many nodes: a power of two, at most half full."""
    return max(_LEAST_SLOTS, 1 << (2 * max(1, most_nodes) - 1).bit_length())


def relabel_batch(uniq: IdArray, neighbors: IdArray, num_nodes: int) -> tuple[IdArray, I32Array]:
    """Number one batch's nodes: `uniq` first, then its neighbors in order of first appearance.

    Parameters
    ----------
    uniq : (n,) ids
        May hold a node twice; then the later one counts for nothing.
    neighbors : (m,) ids
    num_nodes : int
        Of the graph.

    Returns
    -------
    src : (s,) ids
    local : (m,) int32
        Position of each neighbor in `src`.

    Raises
    ------
    SampleTooLargeError
        If there may be more sources than an int32 counts.
    """
    most = min(len(uniq) + len(neighbors), num_nodes)
    if most > _MAX_LOCAL:
        raise SampleTooLargeError(f"a hop of up to {most} sources does not fit int32: use a smaller batch or fanouts")
    slots = table_slots(most)
    keys, places = np.full(slots, -1, uniq.dtype), np.empty(slots, np.int32)
    src: Any = np.empty(most + 1, uniq.dtype)
    local = np.empty(len(neighbors), np.int32)
    count = _number(uniq, neighbors, keys, places, src, local)
    src.resize(count, refcheck=False)  # what a view leaves unused would stay in memory
    return src, local


@njit(nogil=True, cache=True, inline="always")
def _first(key: int, slots: int) -> np.int64:
    mixed = np.uint64(key) * _GOLDEN
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(slots - 1))


@njit(nogil=True, cache=True)
def _number(uniq: IdArray, neighbors: IdArray, keys: IdArray, places: I32Array, src: IdArray, local: I32Array) -> int:
    end = 0
    slots = len(keys)
    for i in range(len(uniq)):
        slot = _first(uniq[i], slots)
        while keys[slot] != -1 and keys[slot] != uniq[i]:
            slot = (slot + 1) & (slots - 1)
        if keys[slot] == -1:
            keys[slot], places[slot] = uniq[i], end
            src[end] = uniq[i]
            end += 1
    for e in range(len(neighbors)):
        if e + _AHEAD < len(neighbors):
            ahead = _first(neighbors[e + _AHEAD], slots)
            prefetch(keys, ahead)
            prefetch(places, ahead)
        v = neighbors[e]
        slot = _first(v, slots)
        while keys[slot] != -1 and keys[slot] != v:
            slot = (slot + 1) & (slots - 1)
        if keys[slot] == -1:
            keys[slot], places[slot] = v, end
            src[end] = v
            end += 1
        local[e] = places[slot]
    return end
