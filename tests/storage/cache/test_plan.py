"""Cache plans: budgets to the byte, the greedy against a plain loop over fractions, predictions, files."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings

from kernels.rank_map import RankMap
from storage.cache.cached_topology import adjacency_device_bytes, cached_topology
from storage.cache.plan import CURVE_FRACTION, CachePlan, build_plan, largest_fanout, plan_bytes
from storage.cache.profile import AccessProfile, StoredProfile
from storage.cache.tiers import FeatureTiers
from storage.errors import ChecksumMismatchError, StorageError
from tests.storage.cache.counts import plan_cases, profile_of

MAP_100 = RankMap.nbytes_for(100)


@pytest.mark.parametrize("counting", ["smoothed", "input", "full_link"])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=plan_cases())
def test_a_stored_profile_gives_the_same_plan(tmp_path: Path, counting: Any, case: dict[str, Any]) -> None:
    case["profile"].save(tmp_path / "profile.h5")
    expected = build_plan(**case | {"counting": counting})
    found = build_plan(**case | {"counting": counting, "profile": StoredProfile(tmp_path / "profile.h5")})
    for field in dataclasses.fields(expected):
        assert np.array_equal(getattr(found, field.name), getattr(expected, field.name)), field.name


def plan_of(profile: AccessProfile, in_degree: npt.ArrayLike, budget: int, **others: Any) -> CachePlan:
    sizes: dict[str, Any] = {"row_bytes": 16, "id_bytes": 4, "counting": "input", "max_fanout": 10} | others
    return build_plan(profile, np.array(in_degree, np.int64), device_budget=budget, **sizes)


def value_of(plan: CachePlan, case: dict[str, Any]) -> Fraction:
    """Bytes that the plan keeps from crossing, on the counts that chose it."""
    features, lists = plain_items(case)
    values = {item[2:]: item[0] for item in features + lists}
    taken = [("feature", v) for v in plan.feature_ids] + [("list", v) for v in plan.adjacency_ids]
    return sum((values[item] for item in taken), Fraction(0))


def in_lines(size: int, line: int) -> int:
    return math.ceil(size / line) * line


def crossing(case: dict[str, Any], degree: int) -> int:
    """Bytes that sampling one list moves: its offsets' line, and a line an id unless the whole list is less."""
    ids, line, fanout = case["id_bytes"], case["line_bytes"], case["max_fanout"]
    drawn = degree if fanout < 0 else min(degree, fanout)
    moved = min(in_lines(degree * ids, line), drawn * in_lines(ids, line))
    return in_lines(8, line) + moved if moved else 0


def plain_items(case: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """(value, size, kind, node) of everything worth caching, in the order of ties."""
    profile, degree = case["profile"], case["in_degree_N"].tolist()
    feature, adjacency = (counts.tolist() for counts in profile.counts(case["counting"]))
    accesses, counted = int(profile.feature_count_N.sum()), sum(feature)
    is_scaled = counted and case["counting"] == "full_link"
    scale = Fraction(accesses, counted).limit_denominator(1000) if is_scaled else Fraction(1)
    row, ids, line = case["row_bytes"], case["id_bytes"], case["line_bytes"]
    features = [(f * scale * in_lines(row, line), row, "feature", v) for v, f in enumerate(feature)]
    lists = [(Fraction(a * crossing(case, degree[v])), 8 + degree[v] * ids, "list", v) for v, a in enumerate(adjacency)]
    return [item for item in features if item[0]], [item for item in lists if item[0]]


def plain_plan(case: dict[str, Any]) -> tuple[list[int], list[int]]:
    """The plan as its docstring words it."""
    features, lists = plain_items(case)
    one_map = RankMap.nbytes_for(len(case["in_degree_N"]))
    best: tuple[Fraction, list[Any]] = (Fraction(0), [])
    for items, fixed in ((features + lists, 2 * one_map + 8), (features, one_map), (lists, one_map + 8)):
        room, taken = case["device_budget"] - fixed, []
        for item in sorted(items, key=lambda item: -item[0] / item[1]):
            if item[1] <= room:
                room -= item[1]
                taken.append(item)
        if (value := sum((item[0] for item in taken), Fraction(0))) > best[0]:
            best = value, taken
    kinds = ("feature", "list")
    chosen = [sorted(node for _, _, of, node in best[1] if of == kind) for kind in kinds]
    return chosen[0], chosen[1]


@settings(deadline=None)
@given(plan_cases())
def test_the_plan_is_the_plain_greedy(case: dict[str, Any]) -> None:
    plan = build_plan(**case)
    assert (plan.feature_ids.tolist(), plan.adjacency_ids.tolist()) == plain_plan(case)


@settings(deadline=None)
@given(plan_cases())
def test_bytes_are_those_allocated_and_within_the_budget(case: dict[str, Any]) -> None:
    plan, degree = build_plan(**case), case["in_degree_N"]
    assert plan.total_bytes == plan.feature_bytes + plan.adjacency_bytes + plan.map_bytes <= case["device_budget"]
    indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
    dtype = np.int32 if case["id_bytes"] == 4 else np.int64
    topology = cached_topology(indptr, np.zeros(indptr[-1], dtype), plan.adjacency_ids)
    tiers = FeatureTiers(np.zeros((len(degree), case["row_bytes"]), np.uint8), plan.feature_ids)
    assert plan.total_bytes == adjacency_device_bytes(topology) + tiers.device_bytes
    if plan.adjacency_bytes:
        assert plan.adjacency_bytes == topology.cached_indptr.nbytes + topology.cached_indices.nbytes


@settings(deadline=None)
@given(plan_cases())
def test_nothing_without_accesses_is_cached(case: dict[str, Any]) -> None:
    plan, profile = build_plan(**case), case["profile"]
    feature, adjacency = profile.counts(case["counting"])
    assert (feature[plan.feature_ids] > 0).all()
    assert (adjacency[plan.adjacency_ids] > 0).all()
    assert (case["in_degree_N"][plan.adjacency_ids] > 0).all()


@pytest.mark.parametrize("use_spare", [False, True])
def test_where_nodes_have_no_rows_lists_get_everything(*, use_spare: bool) -> None:
    """Rows of no bytes would be taken first, a byte each, and their map would be paid."""
    counts = np.arange(100)
    profile, degree = profile_of(counts, counts), np.full(100, 10)
    plan = plan_of(profile, degree, 100 * 48 + 8 + MAP_100, row_bytes=0, use_spare=use_spare)
    assert len(plan.feature_ids) == plan.feature_bytes == plan.dynamic_rows == 0
    assert plan.adjacency_ids.tolist() == list(range(0 if use_spare else 1, 100))
    assert plan.total_bytes <= plan.device_budget
    assert plan_bytes(100, 10_000, 0) < plan_bytes(100, 10_000, 1)


@settings(deadline=None)
@given(plan_cases())
def test_rates_are_shares_and_no_rows_serve_more_than_the_oracles(case: dict[str, Any]) -> None:
    plan = build_plan(**case)
    assert 0 <= plan.predicted_feature_hit_rate <= plan.oracle_feature_hit_rate <= 1
    assert 0 <= plan.predicted_adjacency_hit_rate <= 1
    assert 0 <= plan.oracle_adjacency_hit_rate <= 1
    assert (plan.curve_plan <= plan.curve_oracle).all()


@settings(deadline=None)
@given(plan_cases(max_nodes=20))
def test_value_is_monotone_in_the_budget(case: dict[str, Any]) -> None:
    budgets = range(case["device_budget"], case["device_budget"] + 60, 7)
    values = [value_of(build_plan(**case | {"device_budget": budget}), case) for budget in budgets]
    assert values == sorted(values)


def test_an_ample_budget_caches_everything_read_and_nothing_else() -> None:
    profile = profile_of([3, 0, 1, 0], [0, 2, 0, 5])
    plan = plan_of(profile, [4, 1, 0, 0], 10**6)
    assert plan.feature_ids.tolist() == [0, 2]
    assert plan.adjacency_ids.tolist() == [1]
    assert plan.map_bytes == 2 * RankMap.nbytes_for(4)
    assert plan.adjacency_bytes == 8 + 8 + 4
    assert plan.total_bytes < plan.device_budget
    assert (plan.predicted_feature_hit_rate, plan.oracle_feature_hit_rate) == (1, 1)


@pytest.mark.parametrize("budget", [0, 1, MAP_100, MAP_100 + 15])
def test_a_budget_too_small_for_one_row_caches_nothing(budget: int) -> None:
    plan = plan_of(profile_of([1] * 100, [0] * 100), [3] * 100, budget)
    assert plan.total_bytes == plan.map_bytes == 0
    assert plan.predicted_feature_hit_rate == plan.oracle_feature_hit_rate == 0


def test_a_map_that_does_not_pay_is_left_out() -> None:
    profile = profile_of([9] * 100, [1] + [0] * 99)
    degree = [2] + [0] * 99
    room_of_five_rows = MAP_100 + 5 * 16
    plan = plan_of(profile, degree, room_of_five_rows)
    assert len(plan.feature_ids) == 5
    assert plan.map_bytes == MAP_100
    plan = plan_of(profile_of([0] * 100, [1] + [0] * 99), degree, room_of_five_rows)
    assert plan.adjacency_ids.tolist() == [0]
    assert (plan.feature_bytes, plan.map_bytes) == (0, MAP_100)


def test_kinds_compete_by_bytes_kept_from_crossing_over_bytes_held() -> None:
    # Densities: rows 5 and 2; lists 7 * (8 + 4 * 4) / 24 = 7 and 56 * (8 + 6 * 4) / 408 = 4.4.
    profile = profile_of([5, 2], [7, 56])
    maps, row, lists = 2 * RankMap.nbytes_for(2) + 8, 16, (8 + 4 * 4, 8 + 100 * 4)
    expected = {
        maps + lists[0] + row: ([0], [0]),
        maps + lists[0] + row + lists[1]: ([0], [0, 1]),
        maps + lists[0] + 2 * row + lists[1]: ([0, 1], [0, 1]),
    }
    for budget, ids in expected.items():
        plan = plan_of(profile, [4, 100], budget, max_fanout=6, line_bytes=1)
        assert (plan.feature_ids.tolist(), plan.adjacency_ids.tolist()) == ids


def test_scattered_ids_count_a_line_each() -> None:
    # A list of 200 ids fills 13 lines; 5 scattered draws move 5 lines and the offsets' one, a row of 64 bytes one.
    profile, room = profile_of([14], [2]), RankMap.nbytes_for(1) + 8 + (8 + 200 * 4)
    assert plan_of(profile, [200], room, row_bytes=64, max_fanout=5).feature_ids.tolist() == [0]
    many = plan_of(profile_of([14], [3]), [200], room, row_bytes=64, max_fanout=5)
    assert many.adjacency_ids.tolist() == [0]


def test_ties_go_to_the_lower_id() -> None:
    plan = plan_of(profile_of([2] * 100, [0] * 100), [0] * 100, MAP_100 + 3 * 16)
    assert plan.feature_ids.tolist() == [0, 1, 2]


def test_full_link_counts_rank_features_in_the_unit_of_accesses() -> None:
    # Twice the input counts everywhere: a rule that only inflates must not move bytes from lists to rows.
    rng = np.random.default_rng(0)
    feature, adjacency, degree = rng.integers(0, 50, (3, 400))
    profile = profile_of(feature, adjacency, full_link=2 * feature)
    plans = [plan_of(profile, degree, 4000, counting=rule) for rule in ("input", "full_link")]
    np.testing.assert_array_equal(plans[0].feature_ids, plans[1].feature_ids)
    np.testing.assert_array_equal(plans[0].adjacency_ids, plans[1].adjacency_ids)
    ranked = plan_of(profile_of([1, 2, 3], [0, 0, 0], full_link=[9, 5, 1]), [0] * 3, 12 + 16, counting="full_link")
    assert ranked.feature_ids.tolist() == [0]


def test_counts_above_the_integers_of_floats_rank_exactly() -> None:
    big = 2**53
    profile = profile_of([big, big + 1] + [0] * 98, [0] * 100)
    assert plan_of(profile, [0] * 100, MAP_100 + 16).feature_ids.tolist() == [1]


def test_predictions_are_judged_on_the_heldout_counts() -> None:
    profile = profile_of([9, 5, 1], [0] * 3, heldout_feature=[1, 0, 3], heldout_adjacency=[0] * 3)
    plan = plan_of(profile, [0] * 3, RankMap.nbytes_for(3) + 2 * 16)
    assert plan.predicted_feature_hit_rate == 0.25
    assert plan.oracle_feature_hit_rate == 1
    assert plan.predicted_adjacency_hit_rate == plan.oracle_adjacency_hit_rate == 0


@settings(deadline=None)
@given(plan_cases())
def test_counts_that_repeat_leave_nothing_to_hindsight(case: dict[str, Any]) -> None:
    profile = case["profile"]
    again = {"heldout_feature_count_N": profile.feature_count_N, "heldout_adjacency_count_N": profile.adjacency_count_N}
    plan = build_plan(**case | {"profile": replace(profile, **again), "counting": "input"})
    assert plan.predicted_feature_hit_rate == plan.oracle_feature_hit_rate
    if not len(plan.feature_ids):  # where both kinds compete, rows may take the room that a larger list needed
        assert plan.predicted_adjacency_hit_rate == plan.oracle_adjacency_hit_rate


def test_curves_rise_from_nothing_and_pass_through_the_plan() -> None:
    rng = np.random.default_rng(1)
    chosen, heldout = rng.poisson(np.geomspace(20, 0.01, 1000), (2, 1000))
    profile = profile_of(chosen, np.zeros(1000), heldout_feature=heldout)
    plan = plan_of(profile, np.zeros(1000), RankMap.nbytes_for(1000) + 100 * 16)
    assert plan.curve_fraction.tolist() == list(CURVE_FRACTION)
    assert plan.curve_plan[0] == plan.curve_oracle[0] == 0
    assert plan.curve_oracle[-1] == 1
    assert (np.diff(plan.curve_plan) >= 0).all()
    assert (np.diff(plan.curve_oracle) >= 0).all()
    assert plan.curve_plan[CURVE_FRACTION.index(0.1)] == plan.predicted_feature_hit_rate
    assert plan.curve_oracle[CURVE_FRACTION.index(0.1)] == plan.oracle_feature_hit_rate


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device_budget": -1}, r"device_budget must be >= 0 \(got -1\)"),
        ({"row_bytes": -1}, "row_bytes must be >= 0"),
        ({"id_bytes": 0}, "id_bytes and line_bytes >= 1"),
        ({"line_bytes": 48}, "power of two"),
        ({"max_fanout": -2}, "max_fanout"),
        (
            {"in_degree_N": np.zeros(2, np.int64)},
            "the profile counts 3 nodes, the graph has 2: it is another graph's, make one",
        ),
        ({"counting": "both"}, "'smoothed', 'input' or 'full_link'"),
    ],
)
def test_arguments_are_checked(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "profile": profile_of([1, 2, 3], [1, 2, 3]),
        "in_degree_N": np.ones(3, np.int64),
        "row_bytes": 4,
        "id_bytes": 4,
        "device_budget": 100,
        "counting": "input",
        "max_fanout": 5,
    }
    with pytest.raises(ValueError, match=message):
        build_plan(**arguments | changes)


@pytest.mark.parametrize(("fanouts", "largest"), [((), 0), ((5, 10), 10), ((5, -1), -1), ((0,), 0)])
def test_the_largest_fanout_is_all_neighbors_if_any_hop_takes_all(fanouts: tuple[int, ...], largest: int) -> None:
    assert largest_fanout(fanouts) == largest


def test_round_trip_and_damage(tmp_path: Path) -> None:
    plan = plan_of(profile_of([3, 0, 1, 0], [0, 2, 0, 5]), [4, 1, 0, 7], 10**6)
    plan.save(tmp_path / "plan.h5")
    loaded = CachePlan.load(tmp_path / "plan.h5")
    for name in CachePlan.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(plan, name))
        assert type(getattr(loaded, name)) is type(getattr(plan, name))
    with h5py.File(tmp_path / "plan.h5", "r+") as file:
        file["feature_ids"][0] = 1
    with pytest.raises(ChecksumMismatchError, match="feature_ids"):
        CachePlan.load(tmp_path / "plan.h5")
    (tmp_path / "plan.h5").write_bytes(b"")
    with pytest.raises(StorageError, match="not a readable cache plan"):
        CachePlan.load(tmp_path / "plan.h5")
