"""Replays against direct definitions, and the clairvoyant choice against exhaustive search."""

from __future__ import annotations

import threading
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.eviction import LruCache
from kernels.cpu.replay import belady_hits, previous_batch_hits, space_time_bound, static_hits
from kernels.cpu.top import top_ids, top_sum

NUM_NODES = 6
BATCHES = st.lists(st.lists(st.integers(0, NUM_NODES - 1), unique=True, max_size=5), min_size=1, max_size=6)


def packed(batches: list[list[int]]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    nodes = np.array([v for batch in batches for v in batch], np.int32)
    return nodes, np.cumsum([0, *map(len, batches)], dtype=np.int64)


def belady(batches: list[list[int]], capacity: int, first: int = 0) -> npt.NDArray[np.int64]:
    nodes, batch_ptr = packed(batches)
    hits_B = np.empty(len(batches), np.int64)
    belady_hits(nodes, batch_ptr, NUM_NODES, capacity, first, hits_B)
    return hits_B


def best_by_search(batches: list[list[int]], capacity: int, size: list[int] | None = None, value: int = 1) -> int:
    """Most hits of any contents: free before the first mini-batch, then out of what was held or has just been read."""
    size = size or [1] * NUM_NODES

    def fits(held: tuple[int, ...]) -> bool:
        return sum(size[v] for v in held) <= capacity

    def subsets(of: set[int]) -> list[frozenset[int]]:
        return [frozenset(held) for k in range(len(of) + 1) for held in combinations(sorted(of), k) if fits(held)]

    @cache
    def best(number: int, held: frozenset[int]) -> int:
        if number == len(batches):
            return 0
        hits = value * len(held & set(batches[number]))
        return hits + max(best(number + 1, after) for after in subsets(set(held) | set(batches[number])))

    return max(best(0, held) for held in subsets(set(range(NUM_NODES))))


@settings(deadline=None, max_examples=80)
@given(BATCHES, st.integers(0, 4))
def test_belady_is_the_best_there_is(batches: list[list[int]], capacity: int) -> None:
    assert belady(batches, capacity).sum() == best_by_search(batches, capacity)


@settings(deadline=None)
@given(BATCHES, st.integers(0, 4), st.integers(0, 5))
def test_mini_batches_before_the_first_counted_change_nothing(
    batches: list[list[int]], capacity: int, first: int
) -> None:
    first = min(first, len(batches))
    hits_B = belady(batches, capacity, first)
    assert hits_B[:first].sum() == 0
    if first < len(batches):
        np.testing.assert_array_equal(hits_B[first:], belady(batches[first:], capacity))


@settings(deadline=None, max_examples=60)
@given(BATCHES, st.integers(0, 14), st.lists(st.integers(1, 5), min_size=NUM_NODES, max_size=NUM_NODES))
def test_no_choice_of_lists_serves_more_than_the_bound(
    batches: list[list[int]], capacity: int, size: list[int]
) -> None:
    nodes, batch_ptr = packed(batches)
    hops = np.array([[len(batch)] * 2 for batch in batches], np.int64)
    bound = space_time_bound(nodes, batch_ptr, hops, np.array(size, np.int64), capacity, 0)
    assert bound >= best_by_search(batches, capacity, size, value=2) - 1e-9


@settings(deadline=None)
@given(BATCHES, st.sets(st.integers(0, NUM_NODES - 1)), st.integers(0, 4))
def test_hits_of_a_fixed_set_and_of_the_previous_batch(batches: list[list[int]], held: set[int], kept: int) -> None:
    nodes, batch_ptr = packed(batches)
    is_cached_N = np.array([v in held for v in range(NUM_NODES)])
    hits_B = np.empty(len(batches), np.int64)
    static_hits(nodes, batch_ptr, is_cached_N, hits_B)
    assert hits_B.tolist() == [len(held & set(batch)) for batch in batches]
    previous_batch_hits(nodes, batch_ptr, is_cached_N, kept, np.full(NUM_NODES, -1), hits_B)
    before: set[int] = set()
    for batch, hits in zip(batches, hits_B, strict=True):
        assert hits == len((held | before) & set(batch))
        before = set([v for v in batch if v not in held][:kept])


@settings(deadline=None, max_examples=40)
@given(BATCHES, st.integers(0, 4))
def test_no_policy_beats_belady(batches: list[list[int]], capacity: int) -> None:
    nodes, _ = packed(batches)
    assert LruCache(NUM_NODES, capacity).access(nodes) <= belady(batches, capacity).sum()


@settings(deadline=None)
@given(st.lists(st.integers(0, 3) | st.integers(0, 2**62), max_size=40), st.integers(0, 45), st.booleans())
def test_top_ids_are_the_largest_scores_and_ties_go_to_the_lower_id(scores: list[int], k: int, as_float: bool) -> None:
    score_N: npt.NDArray[Any] = np.array(scores, np.float64 if as_float else np.int64)
    order = sorted((v for v in range(len(scores)) if score_N[v] > 0), key=lambda v: (-score_N[v], v))
    assert top_ids(score_N, k).tolist() == sorted(order[:k])
    if not as_float and sum(scores) < 2**63:
        assert top_sum(score_N, k) == score_N[top_ids(score_N, k)].sum()


def test_scores_that_grow_meanwhile_never_overflow_the_result() -> None:
    score_N, stop = np.zeros(200_000), threading.Event()

    def grow() -> None:
        while not stop.is_set():
            score_N[:] += 1

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        for _ in range(100):
            ids = top_ids(score_N, 1000)
            assert len(ids) <= 1000
            assert (np.diff(ids) > 0).all()
    finally:
        stop.set()
        thread.join()
