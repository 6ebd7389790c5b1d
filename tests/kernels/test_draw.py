"""The law of the draws: exact where it can be enumerated, tested against chance where it cannot."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kernels import reference
from kernels.cpu.draw import _swap_in_array, _swap_in_hash, draw_rows, new_shuffle, shuffle_rows
from kernels.mfg import IdArray
from kernels.rng import Purpose, child, stream_key

I64Array = npt.NDArray[np.int64]
SMALLEST_P = 1e-4  # seeds are fixed, so a test passes always or never


def _drawn(
    num_rows: int, degree: int, fanout: int, *identity: int, replace: bool = False, slots: int = 4096
) -> I64Array:
    """(num_rows, fanout) positions drawn for nodes 0..num_rows-1, all of one degree."""
    draws, positions = np.empty(num_rows * fanout, np.int64), np.empty(num_rows * fanout, np.int64)
    degrees = np.full(num_rows, degree)
    draw_rows(stream_key(Purpose.TRAIN, *identity), np.arange(num_rows), degrees, fanout, replace, draws)
    if replace:
        return draws.reshape(num_rows, fanout)
    shuffle = new_shuffle(slots)
    shuffle_rows(degrees, fanout, shuffle, draws, positions)
    assert np.array_equal(shuffle, new_shuffle(slots))  # put back
    return positions.reshape(num_rows, fanout)


def _inclusion_pvalue(positions: I64Array, degree: int) -> float:
    """Chi-square of how often each position is drawn; draws of a row exclude each other, which the variance counts."""
    num_rows, fanout = positions.shape
    p = fanout / degree
    counts = np.bincount(positions.ravel(), minlength=degree)
    spread = num_rows * p * (1 - p) * degree / (degree - 1)
    return float(stats.chi2.sf(((counts - num_rows * p) ** 2).sum() / spread, degree - 1))


@pytest.mark.parametrize(("degree", "fanout"), [(3, 2), (5, 2), (5, 4), (6, 3), (7, 4)])
def test_every_ordered_sample_comes_from_as_many_draws(degree: int, fanout: int) -> None:
    every = list(itertools.product(*(range(i, degree) for i in range(fanout))))
    draws = np.array(every).ravel()
    samples = {}
    for slots in (degree, degree - 1):  # in the array, in the hash
        positions = np.empty_like(draws)
        shuffle_rows(np.full(len(every), degree), fanout, new_shuffle(slots), draws, positions)
        samples[slots] = Counter(map(tuple, positions.reshape(-1, fanout).tolist()))
    traced = Counter(tuple(reference._trace_back(np.array(row), i) for i in range(fanout)) for row in every)
    assert samples[degree] == samples[degree - 1] == traced
    assert set(traced) == set(itertools.permutations(range(degree), fanout))
    assert len(set(traced.values())) == 1


@settings(deadline=None)
@given(st.integers(1, 150), st.integers(1, 60) | st.integers(61, 3000), st.integers(0, 2**64 - 1), st.booleans())
def test_array_hash_and_trace_back_agree(fanout: int, more: int, seed: int, replace: bool) -> None:
    degree = fanout + more
    in_array = _drawn(3, degree, fanout, seed, replace=replace)
    in_hash = _drawn(3, degree, fanout, seed, replace=replace, slots=0)  # or in an array of the list's length
    row_keys = child(np.asarray(stream_key(Purpose.TRAIN, seed))[None], np.arange(3, dtype=np.uint64))
    traced = [reference.draw_positions(key, degree, fanout, replace=replace) for key in row_keys]
    assert np.array_equal(in_array, in_hash)
    assert np.array_equal(in_array, traced)


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 60) | st.integers(61, 3000), st.integers(0, 2**64 - 1))
def test_hashes_of_either_width_and_an_array_agree_in_place_too(fanout: int, more: int, seed: int) -> None:
    draws, degree = np.empty(fanout, np.int64), fanout + more
    draw_rows(np.uint64(seed), np.zeros(1, np.int64), np.array([degree]), fanout, False, draws)
    in_array = np.empty_like(draws)
    _swap_in_array(draws, in_array, np.arange(degree, dtype=np.int32))
    hashes: tuple[tuple[IdArray, IdArray], ...] = (
        (np.full(2 * fanout, -1, np.int32), np.empty(2 * fanout, np.int32)),
        (np.full(2 * fanout, -1, np.int64), np.empty(2 * fanout, np.int64)),
    )
    for held, value in hashes:
        positions = draws.copy()
        _swap_in_hash(positions, positions, held, value)
        assert np.array_equal(positions, in_array)


@pytest.mark.parametrize(("degree", "fanout"), [(2, 1), (16, 15), (16, 3), (40, 5), (101, 100), (300, 10), (5000, 15)])
def test_inclusion_probabilities(degree: int, fanout: int) -> None:
    positions = _drawn(20_000, degree, fanout, 1)
    assert all(len(set(row)) == fanout for row in positions[:500].tolist())
    assert _inclusion_pvalue(positions, degree) > SMALLEST_P
    for i in {0, fanout // 2, fanout - 1}:  # each draw by itself is uniform too
        assert stats.chisquare(np.bincount(positions[:, i], minlength=degree)).pvalue > SMALLEST_P


@pytest.mark.full
def test_inclusion_probabilities_over_a_grid() -> None:
    grid = [(degree, fanout) for degree in (3, 8, 17, 33, 65, 129, 500) for fanout in range(1, min(degree, 70), 3)]
    pvalues = [_inclusion_pvalue(_drawn(20_000, degree, fanout, degree, fanout), degree) for degree, fanout in grid]
    assert stats.kstest(pvalues, "uniform").pvalue > SMALLEST_P  # the p-values themselves must be uniform


def test_a_biased_sampler_would_be_caught() -> None:
    # Reservoir sampling that forgets one candidate in the bound, as a published sampler did.
    degree, fanout = 16, 5
    rng = np.random.default_rng(0)
    rows = np.tile(np.arange(fanout), (20_000, 1))
    for candidate in range(fanout, degree):
        slot = rng.integers(0, candidate, len(rows))
        hit = slot < fanout
        rows[hit, slot[hit]] = candidate
    assert _inclusion_pvalue(rows, degree) < 1e-9


def test_ordered_samples_are_uniform() -> None:
    positions = _drawn(60_000, 6, 3, 2)
    _, counts = np.unique(positions, axis=0, return_counts=True)
    assert len(counts) == 120
    assert stats.chisquare(counts).pvalue > SMALLEST_P


def test_draws_with_replacement_are_uniform_and_independent() -> None:
    positions = _drawn(50_000, 7, 3, 3, replace=True)
    table = np.zeros((7, 7, 7), int)
    np.add.at(table, tuple(positions.T), 1)
    assert stats.chisquare(table.ravel()).pvalue > SMALLEST_P


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, 0, 0, 0), (0, 0, 0, 1)),  # hops
        ((0, 0, 0, 0), (0, 0, 1, 0)),  # batches
        ((0, 0, 0, 0), (0, 1, 0, 0)),  # epochs
        ((0, 0, 0, 0), (1, 0, 0, 0)),  # seeds
        ((0, 0, 1, 0), (0, 1, 0, 0)),  # batch for epoch
    ],
)
def test_streams_are_independent(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    table = np.zeros((8, 8), int)
    first, second = _drawn(30_000, 8, 4, *one), _drawn(30_000, 8, 4, *other)
    np.add.at(table, (first[:, 0], second[:, 0]), 1)
    assert stats.chisquare(table.ravel()).pvalue > SMALLEST_P
    overlap = (first[:, :, None] == second[:, None, :]).sum((1, 2))
    law = stats.hypergeom(8, 4, 4).pmf(np.arange(5)) * len(first)
    assert stats.chisquare(np.bincount(overlap, minlength=5), law).pvalue > SMALLEST_P


@pytest.mark.parametrize("distance", [1, 2, 64])
def test_nodes_are_independent(distance: int) -> None:
    first = _drawn(60_000, 8, 1, 4)[:, 0]
    table = np.zeros((8, 8), int)
    np.add.at(table, (first[:-distance:2], first[distance::2]), 1)
    assert stats.chisquare(table.ravel()).pvalue > SMALLEST_P
