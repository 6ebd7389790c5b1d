"""Replacement policies against plain ones that read like their papers."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.eviction import ClockCache, LruCache, SieveCache
from kernels.cpu.frequency import LfuCache, S3FifoCache


def plain_lru(accesses: list[int], capacity: int) -> int:
    held, hits = OrderedDict[int, None](), 0
    for v in accesses:
        if v in held:
            hits += 1
            held.move_to_end(v)
        elif capacity:
            if len(held) == capacity:
                held.popitem(last=False)
            held[v] = None
    return hits


def plain_lfu(accesses: list[int], capacity: int) -> int:
    uses, last, hits = dict[int, int](), dict[int, int](), 0
    for time, v in enumerate(accesses):
        if v in uses:
            hits += 1
            uses[v] += 1
        elif capacity:
            if len(uses) == capacity:
                del uses[min(uses, key=lambda u: (uses[u], last[u]))]
            uses[v] = 1
        last[v] = time
    return hits


def plain_clock(accesses: list[int], capacity: int) -> int:
    slots: list[int | None] = [None] * capacity
    marked, hand, hits = [False] * capacity, 0, 0
    for v in accesses:
        if v in slots:
            hits += 1
            marked[slots.index(v)] = True
        elif capacity:
            while marked[hand]:
                marked[hand] = False
                hand = (hand + 1) % capacity
            slots[hand] = v
            hand = (hand + 1) % capacity
    return hits


def plain_sieve(accesses: list[int], capacity: int) -> int:
    queue, marked, hand, hits = list[int](), dict[int, bool](), -1, 0  # the newest first; the hand is a position
    for v in accesses:
        if v in marked:
            hits += 1
            marked[v] = True
        elif capacity:
            if len(queue) == capacity:
                at = hand if hand >= 0 else len(queue) - 1
                while marked[queue[at]]:
                    marked[queue[at]] = False
                    at = at - 1 if at > 0 else len(queue) - 1
                del marked[queue[at]], queue[at]
                hand = at - 1
            queue.insert(0, v)
            marked[v] = False
            hand = hand + 1 if hand >= 0 else -1
    return hits


def plain_s3_fifo(accesses: list[int], capacity: int) -> int:
    most_small = min(capacity, max(1, round(0.1 * capacity)))
    most_main = capacity - most_small
    small, main, ghosts, uses, hits = deque[int](), deque[int](), deque[int](), dict[int, int](), 0

    def evict_main() -> None:
        while uses[main[0]]:
            uses[main[0]] -= 1
            main.rotate(-1)
        del uses[main.popleft()]

    def admit_to_main(v: int) -> None:
        while len(main) >= most_main:
            evict_main()
        main.append(v)
        uses[v] = 0

    for v in accesses:
        if v in uses:
            hits += 1
            uses[v] = min(3, uses[v] + 1)
        elif capacity == 0:
            continue
        elif v in ghosts and most_main:
            ghosts[ghosts.index(v)] = -1
            admit_to_main(v)
        elif len(small) >= most_small and len(main) < most_main:
            admit_to_main(v)
        else:
            while len(small) >= most_small:
                oldest = small.popleft()
                if uses[oldest] > 1 and most_main:
                    admit_to_main(oldest)
                else:
                    del uses[oldest]
                    if oldest in ghosts:
                        ghosts[ghosts.index(oldest)] = -1
                    ghosts.append(oldest)
                    if len(ghosts) > max(1, most_main):
                        ghosts.popleft()
            small.append(v)
            uses[v] = 0
    return hits


POLICIES = [
    (LruCache, plain_lru),
    (LfuCache, plain_lfu),
    (ClockCache, plain_clock),
    (SieveCache, plain_sieve),
    (S3FifoCache, plain_s3_fifo),
]
SKEWED = st.lists(st.integers(0, 5) | st.integers(0, 29), max_size=300)


@pytest.mark.parametrize(("policy", "plain"), POLICIES)
@settings(deadline=None, max_examples=60)
@given(accesses=SKEWED, capacity=st.integers(0, 24), cut=st.integers(0, 300))
def test_hits_are_those_of_the_plain_policy(
    policy: Callable[[int, int], LruCache],
    plain: Callable[[list[int], int], int],
    accesses: list[int],
    capacity: int,
    cut: int,
) -> None:
    cache, nodes = policy(30, capacity), np.array(accesses, np.int32)
    assert cache.access(nodes[:cut]) + cache.access(nodes[cut:]) == plain(accesses, capacity)


def test_lfu_counts_uses_beyond_its_first_table() -> None:
    accesses = [0] * 5000 + [1, 2, 1, 2, 0]
    assert LfuCache(3, 2).access(np.array(accesses, np.int64)) == plain_lfu(accesses, 2)
