"""Our default on public graphs: within a hundredth of the static oracle, and no other rule better than noise."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from storage.cache.laboratory import requests_of, run_dual, run_static
from storage.cache.policies import DUAL_POLICIES, STATIC_POLICIES
from tests.benchmarks import cache_workloads as fixed
from tests.benchmarks.bench_policies import case_of, profile_of, training_trace

NOISE = 0.001
HELDOUT_EPOCHS = 40

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif("GARDEN_DATA" not in os.environ, reason="GARDEN_DATA names the folder of public graphs"),
]


@pytest.mark.parametrize("graph", ["pubmed", "musae_facebook", "email_enron"])
def test_the_default_is_as_good_as_the_oracle_and_no_other_is_better(graph: str, tmp_path: Path) -> None:
    workload = fixed.GRAPHS[graph]()
    heldout = profile_of(workload, 1000, 0, HELDOUT_EPOCHS)
    case = case_of(workload, 0, fixed.PROFILE_EPOCHS)
    names = ("heldout_feature_count_N", "heldout_adjacency_count_N")
    case = replace(case, profile=replace(case.profile, **{name: getattr(heldout, name) for name in names}))
    trace = training_trace(workload, 0, tmp_path / "trace.h5")
    requests = requests_of(case, trace)
    for share in fixed.BUDGETS:
        budget = int(share * workload.topology.num_nodes * workload.row_bytes)
        rates = {name: run_static(name, case, budget, trace).feature_hit_rate for name in STATIC_POLICIES}
        assert rates["smoothed"] >= 0.99 * rates["static_oracle"]
        assert rates["smoothed"] >= max(rate for name, rate in rates.items() if name != "static_oracle") - NOISE
        saved = {name: run_dual(name, case, budget, requests).saved for name in DUAL_POLICIES}
        assert saved["garden_plan"] >= 0.99 * saved["oracle_plan"]
        assert saved["garden_plan"] >= max(saved["ducati"], saved["full_link_plan"]) - NOISE
