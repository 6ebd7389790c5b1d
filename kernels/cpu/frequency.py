"""Replacement policies that weigh how often rows are read: LFU and S3-FIFO, as in `kernels.cpu.eviction`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.eviction import unlink
from kernels.mfg import IdArray

I32Array = npt.NDArray[np.int32]
I64Array = npt.NDArray[np.int64]
_NONE = -1


class LfuCache:
    """Least frequently used since admission, of those the least recently used; constant time (Shah et al., 2010)."""

    def __init__(self, num_nodes: int, capacity: int) -> None:
        self._slot_N = np.full(num_nodes, _NONE, np.int32)
        self._node_C = np.full(capacity, _NONE, np.int32)
        self._uses_C = np.zeros(capacity, np.int64)
        # The list of slots is ordered by uses, then by recency: the head is the last to go.
        self._next = np.full(capacity + 1, capacity, np.int32)
        self._prev = np.full(capacity + 1, capacity, np.int32)
        # Of the slots with one number of uses, the one nearest to the head.
        self._front_U = np.full(1024, _NONE, np.int32)
        self._used = np.zeros(1, np.int64)

    def access(self, nodes: IdArray) -> int:
        """Access nodes in order; returns the hits."""
        hits, begin = 0, 0
        while begin < len(nodes):
            state = (self._slot_N, self._node_C, self._uses_C, self._next, self._prev, self._front_U, self._used)
            done, found = _lfu(nodes[begin:], *state)
            begin, hits = begin + int(done), hits + int(found)
            if begin < len(nodes):  # a slot has as many uses as the table has entries
                self._front_U = np.concatenate([self._front_U, np.full_like(self._front_U, _NONE)])
        return hits


@njit(nogil=True, cache=True)
def _lfu(
    nodes: IdArray,
    slot_N: I32Array,
    node_C: I32Array,
    uses_C: I64Array,
    next_slot: I32Array,
    prev_slot: I32Array,
    front_U: I32Array,
    used: I64Array,
) -> tuple[int, int]:
    capacity, hits = len(node_C), 0
    if capacity == 0:
        return len(nodes), 0
    for i in range(len(nodes)):
        v = nodes[i]
        slot = slot_N[v]
        if slot != _NONE:
            if uses_C[slot] + 1 >= len(front_U):
                return i, hits
            hits += 1
            place = _lfu_take_out(slot, capacity, uses_C, next_slot, prev_slot, front_U)
            uses_C[slot] += 1
        else:
            if used[0] < capacity:
                slot = used[0]
                used[0] += 1
            else:
                slot = prev_slot[capacity]
                _lfu_take_out(slot, capacity, uses_C, next_slot, prev_slot, front_U)
                slot_N[node_C[slot]] = _NONE
            slot_N[v], node_C[slot], uses_C[slot] = slot, v, 1
            place = capacity
        uses = uses_C[slot]
        # Before the first of its own number; where there is none, before those with fewer uses.
        after = front_U[uses] if front_U[uses] != _NONE else place
        before = prev_slot[after]
        next_slot[slot], prev_slot[slot] = after, before
        next_slot[before], prev_slot[after] = slot, slot
        front_U[uses] = slot
    return len(nodes), hits


@njit(nogil=True, cache=True)
def _lfu_take_out(
    slot: int, capacity: int, uses_C: I64Array, next_slot: I32Array, prev_slot: I32Array, front_U: I32Array
) -> int:
    """Take a slot out of the list; returns the slot before which one use more belongs."""
    uses, after = uses_C[slot], next_slot[slot]
    front = front_U[uses]
    if front == slot:
        front = after if after != capacity and uses_C[after] == uses else _NONE
        front_U[uses] = front
    unlink(slot, next_slot, prev_slot)
    return int(front if front != _NONE else after)


class S3FifoCache:
    """S3-FIFO (Yang et al., SOSP 2023): a small queue that most rows only pass, a main one, a list of who passed."""

    SMALL_SHARE = 0.1

    def __init__(self, num_nodes: int, capacity: int) -> None:
        small = min(capacity, max(1, round(self.SMALL_SHARE * capacity)))
        main = capacity - small
        self._where_N = np.zeros(num_nodes, np.uint8)  # 0 nowhere, 1 small queue, 2 main queue, 3 passed (no row)
        self._uses_N = np.zeros(num_nodes, np.uint8)
        self._ghost_at_N = np.full(num_nodes, _NONE, np.int32)
        self._small = np.full(max(1, small), _NONE, np.int32)
        self._main = np.full(max(1, main), _NONE, np.int32)
        self._ghost = np.full(max(1, main), _NONE, np.int32)
        # Limit, first entry and length of each of the two queues, then the ghosts' next entry.
        self._state = np.array([small, 0, 0, main, 0, 0, 0], np.int64)

    def access(self, nodes: IdArray) -> int:
        """Access nodes in order; returns the hits."""
        queues = (self._small, self._main, self._ghost)
        return int(_s3_fifo(nodes, self._where_N, self._uses_N, self._ghost_at_N, *queues, self._state))


@njit(nogil=True, cache=True)
def _s3_fifo(
    nodes: IdArray,
    where_N: npt.NDArray[np.uint8],
    uses_N: npt.NDArray[np.uint8],
    ghost_at_N: I32Array,
    small: I32Array,
    main: I32Array,
    ghost: I32Array,
    state: I64Array,
) -> int:
    hits = 0
    if state[0] == 0:
        return 0
    for v in nodes:
        if where_N[v] == 1 or where_N[v] == 2:
            hits += 1
            uses_N[v] = min(3, uses_N[v] + 1)
            continue
        if where_N[v] == 3 and state[3] > 0:
            while state[5] >= state[3]:
                _s3_evict_main(where_N, uses_N, main, state)
            _s3_append(v, 2, main, 3, where_N, state)
        elif state[2] >= state[0] and state[5] < state[3]:  # not full yet: nothing has to go
            _s3_append(v, 2, main, 3, where_N, state)
        else:
            while state[2] >= state[0]:
                _s3_pass_on(where_N, uses_N, ghost_at_N, small, main, ghost, state)
            _s3_append(v, 1, small, 0, where_N, state)
        uses_N[v] = 0
    return hits


@njit(nogil=True, cache=True)
def _s3_append(v: int, where: int, queue: I32Array, at: int, where_N: npt.NDArray[np.uint8], state: I64Array) -> None:
    queue[(state[at + 1] + state[at + 2]) % len(queue)] = v
    state[at + 2] += 1
    where_N[v] = where


@njit(nogil=True, cache=True)
def _s3_pop(queue: I32Array, at: int, state: I64Array) -> int:
    v = queue[state[at + 1]]
    state[at + 1] = (state[at + 1] + 1) % len(queue)
    state[at + 2] -= 1
    return int(v)


@njit(nogil=True, cache=True)
def _s3_pass_on(
    where_N: npt.NDArray[np.uint8],
    uses_N: npt.NDArray[np.uint8],
    ghost_at_N: I32Array,
    small: I32Array,
    main: I32Array,
    ghost: I32Array,
    state: I64Array,
) -> None:
    """The oldest row of the small queue goes to the main one if it was used again, else only its name is kept."""
    v = _s3_pop(small, 0, state)
    if uses_N[v] > 1 and state[3] > 0:
        while state[5] >= state[3]:
            _s3_evict_main(where_N, uses_N, main, state)
        uses_N[v] = 0
        _s3_append(v, 2, main, 3, where_N, state)
        return
    old, at = ghost[state[6]], state[6]
    if old != _NONE and where_N[old] == 3 and ghost_at_N[old] == at:
        where_N[old] = 0
    ghost[at], ghost_at_N[v], where_N[v] = v, at, 3
    state[6] = (at + 1) % len(ghost)


@njit(nogil=True, cache=True)
def _s3_evict_main(
    where_N: npt.NDArray[np.uint8], uses_N: npt.NDArray[np.uint8], main: I32Array, state: I64Array
) -> None:
    """The oldest row of the main queue goes, unless it was used: then it queues again with one use less."""
    while True:
        v = _s3_pop(main, 3, state)
        if uses_N[v] == 0:
            where_N[v] = 0
            return
        uses_N[v] -= 1
        _s3_append(v, 2, main, 3, where_N, state)
