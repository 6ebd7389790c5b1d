"""Stage 3, profile: epochs of the real sampler count which features and adjacency lists are read."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from prefect import task
from prefect.cache_policies import NO_CACHE

from conf.schema import PipelineConfig
from kernels.mfg import IdArray
from kernels.topology import Topology
from storage.blocks.stored_topology import StoredTopology
from storage.cache.pre_sampling import ProfileOptions, write_profile
from storage.errors import InputError
from storage.graph_store import GraphStore
from storage.manifest import Manifest
from tasks.bounds import WRITTEN_COUNTS, count_bytes
from tasks.budgets import Estimate
from tasks.profile_memory import ProfilePlan, plan_profile
from tasks.progress import Advance, progress
from tasks.run_context import RunContext
from tasks.run_disk import GraphSizes, jointly, profile_disk_bytes
from tasks.sources import STORE_FILE
from tasks.specs import PROFILE, REORDER, profile_spec

_logger = logging.getLogger(__name__)

PROFILE_FILE = "profile.h5"
"""Name of the profile within its artifact."""


@task(name=PROFILE, cache_policy=NO_CACHE)
def profile_graph(run: RunContext) -> Manifest:
    """Open or build the access profile of the laid-out store."""
    laid_out = run.manifest(REORDER)
    path = laid_out.path(STORE_FILE)

    def plan() -> ProfilePlan:
        with GraphStore.open(path) as store:
            memory_bytes, longest = run.artifacts.budgets.memory_bytes(), int(laid_out.counts["max_in_degree"])
            counts_bytes = WRITTEN_COUNTS * _count_bytes(store, run.config)
            return plan_profile(
                store, run.config.sampling, memory_bytes, counts_bytes=counts_bytes, longest_list=longest
            )

    def build(directory: Path) -> Mapping[str, Any]:
        heldout_epochs = run.config.profile.heldout_epochs
        with GraphStore.open(path) as store, sampling_of(store, run.config, plan(), heldout_epochs) as sampled:
            accesses = write_profile(directory / PROFILE_FILE, *sampled)
        nodes, options = sampled.train_nodes, sampled.options
        return {
            "epochs": options.epochs,
            "heldout_epochs": options.heldout_epochs,
            "batches_an_epoch": options.num_batches(len(nodes)),
            "feature_accesses": accesses[0],
            "adjacency_accesses": accesses[1],
        }

    def estimate() -> Estimate:
        with GraphStore.open(path) as store:
            sizes = GraphSizes.of_store(store, int(run.config.layout.block_bytes))
        disk = profile_disk_bytes(run.config, sizes.num_train, sizes.num_nodes)
        return jointly(Estimate(plan().memory_bytes, disk), run.config, sizes, run.stages_after(PROFILE), disk)

    return run.open_or_build(profile_spec(run.config, laid_out.digest), build, estimate)


def _count_bytes(store: GraphStore, config: PipelineConfig) -> int:
    asked = config.profile
    return count_bytes(store.info.split_sizes["train"], config.sampling, asked.epochs, asked.heldout_epochs)


class Sampled(NamedTuple):
    """Arguments of `storage.cache.profile.write_profile` and `profile_accesses`, in their order."""

    topology: Topology | StoredTopology
    train_nodes: IdArray
    fanouts: Sequence[int]
    options: ProfileOptions
    progress: Advance


@contextlib.contextmanager
def sampling_of(store: GraphStore, config: PipelineConfig, plan: ProfilePlan, heldout_epochs: int) -> Iterator[Sampled]:
    """Open what a profile samples; the counts do not depend on the plan.

    Raises
    ------
    InputError
        If there is no training node.
    """
    train_nodes, sampling = store.read_split("train"), config.sampling
    if not len(train_nodes):
        raise InputError(f"{store.path} has no training nodes: check data.split, its fractions and the labels")
    options = ProfileOptions(
        batch_size=sampling.batch_size,
        superbatch=plan.hyperbatch,
        seed=config.seed,
        epochs=config.profile.epochs,
        heldout_epochs=heldout_epochs,
        replace=sampling.replace,
        threads=sampling.threads,
        work_bytes=plan.work_bytes,
    )
    with _topology(store, plan, sampling.threads) as topology, progress(PROFILE, "mini-batches") as advance:
        yield Sampled(topology, train_nodes, sampling.fanouts, options, advance)


@contextlib.contextmanager
def _topology(store: GraphStore, plan: ProfilePlan, threads: int) -> Iterator[Topology | StoredTopology]:
    """Read the adjacency, or open it where it is."""
    if plan.share is None:
        yield Topology.in_memory(*store.read_adjacency())
        return
    _logger.info("%s: samples from disk, %d mini-batches at once", PROFILE, plan.hyperbatch)
    nothing_cached, share = np.empty(0, np.int64), plan.share
    with StoredTopology(
        store,
        nothing_cached,
        buffer_bytes=share.buffer,
        indptr_buffer_bytes=share.indptr_buffer,
        threads=threads,
    ) as topology:
        yield topology
