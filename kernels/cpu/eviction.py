"""Replacement policies over equal rows: each replays accesses one by one, counts hits, and keeps its state in arrays.

A policy object is made for N nodes and C slots and takes its accesses in pieces. A row that is missed is admitted.
Those here go by when rows were read; those of `kernels.cpu.frequency` by how often, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.mfg import IdArray

I32Array = npt.NDArray[np.int32]
I64Array = npt.NDArray[np.int64]
_NONE = -1


class LruCache:
    """Least recently used: a list of slots, the one just used at its head."""

    def __init__(self, num_nodes: int, capacity: int) -> None:
        self._slot_N = np.full(num_nodes, _NONE, np.int32)
        self._node_C = np.full(capacity, _NONE, np.int32)
        # Entry `capacity` is the list's anchor: its next is the head, its previous the tail.
        self._next = np.full(capacity + 1, capacity, np.int32)
        self._prev = np.full(capacity + 1, capacity, np.int32)
        self._used = np.zeros(1, np.int64)

    def access(self, nodes: IdArray) -> int:
        """Access nodes in order; returns the hits."""
        return int(_lru(nodes, self._slot_N, self._node_C, self._next, self._prev, self._used))


@njit(nogil=True, cache=True)
def unlink(slot: int, next_slot: I32Array, prev_slot: I32Array) -> None:
    """Take a slot out of a list."""
    next_slot[prev_slot[slot]] = next_slot[slot]
    prev_slot[next_slot[slot]] = prev_slot[slot]


@njit(nogil=True, cache=True)
def _push_front(slot: int, anchor: int, next_slot: I32Array, prev_slot: I32Array) -> None:
    head = next_slot[anchor]
    next_slot[slot], prev_slot[slot] = head, anchor
    prev_slot[head], next_slot[anchor] = slot, slot


@njit(nogil=True, cache=True)
def _lru(
    nodes: IdArray, slot_N: I32Array, node_C: I32Array, next_slot: I32Array, prev_slot: I32Array, used: I64Array
) -> int:
    capacity, hits = len(node_C), 0
    if capacity == 0:
        return 0
    for v in nodes:
        slot = slot_N[v]
        if slot != _NONE:
            hits += 1
            unlink(slot, next_slot, prev_slot)
        elif used[0] < capacity:
            slot = used[0]
            used[0] += 1
        else:
            slot = prev_slot[capacity]
            unlink(slot, next_slot, prev_slot)
            slot_N[node_C[slot]] = _NONE
        slot_N[v], node_C[slot] = slot, v
        _push_front(slot, capacity, next_slot, prev_slot)
    return hits


class ClockCache:
    """CLOCK (Corbató, 1968): a hand passes over the slots, clears their marks and evicts the first without one."""

    def __init__(self, num_nodes: int, capacity: int) -> None:
        self._slot_N = np.full(num_nodes, _NONE, np.int32)
        self._node_C = np.full(capacity, _NONE, np.int32)
        self._marked_C = np.zeros(capacity, np.bool_)
        self._hand = np.zeros(1, np.int64)

    def access(self, nodes: IdArray) -> int:
        """Access nodes in order; returns the hits."""
        return int(_clock(nodes, self._slot_N, self._node_C, self._marked_C, self._hand))


@njit(nogil=True, cache=True)
def _clock(nodes: IdArray, slot_N: I32Array, node_C: I32Array, marked_C: npt.NDArray[np.bool_], hand: I64Array) -> int:
    capacity, hits = len(node_C), 0
    if capacity == 0:
        return 0
    for v in nodes:
        slot = slot_N[v]
        if slot != _NONE:
            hits += 1
            marked_C[slot] = True
            continue
        while marked_C[hand[0]]:
            marked_C[hand[0]] = False
            hand[0] = (hand[0] + 1) % capacity
        slot = hand[0]
        hand[0] = (slot + 1) % capacity
        if node_C[slot] != _NONE:
            slot_N[node_C[slot]] = _NONE
        slot_N[v], node_C[slot] = slot, v
    return hits


class SieveCache:
    """SIEVE (Zhang et al., NSDI 2024): a queue that hits only mark; the hand moves from its old end to its new one."""

    def __init__(self, num_nodes: int, capacity: int) -> None:
        self._slot_N = np.full(num_nodes, _NONE, np.int32)
        self._node_C = np.full(capacity, _NONE, np.int32)
        self._marked_C = np.zeros(capacity, np.bool_)
        self._next = np.full(capacity + 1, capacity, np.int32)
        self._prev = np.full(capacity + 1, capacity, np.int32)
        self._state = np.array([0, _NONE], np.int64)  # slots in use, and the hand

    def access(self, nodes: IdArray) -> int:
        """Access nodes in order; returns the hits."""
        state = (self._slot_N, self._node_C, self._marked_C, self._next, self._prev, self._state)
        return int(_sieve(nodes, *state))


@njit(nogil=True, cache=True)
def _sieve(
    nodes: IdArray,
    slot_N: I32Array,
    node_C: I32Array,
    marked_C: npt.NDArray[np.bool_],
    next_slot: I32Array,
    prev_slot: I32Array,
    state: I64Array,
) -> int:
    capacity, hits = len(node_C), 0
    if capacity == 0:
        return 0
    for v in nodes:
        slot = slot_N[v]
        if slot != _NONE:
            hits += 1
            marked_C[slot] = True
            continue
        if state[0] < capacity:
            slot = state[0]
            state[0] += 1
        else:
            slot = state[1] if state[1] != _NONE else prev_slot[capacity]
            while marked_C[slot]:
                marked_C[slot] = False
                slot = prev_slot[slot]
                if slot == capacity:
                    slot = prev_slot[capacity]
            state[1] = prev_slot[slot] if prev_slot[slot] != capacity else _NONE
            unlink(slot, next_slot, prev_slot)
            slot_N[node_C[slot]] = _NONE
        slot_N[v], node_C[slot], marked_C[slot] = slot, v, False
        _push_front(slot, capacity, next_slot, prev_slot)
    return hits
