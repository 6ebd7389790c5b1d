"""The greedy choice for graphs of any size: found by counting densities in bins, never by sorting all candidates."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu.greedy import (
    BINS,
    LEVEL_BITS,
    Candidates,
    Range,
    collect,
    histogram,
    rank_bin,
    ranked_sums,
    take_all,
    take_in_order,
)
from storage.cache.knapsack import density_order, fill

ROWS, LISTS, BOTH = 1, 2, 3
"""Kinds that a choice may take."""
_TOP = np.uint64(1 << 63)
_TOP_LEVEL = 3
_LEAST_WINDOW = 1 << 12
_WINDOW_SHARE = 32  # a candidate takes about 200 bytes while its window is sorted: 6 bytes a node
_LEAST_PART = 1 << 18
_MOST_BINS = 1 << 17

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Taken:
    """What a choice holds."""

    rows_N: BoolArray
    """(N,) whether each row is taken."""
    lists_N: BoolArray
    """(N,) whether each list is taken."""
    value: float
    """Value of everything taken."""


def greedy(candidates: Candidates, kinds: int, budget_bytes: int, *, window: int | None = None) -> Taken:
    """Take candidates by value density, each one that still fits: rows before lists, then the lower id, where equal.

    The result is that of a loop over all candidates in rank order. What surely fits is found by adding up the sizes in
    bins of ever finer density; only a window of candidates about the density where the room ends is put into order.

    Parameters
    ----------
    candidates : Candidates
    kinds : int
        `ROWS`, `LISTS` or `BOTH`.
    budget_bytes : int
        Bytes to fill.
    window : int, optional
        Most candidates that are put into order at once; more of one density (to 53 bits) are taken by id.

    Returns
    -------
    Taken
        2 bytes a node; as much again while it is made, and 6 for the window.
    """
    num_nodes = len(candidates.in_degree_N)
    window = max(_LEAST_WINDOW, num_nodes // _WINDOW_SHARE) if window is None else window
    search = _Search(candidates, kinds, window)
    room, upper = budget_bytes, _TOP
    while room > 0 and upper > 1:
        found = search.locate(room, upper)
        if found is None:
            break
        room = search.take(found, room, upper)
        upper = found.low
    return Taken(search.rows_N, search.lists_N, search.value)


@dataclass(frozen=True, slots=True)
class _Located:
    """Keys from `high` on fit as a whole; those of [low, high) are to be walked through."""

    high: np.uint64
    low: np.uint64
    bulk_bytes: int
    num_window: int


class _Search:
    """Passes over the candidates, in threads where there are many."""

    def __init__(self, candidates: Candidates, kinds: int, window: int) -> None:
        self._candidates, self._kinds, self._window = candidates, kinds, window
        num_nodes = len(candidates.in_degree_N)
        parts = max(1, min(len(os.sched_getaffinity(0)), num_nodes // _LEAST_PART))
        bounds = np.linspace(0, num_nodes, parts + 1).astype(np.int64).tolist()
        self._parts = list(pairwise(bounds))
        self.rows_N, self.lists_N = np.zeros(num_nodes, np.bool_), np.zeros(num_nodes, np.bool_)
        self.value = 0.0

    def locate(self, room: int, upper: np.uint64) -> _Located | None:
        """Find where the room ends; None if no candidate is left."""
        among, prefix, bulk = Range(self._kinds, np.uint64(1), upper, room), np.uint64(0), 0
        for level in range(_TOP_LEVEL, -1, -1):
            count, held = self._histogram(among, prefix, level)
            filled = np.flatnonzero(count)[::-1]
            if not len(filled):
                return None
            ends = bulk + np.cumsum(held[filled])
            crossing = int(np.searchsorted(ends, room, side="right"))
            bulk = int(ends[crossing - 1]) if crossing else bulk
            if crossing == len(filled):  # all that is left fits: only at the first level
                return _Located(np.uint64(1), np.uint64(1), bulk, 0)
            first = int(filled[crossing])
            if level and count[first] > self._window:
                prefix = (prefix << np.uint64(LEVEL_BITS)) | np.uint64(first)
                continue
            within = int(np.searchsorted(np.cumsum(count[filled[crossing:]]), self._window, side="right"))
            last = int(filled[crossing + max(1, within) - 1])
            number = int(count[filled[crossing : crossing + max(1, within)]].sum())
            # What is not below `upper` was decided before, though it may lie in the same bin.
            high = min(upper, _edge(prefix, first + 1, level))
            return _Located(high, max(np.uint64(1), _edge(prefix, last, level)), bulk, number)
        raise AssertionError("the last level always ends the search")

    def take(self, found: _Located, room: int, upper: np.uint64) -> int:
        """Take what was located; returns the room that is left."""
        bulk = Range(self._kinds, found.high, upper, room)
        if found.bulk_bytes:
            self.value += sum(self._map(lambda begin, end: take_all(self._candidates, bulk, begin, end, *self._taken)))
        room -= found.bulk_bytes
        if not found.num_window:
            return room
        among = Range(self._kinds, found.low, found.high, room)
        if found.num_window > self._window:
            room, value = take_in_order(self._candidates, among, room, *self._taken)
            self.value += value
            return room
        return self._take_window(among, room, found.num_window)

    def _take_window(self, among: Range, room: int, number: int) -> int:
        node, value, size = (np.empty(number, np.int64) for _ in range(3))
        num_rows, found = collect(self._candidates, among, node, value, size)
        assert found <= number  # else it has written past the end
        node, value, size = node[:found], value[:found], size[:found]
        order = density_order(value, size)
        taken = order[fill(size[order], room)]
        self.rows_N[node[taken[taken < num_rows]]] = True
        self.lists_N[node[taken[taken >= num_rows]]] = True
        self.value += float(value[taken].sum())
        return room - int(size[taken].sum())

    @property
    def _taken(self) -> tuple[BoolArray, BoolArray]:
        return self.rows_N, self.lists_N

    def _histogram(self, among: Range, prefix: np.uint64, level: int) -> tuple[Int64Array, Int64Array]:
        def of_part(begin: int, end: int) -> Int64Array:
            bins = np.zeros((2, BINS), np.int64)
            histogram(self._candidates, among, begin, end, prefix, level, bins[0], bins[1])
            return bins

        count, held = np.sum(self._map(of_part), axis=0)
        return count, held

    def _map(self, body: Callable[[int, int], Any]) -> list[Any]:
        if len(self._parts) == 1:
            return [body(*self._parts[0])]
        with ThreadPoolExecutor(len(self._parts), "plan") as pool:
            return list(pool.map(lambda part: body(*part), self._parts))


def _edge(prefix: np.uint64, chosen: int, level: int) -> np.uint64:
    """Least key of a bin."""
    return np.uint64(((int(prefix) << LEVEL_BITS) + chosen) << (level * LEVEL_BITS))


def sums_by_rank(rank_N: npt.NDArray[np.integer], count_N: npt.NDArray[np.integer], num_rows: Int64Array) -> Int64Array:
    """Sum of `count_N` over the first rows by `rank_N`, highest first, ties to the lower id, rank 0 never.

    Parameters
    ----------
    rank_N, count_N : (N,) integers
        Large ones are compared by their leading binary digits: 17, and 13 where the largest takes 31 bits.
    num_rows : (K,) int64

    Returns
    -------
    (K,) int64
    """
    sums_K = np.zeros(len(num_rows), np.int64)
    digits = _digits(int(rank_N.max(initial=0)))
    ranked_sums(rank_N, count_N, digits, np.asarray(num_rows, np.int64), sums_K)
    return sums_K


def _digits(largest: int) -> int:
    """Most leading binary digits that leave few enough different ranks."""
    digits = _MOST_BINS.bit_length() - 1
    while digits > 1 and rank_bin(largest, digits) >= _MOST_BINS:
        digits -= 1
    return digits
