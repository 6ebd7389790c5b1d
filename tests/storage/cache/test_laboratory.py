"""The laboratory on a small graph: policies at equal bytes, and outcomes against plain definitions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.rank_map import RankMap
from kernels.sampler import shuffled_batches
from kernels.topology import Topology
from storage.cache.drift import Segment, moving_community, time_ordered
from storage.cache.hotset import DynamicLayout, DynamicOptions
from storage.cache.laboratory import (
    list_bound,
    requests_of,
    run_belady,
    run_dual,
    run_dynamic,
    run_fastgl,
    run_replacement,
    run_static,
    serve_rows,
)
from storage.cache.policies import (
    DUAL_POLICIES,
    REPLACEMENT_POLICIES,
    STATIC_POLICIES,
    PolicyCase,
    chosen_rows,
    lists_within,
    rows_for,
)
from storage.cache.pre_sampling import profile_accesses
from storage.cache.trace import AccessTrace, TraceFile, record_trace
from tests.cache_tuning import tune_dynamic
from tests.drifts import next_snapshot
from tests.graphs import csc_from_edges, power_law_graph

NUM_NODES, ROW = 5000, 64
TOPOLOGY = Topology.in_memory(*power_law_graph(NUM_NODES, 60_000, seed=1))
TRAIN = np.sort(np.random.default_rng(2).permutation(NUM_NODES)[:1000])
DATA_BYTES = NUM_NODES * (ROW + 8) + TOPOLOGY.indices.nbytes


@pytest.fixture(scope="module")
def case() -> PolicyCase:
    sizes: dict[str, Any] = {"batch_size": 50, "superbatch": 4, "epochs": 3, "heldout_epochs": 30}
    profile = profile_accesses(TOPOLOGY, TRAIN, (3, 4), seed=7, replace=False, threads=2, **sizes)
    return PolicyCase(profile, TOPOLOGY, TRAIN, 50, (3, 4), ROW)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> AccessTrace:
    path = tmp_path_factory.mktemp("trace") / "trace.h5"
    epochs = [Segment(TOPOLOGY, shuffled_batches(TRAIN, 50, seed=7, epoch=epoch)) for epoch in range(2)]
    record_trace(path, epochs, (3, 4), seed=7)
    with TraceFile(path) as file:
        return file.read()


@pytest.mark.parametrize("share", [0.0, 1e-5, 0.1, 1.0])
def test_no_policy_holds_more_than_its_bytes_or_serves_more_than_the_bounds(
    case: PolicyCase, trace: AccessTrace, share: float
) -> None:
    budget = int(share * DATA_BYTES)
    best = run_belady(ROW, budget, trace).feature_hit_rate
    for name, policy in STATIC_POLICIES.items():
        ids = chosen_rows(policy, case, budget)
        assert not len(ids) or len(ids) * ROW + RankMap.nbytes_for(NUM_NODES) <= budget
        assert run_static(name, case, budget, trace).feature_hit_rate == serve_rows(trace, ids) <= best + 1e-12
    for name in REPLACEMENT_POLICIES:
        assert run_replacement(name, ROW, budget, trace, 0).feature_hit_rate <= best + 1e-12
    assert run_fastgl(case, budget, trace).feature_hit_rate <= best + 1e-12
    size_N = 8 + 4 * TOPOLOGY.in_degree()
    for name, dual in DUAL_POLICIES.items():
        rows, lists = dual.choose(case, budget)
        maps = ((len(rows) > 0) + (len(lists) > 0)) * RankMap.nbytes_for(NUM_NODES) + 8 * (len(lists) > 0)
        assert len(rows) * ROW + int(size_N[lists].sum()) + maps <= budget or not len(rows) + len(lists)
        outcome = run_dual(name, case, budget, requests_of(case, trace))
        assert outcome.adjacency_hit_rate <= list_bound(case, budget, trace) + 1e-9
        assert 0 <= outcome.saved <= 1


def test_ours_comes_close_to_the_oracle_and_beats_the_rest(case: PolicyCase, trace: AccessTrace) -> None:
    budget = int(0.1 * NUM_NODES * ROW)
    rates = {name: run_static(name, case, budget, trace).feature_hit_rate for name in STATIC_POLICIES}
    assert rates["smoothed"] >= 0.99 * rates["static_oracle"]
    assert rates["smoothed"] >= max(rates[name] for name in rates if name not in ("smoothed", "static_oracle")) - 0.002
    assert rates["random"] < rates["out_degree"] < rates["presc"]
    requests = requests_of(case, trace)
    saved = {name: run_dual(name, case, int(0.1 * DATA_BYTES), requests).saved for name in DUAL_POLICIES}
    assert saved["garden_plan"] >= 0.99 * saved["oracle_plan"]
    assert saved["garden_plan"] >= max(saved["ducati"], saved["full_link_plan"]) - 0.002


def test_a_dynamic_cache_that_is_never_filled_leaves_the_static_one(case: PolicyCase, trace: AccessTrace) -> None:
    ids = chosen_rows(STATIC_POLICIES["presc"], case, 40_000)
    layout = DynamicLayout.within(20_000, ROW, NUM_NODES)
    never = run_dynamic(ids, layout, DynamicOptions(0.5, interval_batches=10**6), trace)
    assert never.feature_hit_rate == serve_rows(trace, ids)
    assert never.moved_rows == never.dynamic_hits == 0
    often = run_dynamic(ids, layout, DynamicOptions(0.5, 0.99, 1), trace)
    assert often.feature_hit_rate > never.feature_hit_rate
    assert often.hits_B.sum() == round(often.feature_hit_rate * len(trace.nodes))
    with pytest.raises(ValueError, match="interval_batches"):
        run_dynamic(ids, layout, DynamicOptions(0.5), trace)


def test_a_dynamic_cache_is_chosen_where_accesses_move_and_left_out_where_not(
    trace: AccessTrace, tmp_path: Path
) -> None:
    assert tune_dynamic(20_000, ROW, trace, gammas=(0.99,), intervals=(5,), shares=(0.5,)).static_hit_rate > 0
    # Disjoint communities one after another: nothing of the first half is read in the second.
    num_nodes, degree = 2000, 6
    dst = np.repeat(np.arange(num_nodes), degree)
    src = dst // 100 * 100 + np.random.default_rng(0).integers(0, 100, len(dst))
    topology = Topology.in_memory(*csc_from_edges(num_nodes, src, dst))
    batches = moving_community(np.arange(num_nodes), np.arange(num_nodes) // 100, 40, 80, width=1, seed=1)
    record_trace(tmp_path / "moving.h5", [Segment(topology, batches)], (3, 3), seed=0)
    with TraceFile(tmp_path / "moving.h5") as file:
        moving = file.read()
    tuned = tune_dynamic(15_000, ROW, moving, gammas=(0.8,), intervals=(1,), shares=(0.5, 1.0))
    assert tuned.options.share > 0
    assert tuned.hit_rate > tuned.static_hit_rate + 0.05


def test_fixed_splits_hold_their_bytes(case: PolicyCase) -> None:
    for share in (0.0, 0.3, 1.0):
        rows, lists = lists_within(case, 60_000, share)
        list_bytes = int((8 + 4 * TOPOLOGY.in_degree()[lists]).sum())
        assert list_bytes <= share * 60_000
        assert len(rows) <= rows_for(60_000 - round(share * 60_000), ROW, NUM_NODES)
        assert bool(len(lists)) == (share > 0)


def test_seeds_come_in_time_order_and_from_the_window() -> None:
    time_N = np.array([5, 1, 3, 3, 0])
    assert [batch.tolist() for batch in time_ordered(np.array([3, 0, 2, 1]), time_N, 3)] == [[1, 2, 3], [0]]
    community_N = np.repeat(np.arange(6), 10)
    batches = moving_community(np.arange(60), community_N, 5, 9, width=2, seed=0)
    assert [len(batch) for batch in batches] == [5] * 9
    assert set(community_N[batches[0]]) <= {0, 1}
    assert set(community_N[batches[-1]]) <= {4, 5}


def test_the_window_skips_communities_without_a_training_node() -> None:
    community_N = np.array([0, 0, 2, 1, 5])
    batches = moving_community(np.array([0, 1, 2]), community_N, 2, 3, width=1, seed=0)
    assert [set(community_N[batch]) for batch in batches] == [{0}, {0}, {2}]
    with pytest.raises(ValueError, match="no training nodes"):
        moving_community(np.array([], np.int64), community_N, 2, 3, width=1, seed=0)


def test_a_snapshot_is_the_same_graph_under_other_names() -> None:
    moved = next_snapshot(TOPOLOGY, 0.3, seed=4)
    assert (moved.num_nodes, moved.num_edges) == (TOPOLOGY.num_nodes, TOPOLOGY.num_edges)
    np.testing.assert_array_equal(np.sort(moved.in_degree()), np.sort(TOPOLOGY.in_degree()))
    np.testing.assert_array_equal(
        np.sort(np.bincount(moved.indices, minlength=NUM_NODES)),
        np.sort(np.bincount(TOPOLOGY.indices, minlength=NUM_NODES)),
    )
    same = next_snapshot(TOPOLOGY, 0.0, seed=4)
    np.testing.assert_array_equal(same.indices, TOPOLOGY.indices)
    assert 0.5 < (moved.in_degree() == TOPOLOGY.in_degree()).mean() < 0.95


def test_policies_see_only_what_they_are_given(case: PolicyCase) -> None:
    blind = replace(case, profile=replace(case.profile, heldout_feature_count_N=np.zeros(NUM_NODES, np.int64)))
    for name, policy in STATIC_POLICIES.items():
        if name != "static_oracle":
            np.testing.assert_array_equal(policy.rank(case), policy.rank(blind))
