"""Stage 4, cache: one byte budget is split between feature rows and adjacency lists, with hit rates predicted."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from conf.schema import DynamicConfig, PipelineConfig
from kernels.sampler import shuffled_batches
from kernels.topology import Topology
from storage.cache.costs import MissCosts, measure_miss_ns
from storage.cache.explain import explain_plan
from storage.cache.hotset import DynamicLayout, DynamicOptions
from storage.cache.plan import CachePlan, build_plan, largest_fanout, plan_bytes
from storage.cache.profile import AccessProfile, StoredProfile
from storage.degrees import degree_dtype, in_degrees
from storage.errors import BudgetError, InputError
from storage.expected_store import StoreSizes
from storage.graph_store import FEATURES, INDICES, GraphStore
from storage.manifest import Manifest
from tasks.bounds import count_bytes, topology_bytes
from tasks.budgets import Estimate
from tasks.device_budget import with_settled_budget
from tasks.plots import plot_hit_rates
from tasks.profile import PROFILE_FILE
from tasks.run_context import RunContext
from tasks.run_disk import GraphSizes, jointly, plan_disk_bytes
from tasks.sources import EXPLANATION_FILE, STORE_FILE
from tasks.specs import CACHE, PROFILE, REORDER, cache_spec
from tasks.training_config import stand_in_bytes

_logger = logging.getLogger(__name__)

PLAN_FILE = "plan.h5"
"""Name of the plan within its artifact."""
_PICTURE = "hit_rates.png"
_MEASURED_BATCHES = 4
_MEASURED_COPIES = 2  # of the data: as read, and as the largest cache that is timed
_COUNTS = 2  # a node, at a time: of its row and of its list
_CHUNK_BYTES = 8 << 20  # of offsets, while degrees are read


@task(name=CACHE, cache_policy=NO_CACHE)
def build_cache(run: RunContext) -> Manifest:
    """Open or build the cache plan for the device budget."""
    profiled, laid_out = run.manifest(PROFILE), run.manifest(REORDER)
    if run.config.cache.device_budget == "auto":
        with GraphStore.open(laid_out.path(STORE_FILE)) as store:
            profile = StoredProfile(profiled.path(PROFILE_FILE))
            run.config = with_settled_budget(run.config, run.backend, store, profile)

    def build(directory: Path) -> Mapping[str, Any]:
        profile = StoredProfile(profiled.path(PROFILE_FILE))
        with GraphStore.open(laid_out.path(STORE_FILE)) as store:
            plan = plan_cache(store, profile, run.config)
            num_nodes = store.info.num_nodes
        plan.save(directory / PLAN_FILE)
        (directory / EXPLANATION_FILE).write_text("\n".join(explain_plan(plan, num_nodes)) + "\n", encoding="utf-8")
        chosen = (len(plan.feature_ids) / num_nodes, plan.predicted_feature_hit_rate)
        plot_hit_rates(plan.curve_fraction, plan.curve_plan, plan.curve_oracle, chosen, directory / _PICTURE)
        return _figures(plan)

    def estimate() -> Estimate:
        with GraphStore.open(laid_out.path(STORE_FILE)) as store:
            sizes = GraphSizes.of_store(store, int(run.config.layout.block_bytes))
            own, kept = cache_estimate(store, run.config), plan_disk_bytes(sizes.num_nodes)
            return jointly(own, run.config, sizes, run.stages_after(CACHE), kept)

    manifest = run.open_or_build(cache_spec(run.config, profiled.digest), build, estimate)
    run.picture(manifest.path(_PICTURE))
    run.parent.log_artifact(manifest.path(EXPLANATION_FILE), "cache")
    return manifest


def cache_estimate(store: StoreSizes, config: PipelineConfig) -> Estimate:
    """Add up counts, degrees and the plan; what measuring the cost of misses takes, if that is more."""
    info, asked = store.info, config.profile
    one = count_bytes(info.split_sizes["train"], config.sampling, asked.epochs, asked.heldout_epochs)
    device_budget, row_bytes = stand_in_bytes(config), info.feature_row_bytes
    degrees = degree_dtype(info.num_edges).itemsize * info.num_nodes + _CHUNK_BYTES
    memory = plan_bytes(info.num_nodes, device_budget, row_bytes) + _COUNTS * one * info.num_nodes
    if config.cache.miss_costs == "measured" and store.has(FEATURES):
        memory = max(memory, _MEASURED_COPIES * (topology_bytes(store) + store.nbytes(FEATURES)))
    return Estimate(memory_bytes=degrees + memory, disk_bytes=plan_disk_bytes(info.num_nodes))


def plan_cache(store: GraphStore, profile: AccessProfile | StoredProfile, config: PipelineConfig) -> CachePlan:
    """Decide what the device budget holds.

    Raises
    ------
    InputError
        If the share of the dynamic cache holds no row.
    """
    dynamic = dynamic_options(config.cache.dynamic)
    plan = build_plan(
        profile,
        in_degrees(store),
        row_bytes=store.info.feature_row_bytes,
        id_bytes=store.extent(INDICES).dtype.itemsize,
        device_budget=stand_in_bytes(config),
        counting=config.profile.counting,
        max_fanout=largest_fanout(config.sampling.fanouts),
        costs=miss_costs(store, config),
        dynamic=dynamic,
        use_spare=config.cache.use_spare,
    )
    if dynamic.share and not store.info.feature_row_bytes:
        raise InputError("the graph has no features for a dynamic cache to hold: set cache.dynamic.share to 0")
    if dynamic.share and config.cache.device_budget and not plan.dynamic_rows:
        least = DynamicLayout(1, store.info.feature_row_bytes, store.info.num_nodes).nbytes
        raise BudgetError(
            f"cache.dynamic.share {dynamic.share:g} of cache.device_budget {stand_in_bytes(config)} holds no "
            f"row: the dynamic cache needs at least {least} bytes; raise either, or set the share to 0"
        )
    return plan


def dynamic_options(dynamic: DynamicConfig) -> DynamicOptions:
    """Translate the `cache.dynamic` section."""
    return DynamicOptions(dynamic.share, dynamic.gamma, dynamic.interval_batches or 0, dynamic.epochs)


def miss_costs(store: GraphStore, config: PipelineConfig) -> MissCosts:
    """What a miss costs, as asked; bytes where times are to be measured and misses take no longer than hits."""
    cache, row_bytes = config.cache, store.info.feature_row_bytes
    if cache.miss_costs == "given":
        return MissCosts.of_times(cache.feature_miss_ns or 0.0, cache.adjacency_miss_ns or 0.0)
    if cache.miss_costs == "bytes" or not store.has(FEATURES):
        return MissCosts.of_bytes(row_bytes)
    train, sampling = store.read_split("train"), config.sampling
    batches = shuffled_batches(train, sampling.batch_size, seed=config.seed, epoch=0)[:_MEASURED_BATCHES]
    topology = Topology.in_memory(*store.read_adjacency())
    feature_ns, adjacency_ns = measure_miss_ns(topology, store.read_features(), sampling.fanouts, batches)
    _logger.info("cache: measured %.1f ns a feature miss, %.1f ns an adjacency miss", feature_ns, adjacency_ns)
    costs = MissCosts.of_times(feature_ns, adjacency_ns)
    if costs.row or costs.adjacency:
        return costs
    _logger.warning("cache: on this machine misses take no longer than hits; rows and lists compete by bytes instead")
    return MissCosts.of_bytes(row_bytes)


def _figures(plan: CachePlan) -> dict[str, int | float]:
    return {
        "device_budget": plan.device_budget,
        "total_bytes": plan.total_bytes,
        "cached_features": len(plan.feature_ids),
        "cached_lists": len(plan.adjacency_ids),
        "feature_bytes": plan.feature_bytes,
        "adjacency_bytes": plan.adjacency_bytes,
        "map_bytes": plan.map_bytes,
        "dynamic_bytes": plan.dynamic_bytes,
        "dynamic_rows": plan.dynamic_rows,
        "predicted_feature_hit_rate": plan.predicted_feature_hit_rate,
        "predicted_adjacency_hit_rate": plan.predicted_adjacency_hit_rate,
        "oracle_feature_hit_rate": plan.oracle_feature_hit_rate,
        "oracle_adjacency_hit_rate": plan.oracle_adjacency_hit_rate,
        "predicted_saved": plan.predicted_saved,
        "rows_only_saved": plan.rows_only_saved,
        "lists_only_saved": plan.lists_only_saved,
    }
