"""A plan in words: the numbers are the plan's, and what is not there is not spoken of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.cache.explain import explain_plan
from storage.cache.hotset import DynamicOptions
from storage.cache.plan import CachePlan, build_plan
from storage.manifest import Manifest
from tasks.describe import describe_artifact
from tests.storage.cache.counts import profile_of


def plan_of(budget: int, dynamic: DynamicOptions | None = None) -> CachePlan:
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.geomspace(40, 0.1, 2000), (2, 2000))
    sizes: dict[str, Any] = {"row_bytes": 64, "id_bytes": 4, "max_fanout": 5}
    degree_N = rng.integers(1, 30, 2000)
    return build_plan(
        profile_of(*counts), degree_N, device_budget=budget, counting="smoothed", dynamic=dynamic, **sizes
    )


def test_every_byte_and_every_rate_is_told() -> None:
    plan = plan_of(60_000, DynamicOptions(share=0.25, interval_batches=7))
    text = " ".join(explain_plan(plan, 2000))
    parts = (plan.feature_bytes, plan.adjacency_bytes, plan.dynamic_bytes, plan.map_bytes)
    assert "Of 60.0 kB" in text
    assert sum(parts) == plan.total_bytes <= 60_000
    for nbytes in parts:
        assert f"({nbytes / 60_000:.1%})" in text
    for rate in (plan.predicted_feature_hit_rate, plan.oracle_adjacency_hit_rate, plan.predicted_saved):
        assert f"{rate:.1%}" in text
    assert f"up to {plan.dynamic_rows:,} rows more, chosen every 7 mini-batches" in text
    assert max(plan.rows_only_saved, plan.lists_only_saved) <= plan.predicted_saved + 0.01


def test_what_is_not_there_is_not_spoken_of() -> None:
    assert "nothing is cached" in explain_plan(plan_of(10), 2000)[0]
    text = " ".join(explain_plan(plan_of(10**7), 2000))
    assert "dynamic" not in text
    assert "stay spare" in text


def test_inspecting_the_artifact_shows_it(tmp_path: Path) -> None:
    (tmp_path / "explanation.txt").write_text("One.\nTwo.\n", encoding="utf-8")
    manifest = Manifest("cache", "ab", {}, {}, 1, 1, {}, {"explanation.txt": 10}, 0.0, "", tmp_path)
    assert describe_artifact(manifest)["explanation"] == "One. Two."


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_dynamic_share_comes_out_of_the_budget(share: float) -> None:
    plan = plan_of(50_000, DynamicOptions(share=share))
    assert plan.total_bytes <= 50_000
    assert plan.dynamic_bytes <= share * 50_000
    assert (plan.dynamic_rows > 0) == (share > 0)
