"""The greedy under a byte budget against plain loops, fractions and exhaustive search."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage.cache.knapsack import density_order, fill

SMALL_ITEMS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=9)


def columns(items: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    value, size = np.array(items, np.int64).reshape(-1, 2).T
    return value, size


def plain_fill(size: list[int], budget: int) -> list[int]:
    taken = []
    for position, held in enumerate(size):
        if held <= budget:
            taken.append(position)
            budget -= held
    return taken


@given(
    st.lists(st.tuples(st.integers(0, 2**62), st.integers(1, 2**55)) | st.tuples(st.integers(0, 9), st.integers(1, 9)))
)
def test_order_is_that_of_the_fractions(items: list[tuple[int, int]]) -> None:
    exact = sorted(range(len(items)), key=lambda i: -Fraction(*items[i]))
    assert density_order(*columns(items)).tolist() == exact


def test_order_separates_neighboring_fractions_that_floats_confuse() -> None:
    size = np.array([2**40 + 1, 2**40 + 2], np.int64)
    value = size - 1  # 1 - 1/size: the larger size is denser, by 2**-80
    assert value[0] / size[0] == value[1] / size[1]
    assert density_order(value, size).tolist() == [1, 0]


@given(st.lists(st.integers(1, 50)), st.integers(0, 300))
def test_fill_is_the_plain_loop(size: list[int], budget: int) -> None:
    assert fill(np.array(size, np.int64), budget).tolist() == plain_fill(size, budget)


def test_fill_takes_smaller_items_after_one_that_does_not_fit() -> None:
    assert fill(np.array([4, 9, 3, 8, 2, 1]), 10).tolist() == [0, 2, 4, 5]


@given(SMALL_ITEMS)
def test_value_never_falls_as_the_budget_grows(items: list[tuple[int, int]]) -> None:
    value, size = columns(items)
    order = density_order(value, size)
    taken_value = [value[order][fill(size[order], budget)].sum() for budget in range(size.sum() + 2)]
    assert (np.diff(taken_value) >= 0).all()
