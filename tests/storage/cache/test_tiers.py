"""Feature tiers and the tiered topology: bytes equal to direct indexing, counts equal to counting by hand."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.resolve import DEVICE, HOST, STAGED, resolve_rows, stage_repeats
from kernels.mfg import IdArray, TierReads
from kernels.rank_map import RankMap
from storage.cache import tiers as tiers_module
from storage.cache.cached_topology import adjacency_device_bytes, cached_topology
from storage.cache.checking import CHECKED_ROWS
from storage.cache.tiers import FeatureTiers
from storage.errors import InputError, TierMismatchError
from tests.graphs import graphs, power_law_graph

Features = npt.NDArray[Any]


def random_bytes(num_rows: int, width: int, dtype: npt.DTypeLike, seed: int = 0) -> Features:
    """Rows of random bits, NaNs among the floats."""
    itemsize = np.dtype(dtype).itemsize
    raw = np.random.default_rng(seed).integers(0, 256, (num_rows, width * itemsize), np.uint8)
    return raw.view(dtype)


def assert_same_bytes(got: Features, expected: Features) -> None:
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert got.tobytes() == expected.tobytes()


@st.composite
def tier_cases(draw: st.DrawFn) -> tuple[Features, IdArray, list[IdArray]]:
    """Features of any width and type, a plan of none, some or all rows, and a group of mini-batches."""
    num_nodes = draw(st.integers(1, 150))
    dtype = draw(st.sampled_from([np.float32, np.float16, np.uint8, np.float64]))
    host_ND = random_bytes(num_nodes, draw(st.integers(1, 37)), dtype)
    node = st.integers(0, num_nodes - 1)
    plan = draw(st.just([]) | st.just(list(range(num_nodes))) | st.lists(node, unique=True).map(sorted))
    id_type = draw(st.sampled_from([np.int32, np.int64]))
    batches = draw(st.lists(st.lists(node, max_size=60), max_size=4))
    return host_ND, np.array(plan, np.int64), [np.array(batch, id_type) for batch in batches]


def reads_by_hand(host_ND: Features, plan_ids: IdArray, batches: Sequence[IdArray]) -> TierReads:
    row_bytes = host_ND[0].nbytes
    requests = [v for batch in batches for v in batch.tolist()]
    missed = [v for v in requests if v not in set(plan_ids.tolist())]
    hits = len(requests) - len(missed)
    return TierReads(hits, len(missed), hits * row_bytes, len(set(missed)) * row_bytes)


@settings(deadline=None)
@given(tier_cases())
def test_rows_are_those_of_direct_indexing(case: tuple[Features, IdArray, list[IdArray]]) -> None:
    host_ND, plan_ids, batches = case
    tiers = FeatureTiers(host_ND, plan_ids, check=True)
    gathered = list(tiers.gather_group(batches))
    assert len(gathered) == len(batches)
    for ids, rows in zip(batches, gathered, strict=True):
        assert_same_bytes(rows, host_ND[ids])
        assert_same_bytes(tiers.gather(ids), host_ND[ids])


@settings(deadline=None)
@given(tier_cases())
def test_reads_are_those_counted_by_hand(case: tuple[Features, IdArray, list[IdArray]]) -> None:
    host_ND, plan_ids, batches = case
    tiers = FeatureTiers(host_ND, plan_ids)
    tiers.gather_group(batches)  # counted at the call, whether or not the rows are taken
    assert tiers.reads == reads_by_hand(host_ND, plan_ids, batches)
    list(tiers.gather_group(batches))
    twice = reads_by_hand(host_ND, plan_ids, batches)
    twice.add(reads_by_hand(host_ND, plan_ids, batches))
    assert tiers.reads == twice


@settings(deadline=None)
@given(tier_cases())
def test_rows_located_are_those_gathered_and_counted_alike(case: tuple[Features, IdArray, list[IdArray]]) -> None:
    host_ND, plan_ids, batches = case
    gathering, locating = (FeatureTiers(host_ND, plan_ids, check=True) for _ in range(2))
    gathered, located = list(gathering.gather_group(batches)), list(locating.locate_group(batches))
    for rows, places in zip(gathered, located, strict=True):
        assert_same_bytes(places.gather(), rows)
    assert locating.reads == gathering.reads == reads_by_hand(host_ND, plan_ids, batches)


@settings(deadline=None)
@given(tier_cases())
def test_resolve_points_at_the_rows(case: tuple[Features, IdArray, list[IdArray]]) -> None:
    host_ND, plan_ids, batches = case
    tiers = FeatureTiers(host_ND, plan_ids)
    for ids in batches:
        tier_n, slot_n = tiers.resolve(ids)
        for node, tier, slot in zip(ids.tolist(), tier_n.tolist(), slot_n.tolist(), strict=True):
            assert (plan_ids[slot] if tier == DEVICE else slot) == node
            assert (tier == DEVICE) == (node in plan_ids)
            assert tier in (DEVICE, HOST)


@settings(deadline=None)
@given(tier_cases(), st.integers(0, 2**32))
def test_staging_holds_each_repeated_miss_once(case: tuple[Features, IdArray, list[IdArray]], seed: int) -> None:
    host_ND, plan_ids, batches = case
    ids = np.concatenate([np.empty(0, np.int64), *batches])
    device = RankMap.from_sorted_ids(plan_ids, len(host_ND))
    tier_n, slot_n = np.empty(len(ids), np.uint8), np.empty(len(ids), np.int64)
    missed_n = np.empty(len(ids) + 1, np.int32)
    missed_n = missed_n[: resolve_rows(device.bits, device.rank, ids, tier_n, slot_n, missed_n)]
    hits = np.isin(ids, plan_ids)
    np.testing.assert_array_equal(tier_n, np.where(hits, DEVICE, HOST))
    np.testing.assert_array_equal(missed_n, np.flatnonzero(~hits))
    # What a former group left in the scratch table must not matter.
    first_N = np.random.default_rng(seed).integers(-5, len(ids) + 5, len(host_ND)).astype(np.int32)
    staged_ids = np.full(len(ids) // 2, -1, np.int64)
    num_staged = stage_repeats(ids, missed_n, tier_n, slot_n, first_N, staged_ids)
    missed, times = np.unique(ids[~hits], return_counts=True)
    assert sorted(staged_ids[:num_staged].tolist()) == missed[times > 1].tolist()
    repeated = np.isin(ids, missed[times > 1])
    np.testing.assert_array_equal(tier_n, np.where(hits, DEVICE, np.where(repeated, STAGED, HOST)))
    np.testing.assert_array_equal(staged_ids[slot_n[repeated]], ids[repeated])
    np.testing.assert_array_equal(slot_n[tier_n == HOST], ids[tier_n == HOST])


def test_device_bytes_are_rows_and_map_and_nothing_without_rows() -> None:
    host_ND = random_bytes(100, 3, np.float16)
    assert FeatureTiers(host_ND, np.array([4, 50])).device_bytes == 2 * 6 + RankMap.nbytes_for(100)
    assert FeatureTiers(host_ND, np.empty(0, np.int64)).device_bytes == 0


def test_host_rows_may_be_a_read_only_window_of_a_wider_array() -> None:
    wide = random_bytes(40, 9, np.float32)
    wide.flags.writeable = False
    window, ids = wide[::2, 2:7], np.array([3, 3, 19, 0], np.int32)
    tiers = FeatureTiers(window, np.array([0, 5]), check=True)
    assert_same_bytes(next(tiers.gather_group([ids, ids])), window[ids])


def test_ids_may_be_a_strided_view() -> None:
    host_ND = random_bytes(50, 4, np.uint8)
    ids = np.arange(50)[::-3]
    assert_same_bytes(FeatureTiers(host_ND, np.arange(10)).gather(ids), host_ND[ids])


@pytest.mark.parametrize(("ids", "wrong"), [([0, 50, 99], 50), ([1, -1, 70], -1)])
@pytest.mark.parametrize("plan_ids", [[], [0, 7]])
def test_ids_out_of_range_are_named(ids: list[int], wrong: int, plan_ids: list[int]) -> None:
    tiers = FeatureTiers(random_bytes(50, 4, np.float32), np.array(plan_ids, np.int64))
    with pytest.raises(ValueError, match=rf"node {wrong} is outside \[0, 50\)"):
        tiers.gather(np.array(ids))
    assert tiers.reads == TierReads()


def test_plans_and_features_are_checked() -> None:
    with pytest.raises(ValueError, match="ascending"):
        FeatureTiers(random_bytes(9, 2, np.uint8), np.array([3, 3]))
    with pytest.raises(ValueError, match=r"\[0, 9\)"):
        FeatureTiers(random_bytes(9, 2, np.uint8), np.array([3, 9]))
    with pytest.raises(ValueError, match="2-D"):
        FeatureTiers(np.zeros(9), np.array([3]))


def test_a_gathered_row_is_the_callers_own() -> None:
    host_ND = random_bytes(30, 5, np.float32)
    tiers, ids, before = FeatureTiers(host_ND, np.arange(5)), np.arange(30), host_ND.copy()
    for rows in tiers.gather_group([ids, ids]):
        assert_same_bytes(rows, before)
        rows[:] = 0
    assert_same_bytes(host_ND, before)
    assert_same_bytes(tiers.gather(ids), before)


def test_reads_are_a_copy() -> None:
    tiers = FeatureTiers(random_bytes(30, 5, np.float32), np.arange(5))
    before = tiers.reads
    tiers.gather(np.arange(30))
    assert (before, tiers.reads.host_rows) == (TierReads(), 25)


@pytest.mark.parametrize("plan_ids", [[], [1, 2]])
def test_a_group_of_more_rows_than_are_counted_is_refused(plan_ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers_module, "_MAX_ROWS", 9)
    tiers = FeatureTiers(random_bytes(30, 5, np.float32), np.array(plan_ids, np.int64))
    assert len(list(tiers.gather_group([np.arange(5), np.arange(4)]))) == 2
    for read in (tiers.gather_group, tiers.locate_group):
        with pytest.raises(InputError, match="a group of 10 rows is above 9: use a smaller superbatch"):
            read([np.arange(5), np.arange(5)])


@pytest.mark.parametrize("node", [3, 700])
def test_checking_mode_finds_a_wrong_row(node: int) -> None:
    host_ND = random_bytes(1000, 4, np.float16)
    plan_ids, ids = np.arange(500), np.array([node] * CHECKED_ROWS + [1])
    checked, trusting = FeatureTiers(host_ND, plan_ids, check=True), FeatureTiers(host_ND, plan_ids)
    checked.gather(ids)
    rows = checked.gather_group([ids, ids])
    if node < 500:
        for tiers in (checked, trusting):
            tiers._static.rows_CD[node].view(np.uint8)[5] ^= 1
    else:  # the rows were staged when the source was another
        host_ND[node] += 1
    tier = "device" if node < 500 else "staging"
    with pytest.raises(TierMismatchError, match=rf"row 0 of a mini-batch, node {node}, read from the {tier} tier"):
        next(rows)
    trusting.gather(ids)


def test_two_threads_share_the_tiers() -> None:
    host_ND = random_bytes(5000, 7, np.float32)
    tiers = FeatureTiers(host_ND, np.arange(0, 5000, 9), check=True)
    groups, num_rounds = 3, 40

    def run(seed: int) -> TierReads:
        rng, expected = np.random.default_rng(seed), TierReads()
        for _ in range(num_rounds):
            batches = [rng.integers(0, 5000, rng.integers(0, 900)) for _ in range(groups)]
            for ids, rows in zip(batches, tiers.gather_group(batches), strict=True):
                assert_same_bytes(rows, host_ND[ids])
            expected.add(reads_by_hand(host_ND, np.arange(0, 5000, 9), batches))
        return expected

    with ThreadPoolExecutor(2) as pool:
        total = TierReads()
        for expected in pool.map(run, (1, 2)):
            total.add(expected)
    assert tiers.reads == total


@settings(deadline=None)
@given(graphs(), st.data())
def test_cached_lists_are_those_of_the_topology(
    graph: tuple[npt.NDArray[np.int64], IdArray], data: st.DataObject
) -> None:
    indptr, indices = graph
    num_nodes = len(indptr) - 1
    ids = np.array(sorted(data.draw(st.sets(st.integers(0, num_nodes - 1)))), np.int64)
    topology = cached_topology(indptr, indices, ids)
    if not len(ids):
        assert topology.cached is None
        assert adjacency_device_bytes(topology) == 0
        return
    assert topology.cached is not None
    np.testing.assert_array_equal(topology.cached.slots(np.arange(num_nodes))[ids], np.arange(len(ids)))
    assert topology.cached_indices.dtype == indices.dtype
    for slot, v in enumerate(ids):
        cached = topology.cached_indices[topology.cached_indptr[slot] : topology.cached_indptr[slot + 1]]
        np.testing.assert_array_equal(cached, indices[indptr[v] : indptr[v + 1]])


def test_cached_topology_shares_the_host_arrays() -> None:
    indptr, indices = power_law_graph(50, 300)
    topology = cached_topology(indptr, indices, np.array([1, 2, 9]))
    assert topology.indptr is indptr
    assert topology.indices is indices
    assert not np.shares_memory(topology.cached_indices, indices)
