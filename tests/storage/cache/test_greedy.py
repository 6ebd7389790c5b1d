"""The greedy over bins of density against the loop over all candidates in exact order."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.greedy import Candidates, Rules, rank_bin, read_bytes
from storage.cache.greedy import BOTH, LISTS, ROWS, greedy, sums_by_rank


def candidates(counts: npt.ArrayLike, reads: npt.ArrayLike, degree: npt.ArrayLike, row_bytes: int) -> Candidates:
    count_N, reads_N, degree_N = (np.array(values, np.int64) for values in (counts, reads, degree))
    return Candidates(count_N, reads_N, degree_N, rules(5, row_bytes))


def rules(max_fanout: int, row_bytes: int = 7) -> Rules:
    return Rules(row_bytes, 4, 8, 3, 2, 1, max_fanout, 16)


def plain(of: Candidates, kinds: int, budget: int) -> tuple[list[int], list[int]]:
    items = []
    if kinds & ROWS:
        items += [(3 * int(count), of.rules.row_bytes, 0, v) for v, count in enumerate(of.feature_count_N)]
    if kinds & LISTS:
        for v, (reads, degree) in enumerate(zip(of.adjacency_count_N.tolist(), of.in_degree_N.tolist(), strict=True)):
            items.append((reads * (2 + read_bytes(degree, of.rules)) * (degree > 0), 8 + 4 * degree, 1, v))
    taken: tuple[list[int], list[int]] = [], []
    for value, size, kind, v in sorted(items, key=lambda item: -Fraction(item[0], item[1])):
        if value and size <= budget:
            budget -= size
            taken[kind].append(v)
    return sorted(taken[0]), sorted(taken[1])


@st.composite
def cases(draw: st.DrawFn) -> tuple[Candidates, int]:
    num_nodes = draw(st.integers(0, 30))
    few = st.lists(st.integers(0, 2) | st.integers(0, 1000), min_size=num_nodes, max_size=num_nodes)
    return candidates(draw(few), draw(few), draw(few), draw(st.integers(1, 60))), draw(st.integers(0, 4000))


@settings(deadline=None, max_examples=150)
@given(cases(), st.sampled_from([ROWS, LISTS, BOTH]), st.sampled_from([None, 1, 2, 5]))
def test_it_is_the_loop_in_exact_order(case: tuple[Candidates, int], kinds: int, window: int | None) -> None:
    of, budget = case
    taken = greedy(of, kinds, budget, window=window)
    assert (np.flatnonzero(taken.rows_N).tolist(), np.flatnonzero(taken.lists_N).tolist()) == plain(of, kinds, budget)


def test_many_nodes_go_through_threads_and_windows_alike() -> None:
    rng = np.random.default_rng(0)
    counts, reads = rng.poisson(np.geomspace(30, 0.01, 700_000), (2, 700_000))
    of = candidates(rng.permutation(counts), reads, rng.integers(0, 40, 700_000), 100)
    whole, narrow = (greedy(of, BOTH, 9_000_001, window=window) for window in (2_000_000, 1000))
    np.testing.assert_array_equal(whole.rows_N, narrow.rows_N)
    np.testing.assert_array_equal(whole.lists_N, narrow.lists_N)
    assert whole.value == narrow.value
    held = 100 * np.count_nonzero(whole.rows_N) + int((8 + 4 * of.in_degree_N[whole.lists_N]).sum())
    assert 9_000_001 - 12 < held <= 9_000_001


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4) | st.integers(0, 99), st.integers(0, 9)), max_size=30), st.integers(0, 35))
def test_sums_follow_the_rank(pairs: list[tuple[int, int]], k: int) -> None:
    rank_N, count_N = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
    order = [v for v in np.argsort(-rank_N, kind="stable") if rank_N[v] > 0][:k]
    assert sums_by_rank(rank_N, count_N, np.array([k, 0])).tolist() == [count_N[order].sum(), 0]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**62) | st.integers(0, 1 << 17), max_size=30), st.integers(1, 17))
def test_bins_of_ranks_ascend_without_gaps(ranks: list[int], digits: int) -> None:
    bins = [rank_bin(rank, digits) for rank in sorted(ranks)]
    assert bins == sorted(bins)
    assert all(rank_bin(rank, digits) == rank for rank in ranks if rank < 1 << digits)
    assert all(rank_bin(rank + 1, digits) - rank_bin(rank, digits) in (0, 1) for rank in ranks)


def test_one_huge_hub_leaves_the_others_their_order() -> None:
    """By leading digits of the largest all others would count alike, and the lowest ids would come first."""
    rank_N = np.concatenate([np.arange(20_000), [2**31 - 1]])
    found = sums_by_rank(rank_N, rank_N, np.array([1, 2, 101]))
    expected = np.cumsum(rank_N[::-1])[[0, 1, 100]]
    np.testing.assert_allclose(found - rank_N[-1], expected - rank_N[-1], rtol=1e-3)
    assert sums_by_rank(rank_N[:-1], rank_N[:-1], np.array([100])) == rank_N[-101:-1].sum()


@pytest.mark.parametrize(
    ("degree", "fanout", "expected"), [(0, 5, 0), (1, 5, 32), (3, 5, 32), (100, 5, 96), (8, -1, 48)]
)
def test_reads_move_whole_lines(degree: int, fanout: int, expected: int) -> None:
    assert read_bytes(degree, rules(fanout)) == expected


def test_densities_of_one_bin_are_told_apart() -> None:
    # A search that had ended within a bin went on from that bin's upper end: it took twice, and wrote out of bounds.
    rng = np.random.default_rng(0)
    for _ in range(400):
        num_nodes, window = int(rng.integers(8, 60)), int(rng.integers(1, 9))
        degree, density = rng.integers(1, 13, num_nodes), rng.integers(1024, 1060, num_nodes)
        of = candidates([0] * num_nodes, [0] * num_nodes, degree, 7)
        moved = np.array([2 + read_bytes(length, of.rules) for length in degree.tolist()])
        of = of._replace(adjacency_count_N=density * (8 + 4 * degree) // moved)
        budget = int(rng.integers(0, 34 * num_nodes))
        assert np.flatnonzero(greedy(of, LISTS, budget, window=window).lists_N).tolist() == plain(of, LISTS, budget)[1]
