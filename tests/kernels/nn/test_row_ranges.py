"""Sharing rows among threads: every row once, errors seen, forks survived."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.cpu.row_ranges import run_ranges, split_by_edges, split_evenly, worthwhile_parts


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 8), st.integers(0, 1000))
def test_ranges_cover_all_rows_in_order(degrees: list[int], parts: int, offset: int) -> None:
    indptr = offset + np.cumsum([0, *degrees])
    for bounds in (split_by_edges(indptr, parts), split_evenly(len(degrees), parts)):
        assert (len(bounds), bounds[0], bounds[-1]) == (parts + 1, 0, len(degrees))
        assert (np.diff(bounds) >= 0).all()


def test_ranges_share_the_work() -> None:
    degrees = np.random.default_rng(0).integers(0, 100, 10_000)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    work = np.add.reduceat(degrees + 1, split_by_edges(indptr, 4)[:-1])
    assert work.max() < 1.01 * work.mean()


def test_each_range_is_run_once() -> None:
    hits = np.zeros(100, int)

    def body(begin: int, end: int) -> None:
        hits[begin:end] += 1

    run_ranges(body, split_evenly(100, 7))
    assert (hits == 1).all()


def test_error_in_another_thread_is_raised() -> None:
    def body(begin: int, end: int) -> None:
        if begin:
            raise OSError("far away")

    with pytest.raises(OSError, match="far away"):
        run_ranges(body, split_evenly(10, 3))


def test_small_work_stays_in_one_thread() -> None:
    assert [worthwhile_parts(work, 4) for work in (0, 1000, 1 << 30)] == [1, 1, 4]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_has_threads_of_its_own() -> None:
    run_ranges(lambda begin, end: None, split_evenly(10, 3))
    child = os.fork()
    if not child:
        run_ranges(lambda begin, end: None, split_evenly(10, 3))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
