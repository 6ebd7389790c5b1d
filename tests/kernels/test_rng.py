from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from scipy import stats

from kernels.cpu import intrinsics
from kernels.rng import Purpose, bounded, child, mix64, permutation, stream_key, uniform_u64

WORD = st.integers(0, 2**64 - 1)


def _child(key: int, index: int) -> int:
    """splitmix64 in Python integers, as its authors print it."""
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def test_known_answers_of_splitmix64() -> None:
    # First outputs of the published generator from state 1234567.
    first = child(np.array([1234567], np.uint64), np.arange(3, dtype=np.uint64))
    assert first.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(WORD, WORD)
def test_child_is_one_word_everywhere(key: int, index: int) -> None:
    wide = child(np.array([key], np.uint64), np.array([index], np.uint64))
    assert int(wide[0]) == int(intrinsics.child(np.uint64(key), np.uint64(index))) == _child(key, index)


@given(WORD, WORD)
def test_bounded_is_the_high_word(bits: int, bound: int) -> None:
    assert int(bounded(np.array([bits], np.uint64), np.array([bound], np.uint64))[0]) == bits * bound >> 64


def test_a_draw_is_a_chain_over_its_identity() -> None:
    ids = np.array([5, 7, 5], np.int32)
    key = stream_key(Purpose.TRAIN, 3, 1, 2)
    draws = uniform_u64(key, ids, draw=4)
    assert draws.tolist() == [int(stream_key(Purpose.TRAIN, 3, 1, 2, v, 4)) for v in (5, 7, 5)]
    assert uniform_u64(key, ids.reshape(3, 1)).shape == (3, 1)
    assert uniform_u64(key, ids[:0]).shape == (0,)


@given(st.integers(-(2**70), 2**70))
def test_a_seed_counts_by_its_low_64_bits(seed: int) -> None:
    assert stream_key(Purpose.TRAIN, seed, 1) == stream_key(Purpose.TRAIN, seed % 2**64, 1)


def test_streams_differ_in_every_part_and_order_of_the_identity() -> None:
    identities = [(p, s, *rest) for p in Purpose for s in (0, 1, 2**63) for rest in ((), (0,), (1,), (0, 1), (1, 0))]
    assert len({int(stream_key(*identity)) for identity in identities}) == len(identities)


def test_mix64_has_avalanche() -> None:
    words = np.random.default_rng(0).integers(0, 2**64, 4000, dtype=np.uint64)
    for bit in range(64):
        flipped = np.bitwise_count(mix64(words) ^ mix64(words ^ np.uint64(1 << bit))).astype(float)
        # 4000 flips of 64 fair coins: the mean is within six standard errors of 32.
        assert abs(flipped.mean() - 32) < 6 * 4 / np.sqrt(4000)


def test_bits_of_neighboring_ids_are_uniform() -> None:
    draws = uniform_u64(stream_key(Purpose.TRAIN, 0), np.arange(1 << 16))
    for shift in (0, 28, 56):
        cells = np.bincount((draws >> np.uint64(shift) & np.uint64(255)).astype(int), minlength=256)
        assert stats.chisquare(cells).pvalue > 1e-3


@settings(max_examples=30)
@given(st.integers(0, 200), WORD)
def test_permutation_orders_everything(n: int, key: int) -> None:
    assert sorted(permutation(np.uint64(key), n)) == list(range(n))


def test_permutation_is_uniform() -> None:
    orders = [tuple(permutation(stream_key(Purpose.SHUFFLE, 0, i), 4)) for i in range(4800)]
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("word", [0, 1, 2**63, 2**64 - 1, 0x5555555555555555])
def test_popcount(word: int) -> None:
    @njit
    def count(w: np.uint64) -> Any:
        return intrinsics.popcount(w)

    assert count(np.uint64(word)) == word.bit_count()
