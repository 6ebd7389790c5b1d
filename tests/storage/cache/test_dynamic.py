"""The dynamic cache: scores against Eq. 5 computed plainly, bytes, and rows that stay true while they are swapped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.top import top_ids
from storage.cache import hotset
from storage.cache.dynamic import DynamicCache
from storage.cache.hotset import DynamicLayout, DynamicOptions, HotSet
from storage.cache.slots import HostSlots
from storage.cache.tiers import FeatureTiers
from storage.errors import TierMismatchError

ALWAYS = DynamicOptions(share=1, gamma=0.9, interval_batches=1, epochs=1000)


def rows_of(num_nodes: int, width: int = 5) -> np.ndarray:
    return np.random.default_rng(0).random((num_nodes, width), np.float32)


def tiers_of(host_ND: np.ndarray, static: list[int], rows: int, options: DynamicOptions = ALWAYS) -> FeatureTiers:
    return FeatureTiers(host_ND, np.array(static, np.int64), check=True, dynamic_rows=rows, dynamic=options)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 11), unique=True, max_size=8), max_size=12),
    st.sets(st.integers(0, 11)),
    st.integers(1, 6),
    st.sampled_from([0.5, 0.999, 1.0]),
)
def test_it_holds_the_hottest_of_what_the_static_cache_misses(
    batches: list[list[int]], static: set[int], capacity: int, gamma: float
) -> None:
    host_ND, score = rows_of(12), np.zeros(12)
    tiers = tiers_of(host_ND, sorted(static), capacity, DynamicOptions(share=1, gamma=gamma, epochs=9))
    assert tiers.dynamic is not None
    with tiers.watched_epoch(0):
        for batch in batches:
            tiers.gather(np.array(batch, np.int64))
            score *= gamma
            score[[v for v in batch if v not in static]] += 1
    tiers.dynamic.wait()
    # A row has to be worth moving: at least one access to its score, in units of the newest.
    worth = [v for v in np.lexsort((np.arange(12), -score.round(9))) if score[v] >= 1 - 1e-9]
    spare = DynamicLayout(capacity, 20, 12).spare_rows
    held = tiers.dynamic.current.ids.tolist()
    assert set(held) <= {v for v in range(12) if score[v] > 0} - static
    assert len(held) <= min(capacity, capacity + spare)
    if gamma == 1.0:
        assert held == sorted(worth[:capacity])


def test_only_training_is_scored() -> None:
    tiers = tiers_of(rows_of(30), [0, 1], 4)
    assert tiers.dynamic is not None
    tiers.gather(np.arange(2, 30))
    tiers.dynamic.wait()
    assert tiers.dynamic.stats.updates == 0
    with tiers.watched_epoch(0):
        tiers.gather(np.arange(2, 30))
    tiers.dynamic.wait()
    assert tiers.dynamic.current.ids.tolist() == [2, 3, 4, 5]  # equal scores: the lower ids


def test_hits_of_the_dynamic_cache_are_counted_beside_the_static_ones() -> None:
    host_ND = rows_of(100)
    tiers = tiers_of(host_ND, [0, 1, 2], 2, DynamicOptions(share=1, epochs=9))
    ids = np.array([0, 2, 50, 60, 70])
    with tiers.watched_epoch(0):
        tiers.gather(ids[:4])
    assert tiers.dynamic is not None
    tiers.dynamic.wait()
    before = tiers.reads
    np.testing.assert_array_equal(tiers.gather(ids), host_ND[ids])
    reads = tiers.reads.since(before)
    assert (reads.device_rows, reads.dynamic_rows, reads.host_rows) == (4, 2, 1)
    assert (reads.device_bytes, reads.host_bytes) == (4 * 20, 20)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 1.0])
@pytest.mark.parametrize("in_place", [True, False])
def test_rows_are_those_of_the_source_while_swaps_go_on(share: float, in_place: bool) -> None:
    num_nodes, rng = 3000, np.random.default_rng(1)
    host_ND = rows_of(num_nodes)
    static = rng.permutation(num_nodes)[: int(share * num_nodes) // 2]
    rows = DynamicLayout.within(int(share * host_ND.nbytes), 20, num_nodes).rows
    tiers = tiers_of(host_ND, np.sort(static).tolist(), rows, ALWAYS)
    stop, failures = threading.Event(), list[BaseException]()

    def swap() -> None:
        try:
            while not stop.is_set() and tiers.dynamic is not None:
                tiers.dynamic.update()
        except BaseException as error:
            failures.append(error)

    def read(seed: int) -> None:
        drawn = np.random.default_rng(seed)
        try:
            for _ in range(150):
                centre = drawn.integers(0, num_nodes)
                groups = [(centre + drawn.integers(0, 300, 200)) % num_nodes for _ in range(3)]
                rows_of_each: Iterator[Any] = tiers.locate_group(groups) if in_place else tiers.gather_group(groups)
                for ids, rows in zip(groups, rows_of_each, strict=True):
                    got = rows.gather() if in_place else rows
                    assert np.array_equal(got, host_ND[ids])
        except BaseException as error:
            failures.append(error)

    with tiers.watched_epoch(0):
        readers = [threading.Thread(target=read, args=(seed,)) for seed in range(2)]
        swapper = threading.Thread(target=swap)
        for thread in (*readers, swapper):
            thread.start()
        for thread in readers:
            thread.join()
        stop.set()
        swapper.join()
    assert not failures, failures[0]
    if rows > 10:
        assert tiers.dynamic is not None
        assert tiers.dynamic.stats.swapped_rows > rows // 2
        assert tiers.reads.dynamic_rows > 0


def test_slots_that_are_read_are_not_refilled() -> None:
    host_ND = rows_of(40)
    tiers = tiers_of(host_ND, [], 8, DynamicOptions(share=1, gamma=0.5, epochs=99))
    dynamic = tiers.dynamic
    assert dynamic is not None
    dynamic.is_watching = True
    tiers.gather(np.arange(8))
    dynamic.update()
    dynamic.update()
    assert dynamic.current.ids.tolist() == list(range(8))
    located = next(tiers.locate_group([np.arange(8)]))
    for first in (10, 20, 30):
        for _ in range(4):
            tiers.gather(np.arange(first, first + 8))
        for _ in range(10):
            dynamic.update()
        np.testing.assert_array_equal(located.gather(), host_ND[:8])
    assert dynamic.stats.postponed > 0
    del located
    for _ in range(30):
        tiers.gather(np.arange(30, 38))
        dynamic.update()
    assert dynamic.current.ids.tolist() == list(range(30, 38))


def test_a_wrong_row_is_found_by_the_checking_mode() -> None:
    host_ND = rows_of(40)
    tiers = tiers_of(host_ND, [], 4, DynamicOptions(share=1, epochs=9))
    with tiers.watched_epoch(0):
        tiers.gather(np.array([7, 9]))
    assert tiers.dynamic is not None
    tiers.dynamic.wait()
    tiers.dynamic.current.readable[:] += 1
    with pytest.raises(TierMismatchError, match="node 7, read from the dynamic tier"):
        tiers.gather(np.array([7]))


@given(st.integers(0, 200_000), st.integers(1, 600), st.integers(1, 3000))
def test_the_layout_is_the_largest_that_fits(budget: int, row_bytes: int, num_nodes: int) -> None:
    layout = DynamicLayout.within(budget, row_bytes, num_nodes)
    assert layout.nbytes <= budget
    more = DynamicLayout(layout.rows + 1, row_bytes, num_nodes)
    assert layout.rows == num_nodes or more.nbytes > budget


def test_bytes_are_those_that_are_allocated() -> None:
    host_ND = rows_of(1000)
    layout = DynamicLayout.within(5000, 20, 1000)
    cache = DynamicCache(HostSlots(host_ND, layout), layout, DynamicOptions(share=1))
    cache.is_watching = True
    cache.observe(1, lambda _, score_N, weight: np.add(score_N, weight, out=score_N))
    for _ in range(20):
        cache.update()
    held = cache.current
    assert len(held.ids) == layout.rows
    assert cache.nbytes == held.readable.nbytes + 2 * (held.map.nbytes + held.slot_K.nbytes) <= 5000


def test_it_stops_by_schedule_and_when_updates_do_not_pay() -> None:
    tiers = tiers_of(rows_of(100), [], 4, DynamicOptions(share=1, epochs=2))
    dynamic = tiers.dynamic
    assert dynamic is not None
    for epoch in range(4):
        with tiers.watched_epoch(epoch):
            tiers.gather(np.arange(50))
    dynamic.wait()
    assert dynamic.stats.updates == 2
    assert dynamic.stats.stopped == 1
    idle = tiers_of(rows_of(100), [], 4, DynamicOptions(share=1, epochs=99)).dynamic
    assert idle is not None
    for epoch in range(5):
        idle.end_epoch(epoch)
        idle.wait()
    assert idle.stats.stopped == 1
    assert idle.stats.updates == 2


@pytest.mark.parametrize("interval", [0, 1])
@pytest.mark.parametrize("ends", ["next epoch", "idle", "schedule"])
def test_an_error_in_an_update_is_raised_at_an_epochs_end(
    monkeypatch: pytest.MonkeyPatch, interval: int, ends: str
) -> None:
    """Whatever ends the updates; and no more than once."""
    options = DynamicOptions(share=1, epochs=1 if ends == "schedule" else 99, interval_batches=interval)
    dynamic = tiers_of(rows_of(100), [], 4, options).dynamic
    assert dynamic is not None
    if ends == "idle":
        dynamic._idle, dynamic._cost_bytes = 1, 1.0
    update = dynamic.update

    def fails() -> None:
        raise ZeroDivisionError("in an update")

    monkeypatch.setattr(dynamic, "update", fails)
    dynamic._start_update()
    if ends == "next epoch":
        wait(dynamic._pending)
    with pytest.raises(ZeroDivisionError, match="in an update"):
        dynamic.end_epoch(0)
    monkeypatch.setattr(dynamic, "update", update)
    dynamic.wait()
    dynamic.end_epoch(1)
    dynamic.wait()


def test_an_error_pending_when_it_is_closed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    dynamic = tiers_of(rows_of(100), [], 4, DynamicOptions(share=1, epochs=99)).dynamic
    assert dynamic is not None
    dynamic.update = lambda: 1 / 0  # type: ignore[assignment,method-assign]
    dynamic._start_update()
    dynamic.close()
    assert "an update failed (division by zero)" in caplog.text


def test_a_move_that_does_not_gain_an_access_is_not_made() -> None:
    hot = HotSet(np.zeros(4), 1.0)
    hot.score_N[:] = [3.0, 2.5, 0.0, 0.0]
    swap = hot.propose(np.array([1, 2]), 2, 5)
    assert (swap.incoming.tolist(), swap.outgoing.tolist(), swap.gain) == ([0], [2], 3.0)
    assert hot.propose(np.array([1]), 1, 5).incoming.tolist() == []


def test_scores_that_are_scaled_down_during_an_update_do_not_change_what_it_gains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = tiers_of(rows_of(12), [0], 4).dynamic
    assert cache is not None
    live = cache._hot
    live.score_N[3], live.weight = 1.8e150, 1e150

    def scale_down_meanwhile(score_N: np.ndarray, k: int) -> np.ndarray:
        live.advance()
        assert live.weight == 1
        return top_ids(score_N, k)

    monkeypatch.setattr(hotset, "top_ids", scale_down_meanwhile)
    cache.update()
    assert cache.stats.predicted_gain == pytest.approx(1.8 / 0.9)
    assert cache.current.ids.tolist() == [3]


def test_scores_outlive_the_range_of_floats() -> None:
    hot = HotSet(np.zeros(3), 0.5)
    for step in range(3000):
        hot.score_N[step % 2] += hot.weight
        hot.advance()
    assert np.isfinite(hot.score_N).all()
    assert hot.score_N[1] > hot.score_N[0] > hot.score_N[2] == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"share": 1.5}, "share"),
        ({"gamma": 0.0}, "gamma"),
        ({"epochs": -1}, "epochs"),
        ({"interval_batches": -1}, "int"),
    ],
)
def test_options_are_checked(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DynamicOptions(**wrong)  # type: ignore[arg-type]
