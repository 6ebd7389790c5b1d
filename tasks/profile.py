"""Stage 3, profile: epochs of the real sampler count which features and adjacency lists are read."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from prefect import task
from prefect.cache_policies import NO_CACHE

from conf.schema import PipelineConfig
from kernels.topology import Topology
from storage.blocks.stored_topology import StoredTopology
from storage.cache.profile import AccessProfile, profile_accesses
from storage.errors import InputError
from storage.graph_store import GraphStore
from storage.manifest import Manifest
from tasks.bounds import COUNT_BYTES
from tasks.budgets import SMALL_FILES_BYTES, Estimate
from tasks.profile_memory import ProfilePlan, plan_profile
from tasks.progress import progress
from tasks.run_context import RunContext
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
            return plan_profile(store, run.config.sampling, memory_bytes, longest_list=longest)

    def build(directory: Path) -> Mapping[str, Any]:
        with GraphStore.open(path) as store:
            profile = sample_profile(store, run.config, plan(), heldout_epochs=run.config.profile.heldout_epochs)
        profile.save(directory / PROFILE_FILE)
        return {
            "epochs": profile.epochs,
            "heldout_epochs": profile.heldout_epochs,
            "batches_an_epoch": profile.num_batches,
            "feature_accesses": int(profile.feature_count_N.sum()),
            "adjacency_accesses": int(profile.adjacency_count_N.sum()),
        }

    def estimate() -> Estimate:
        with GraphStore.open(path) as store:
            disk = COUNT_BYTES * store.info.num_nodes + SMALL_FILES_BYTES
        return Estimate(memory_bytes=plan().memory_bytes, disk_bytes=disk)

    return run.open_or_build(profile_spec(run.config, laid_out.digest), build, estimate)


def sample_profile(
    store: GraphStore, config: PipelineConfig, plan: ProfilePlan, *, heldout_epochs: int
) -> AccessProfile:
    """Count accesses over epochs of sampling the training nodes; the counts do not depend on the plan.

    Raises
    ------
    InputError
        If there is no training node.
    """
    train_nodes = store.read_split("train")
    if not len(train_nodes):
        raise InputError(f"{store.path} has no training nodes: check data.split, its fractions and the labels")
    sampling = config.sampling
    with _topology(store, plan, sampling.threads) as topology, progress(PROFILE, "mini-batches") as advance:
        return profile_accesses(
            topology,
            train_nodes,
            sampling.fanouts,
            batch_size=sampling.batch_size,
            superbatch=plan.hyperbatch,
            seed=config.seed,
            epochs=config.profile.epochs,
            heldout_epochs=heldout_epochs,
            replace=sampling.replace,
            threads=sampling.threads,
            progress=advance,
        )


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
