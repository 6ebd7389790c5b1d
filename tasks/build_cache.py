"""Stage 4, cache: one byte budget is split between feature rows and adjacency lists, with hit rates predicted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from prefect import task
from prefect.cache_policies import NO_CACHE

from conf.schema import PipelineConfig
from storage.cache.plan import PLAN_NODE_BYTES, CachePlan, build_plan, largest_fanout
from storage.cache.profile import AccessProfile
from storage.graph_store import INDICES, GraphStore
from storage.manifest import Manifest
from tasks.budgets import SMALL_FILES_BYTES, Estimate
from tasks.plots import plot_hit_rates
from tasks.profile import PROFILE_FILE
from tasks.run_context import RunContext
from tasks.sources import STORE_FILE
from tasks.specs import CACHE, PROFILE, REORDER, cache_spec

PLAN_FILE = "plan.h5"
"""Name of the plan within its artifact."""
_PICTURE = "hit_rates.png"
_PROFILE_NODE_BYTES = 56  # the counts, the offsets and the degrees


@task(name=CACHE, cache_policy=NO_CACHE)
def build_cache(run: RunContext) -> Manifest:
    """Open or build the cache plan for the device budget."""
    profiled, laid_out = run.manifest(PROFILE), run.manifest(REORDER)

    def build(directory: Path) -> Mapping[str, Any]:
        profile = AccessProfile.load(profiled.path(PROFILE_FILE))
        with GraphStore.open(laid_out.path(STORE_FILE)) as store:
            plan = plan_cache(store, profile, run.config)
            num_nodes = store.info.num_nodes
        plan.save(directory / PLAN_FILE)
        chosen = (len(plan.feature_ids) / num_nodes, plan.predicted_feature_hit_rate)
        plot_hit_rates(plan.curve_fraction, plan.curve_plan, plan.curve_oracle, chosen, directory / _PICTURE)
        return _figures(plan)

    def estimate() -> Estimate:
        num_nodes = int(laid_out.counts["num_nodes"])
        return Estimate(
            memory_bytes=(PLAN_NODE_BYTES + _PROFILE_NODE_BYTES) * num_nodes,
            disk_bytes=16 * num_nodes + SMALL_FILES_BYTES,
        )

    manifest = run.open_or_build(cache_spec(run.config, profiled.digest), build, estimate)
    run.picture(manifest.path(_PICTURE))
    return manifest


def plan_cache(store: GraphStore, profile: AccessProfile, config: PipelineConfig) -> CachePlan:
    """Decide what the device budget holds."""
    return build_plan(
        profile,
        np.diff(store.read_indptr()),
        row_bytes=max(1, store.info.feature_row_bytes),
        id_bytes=store.extent(INDICES).dtype.itemsize,
        device_budget=int(config.cache.device_budget),
        counting=config.profile.counting,
        max_fanout=largest_fanout(config.sampling.fanouts),
    )


def _figures(plan: CachePlan) -> dict[str, int | float]:
    return {
        "device_budget": plan.device_budget,
        "cached_features": len(plan.feature_ids),
        "cached_lists": len(plan.adjacency_ids),
        "feature_bytes": plan.feature_bytes,
        "adjacency_bytes": plan.adjacency_bytes,
        "map_bytes": plan.map_bytes,
        "predicted_feature_hit_rate": plan.predicted_feature_hit_rate,
        "predicted_adjacency_hit_rate": plan.predicted_adjacency_hit_rate,
        "oracle_feature_hit_rate": plan.oracle_feature_hit_rate,
        "oracle_adjacency_hit_rate": plan.oracle_adjacency_hit_rate,
    }
