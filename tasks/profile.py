"""Stage 3, profile: epochs of the real sampler count which features and adjacency lists are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from conf.schema import PipelineConfig
from kernels.topology import Topology
from storage.cache.profile import AccessProfile, profile_accesses
from storage.errors import InputError
from storage.graph_store import GraphStore
from storage.manifest import Manifest
from tasks.bounds import COUNT_BYTES, profile_bytes, topology_bytes
from tasks.budgets import SMALL_FILES_BYTES, Estimate
from tasks.progress import progress
from tasks.run_context import RunContext
from tasks.sources import STORE_FILE
from tasks.specs import PROFILE, REORDER, profile_spec

PROFILE_FILE = "profile.h5"
"""Name of the profile within its artifact."""


@task(name=PROFILE, cache_policy=NO_CACHE)
def profile_graph(run: RunContext) -> Manifest:
    """Open or build the access profile of the laid-out store."""
    laid_out = run.manifest(REORDER)
    path = laid_out.path(STORE_FILE)

    def build(directory: Path) -> Mapping[str, Any]:
        with GraphStore.open(path) as store:
            profile = sample_profile(store, run.config, heldout_epochs=run.config.profile.heldout_epochs)
        profile.save(directory / PROFILE_FILE)
        return {
            "epochs": profile.epochs,
            "heldout_epochs": profile.heldout_epochs,
            "batches_an_epoch": profile.num_batches,
            "feature_accesses": int(profile.feature_count_N.sum()),
            "adjacency_accesses": int(profile.adjacency_count_N.sum()),
        }

    return run.open_or_build(profile_spec(run.config, laid_out.digest), build, lambda: _estimate(run.config, path))


def sample_profile(store: GraphStore, config: PipelineConfig, *, heldout_epochs: int) -> AccessProfile:
    """Count accesses over epochs of sampling the training nodes.

    Raises
    ------
    InputError
        If there is no training node.
    """
    train_nodes = store.read_split("train")
    if not len(train_nodes):
        raise InputError(f"{store.path} has no training nodes: check data.split, its fractions and the labels")
    with progress(PROFILE, "mini-batches") as advance:
        return profile_accesses(
            Topology.in_memory(*store.read_adjacency()),
            train_nodes,
            config.sampling.fanouts,
            batch_size=config.sampling.batch_size,
            superbatch=config.sampling.superbatch,
            seed=config.seed,
            epochs=config.profile.epochs,
            heldout_epochs=heldout_epochs,
            replace=config.sampling.replace,
            threads=config.sampling.threads,
            progress=advance,
        )


def _estimate(config: PipelineConfig, path: Path) -> Estimate:
    with GraphStore.open(path) as store:
        memory = topology_bytes(store) + profile_bytes(store.info, config.sampling)
        return Estimate(memory_bytes=memory, disk_bytes=COUNT_BYTES * store.info.num_nodes + SMALL_FILES_BYTES)
