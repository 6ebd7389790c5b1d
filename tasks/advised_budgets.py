"""Budgets before there is a store: the smallest memory of each stage, the disk of a run, the plan of training."""

from __future__ import annotations

from dataclasses import replace

from conf.schema import PipelineConfig
from storage.blocks.spill_room import ENDLESS, SpillRoom
from storage.errors import BudgetError
from storage.formats.base import GraphSource
from tasks.bounds import WRITTEN_COUNTS, count_bytes
from tasks.budgets import Estimate
from tasks.build_cache import cache_estimate
from tasks.disk_plan import plan_training
from tasks.expected_work import Workload
from tasks.memory import plan_ingest
from tasks.profile_memory import plan_profile
from tasks.reorder import reorder_memory
from tasks.run_disk import GraphSizes, beside_spills, ingest_jointly
from tasks.sources import ingest_options
from tasks.specs import CACHE, INGEST, PROFILE, REORDER, STAGES, TRAIN
from tasks.storage_memory import StoragePlan
from tasks.training_config import stand_in_bytes

_LARGER = 1.5
"""How much larger than the mean the first mini-batches may be: the smallest budget is one for such."""


def plan_of(config: PipelineConfig, work: Workload, budget: int, *, larger: float = 1.0) -> StoragePlan:
    """The plan that training from disk will make, if its first mini-batches are larger by a factor than the mean.

    Raises
    ------
    BudgetError
        If the budget is too small; names the smallest one that would do.
    """
    return plan_training(
        work.graph.store,
        work.options,
        work.spec,
        # Rows and lists together.
        replace(work.first(larger), list_bytes=stand_in_bytes(config)),
        num_seeds=work.graph.store.info.split_sizes["train"],
        cached_rows=0,
        host_budget=budget,
        hyperbatch=config.storage.hyperbatch,
        room=_room(config, work),
    )


def _room(config: PipelineConfig, work: Workload) -> SpillRoom:
    """What a `disk_budget` leaves beside what the stages keep; without one, the disk is taken to be large enough."""
    if config.disk_budget is None:
        return ENDLESS
    store = work.graph.store
    sizes = GraphSizes.of_store(store, store.info.block_bytes)
    beside = beside_spills(config, sizes, sum(map(store.nbytes, store.datasets)))
    return SpillRoom(max(0, int(config.disk_budget) - beside), beside)


def smallest_budgets(config: PipelineConfig, source: GraphSource, work: Workload) -> dict[str, int]:
    """The smallest `host_budget` that would do for each stage, training from disk."""
    store, sampling, profile = work.graph.store, config.sampling, config.profile
    counts = count_bytes(store.info.split_sizes["train"], sampling, profile.epochs, profile.heldout_epochs)
    longest = work.graph.degrees.longest_list
    options = ingest_options(config)
    ingested = work.graph.in_blocks_of(options.block_bytes).store
    profiled = plan_profile(
        store,
        sampling,
        0,
        counts_bytes=WRITTEN_COUNTS * counts,
        longest_list=longest,
    )
    smallest = {
        INGEST: plan_ingest(source, options, 0).estimate.memory_bytes,
        REORDER: reorder_memory(config, ingested, 0, lambda: longest),
        PROFILE: profiled.memory_bytes,
        CACHE: cache_estimate(store, config).memory_bytes,
    }
    try:
        plan_of(config, work, 1, larger=_LARGER)
    except BudgetError as error:
        smallest[TRAIN] = error.needed or 0
    return smallest


def settled(
    config: PipelineConfig, source: GraphSource, host_budget: int, block_bytes: int, *, from_disk: bool
) -> PipelineConfig:
    """A configuration of that mode and size of blocks, with a `disk_budget` that does in place of one that cannot."""
    mode = {"mode": "storage" if from_disk else "memory"}
    parts = {
        "storage": config.storage.model_copy(update=mode),
        "layout": config.layout.model_copy(update={"block_bytes": block_bytes}),
    }
    config = config.model_copy(update=parts)
    disk = disk_of_run(config, source, host_budget)
    if config.disk_budget is None or least_disk(disk) <= config.disk_budget:
        return config
    return config.model_copy(update={"disk_budget": max(least_disk(disk), disk.enough_disk_bytes)})


def disk_of_run(config: PipelineConfig, source: GraphSource, host_budget: int) -> Estimate:
    """Disk of a run, as ingest will count it before it writes anything."""
    estimate = plan_ingest(source, ingest_options(config), host_budget).estimate
    return ingest_jointly(config, source, estimate, STAGES[1:])


def least_disk(estimate: Estimate) -> int:
    """A smaller `disk_budget` would be refused."""
    return max(estimate.disk_bytes, estimate.joint_disk_bytes)
