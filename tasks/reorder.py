"""Stage 2, reorder and block layout: the store in the node order that suits access, readable block by block."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from prefect import task
from prefect.cache_policies import NO_CACHE

from conf.schema import PipelineConfig
from storage.blocks.layout import (
    LEAST_WORK_BYTES,
    estimate_store_bytes,
    lay_out,
    layout_held_bytes,
    layout_scratch_bytes,
    layout_work_bytes,
)
from storage.cache.pre_sampling import take_profile
from storage.csc import id_dtype
from storage.degrees import count_in_degrees, count_out_degrees
from storage.errors import MachineError
from storage.expected_store import StoreSizes
from storage.formats.base import IdArray
from storage.graph_store import OUT_DEGREE, GraphStore, row_chunks
from storage.leftovers import scratch_directory
from storage.locks import lock_file, locked
from storage.manifest import Manifest
from storage.order import falling_ranks, invert_order, node_order, order_bytes, unchanged_ranks
from tasks.bounds import PROFILE_COUNTS, count_bytes, topology_bytes
from tasks.budgets import SMALL_FILES_BYTES, Estimate, format_bytes
from tasks.plots import plot_degrees
from tasks.profile import sampling_of
from tasks.profile_memory import ProfilePlan, plan_profile
from tasks.progress import Advance, progress
from tasks.run_context import RunContext
from tasks.run_disk import GraphSizes, jointly
from tasks.sources import STORE_FILE
from tasks.specs import INGEST, REORDER, reorder_spec

_logger = logging.getLogger(__name__)
_PICTURE = "degrees.png"
_PIECE_NODES = 1 << 16
_MOST_WORK_BYTES = 2 << 30
"""Pieces of the new store beyond it save little: few passes are left."""


@task(name=REORDER, cache_policy=NO_CACHE)
def reorder_graph(run: RunContext) -> Manifest:
    """Open or build the laid-out store, then give back the space of the ingested one unless it is to be kept."""
    ingested = run.manifest(INGEST)

    def build(directory: Path) -> Mapping[str, Any]:
        with _ingested_store(ingested) as store:
            return _lay_out(run, store, directory)

    def estimate() -> Estimate:
        with _ingested_store(ingested) as store:
            return _estimate(run, store, ingested)

    manifest = run.open_or_build(reorder_spec(run.config, ingested.digest), build, estimate)
    if not run.config.layout.keep_ingest and (freed := run.artifacts.collect(ingested)):
        _logger.info("%s: removed the ingested store, which has served, %s", REORDER, format_bytes(freed))
    run.picture(manifest.path(_PICTURE))
    return manifest


@contextlib.contextmanager
def _ingested_store(ingested: Manifest) -> Iterator[GraphStore]:
    """Open the ingested store under a shared lock, so that a run with another order does not collect it meanwhile."""
    with locked(lock_file(ingested.directory), shared=True):
        if ingested.missing_files():
            raise MachineError(f"{REORDER}: another run has just collected the ingested store; run again")
        with GraphStore.open(ingested.path(STORE_FILE)) as store:
            yield store


def _lay_out(run: RunContext, store: GraphStore, directory: Path) -> Mapping[str, Any]:
    layout, budgets = run.config.layout, run.artifacts.budgets
    old_to_new = _ranks(run.config, store, budgets.memory_bytes())
    work_bytes = _work_bytes(store, budgets.memory_bytes())
    with _scratch(_scratch_bytes(run, store, work_bytes, directory), directory) as scratch:
        lay_out(
            store,
            directory / STORE_FILE,
            old_to_new=old_to_new,
            order=layout.order,
            block_bytes=int(layout.block_bytes),
            work_bytes=work_bytes,
            scratch=scratch,
            progress=_progress,
        )
    in_degrees, out_degrees = count_in_degrees(store), count_out_degrees(store)
    plot_degrees(in_degrees, out_degrees, directory / _PICTURE)
    return {
        "num_nodes": store.info.num_nodes,
        "num_edges": store.info.num_edges,
        "feature_row_bytes": store.info.feature_row_bytes,
        "max_in_degree": in_degrees.largest,
        "max_out_degree": out_degrees.largest,
        "nodes_moved": int(np.count_nonzero(old_to_new != unchanged_ranks(len(old_to_new)))),
    }


def _scratch_bytes(run: RunContext, store: GraphStore, work_bytes: int, directory: Path) -> int:
    """Bytes of scratch files where they are wanted and the disk has room for them beside the store, else 0."""
    ingested = run.manifest(INGEST)
    room = run.artifacts.budgets.free_disk_bytes(directory, ingested.present_bytes)
    needed = layout_scratch_bytes(store, work_bytes)
    return needed if needed + _store_bytes(run.config, store) <= room else 0


def _store_bytes(config: PipelineConfig, store: GraphStore) -> int:
    return estimate_store_bytes(store, int(config.layout.block_bytes)) + SMALL_FILES_BYTES


@contextlib.contextmanager
def _scratch(nbytes: int, directory: Path) -> Iterator[Path | None]:
    """Make a directory for scratch files, if there are to be any."""
    if not nbytes:
        yield None
        return
    _logger.info("%s: rows change places by way of scratch files, %s", REORDER, format_bytes(nbytes))
    with scratch_directory(directory, "rows-") as scratch:
        yield scratch


def _progress(description: str, unit: str) -> AbstractContextManager[Advance]:
    return progress(f"{REORDER}, {description}", unit)


def _ranks(config: PipelineConfig, store: GraphStore, memory_bytes: int) -> IdArray:
    """Return the new id of each node; only `locality` holds adjacency lists whatever the memory."""
    order, num_nodes = config.layout.order, store.info.num_nodes
    if order == "none":
        return unchanged_ranks(num_nodes)
    if order == "locality":
        old_to_new: IdArray = invert_order(node_order(order, *store.read_adjacency())).astype(id_dtype(num_nodes))
        return old_to_new
    if order == "degree":
        return falling_ranks(lambda: row_chunks(store, OUT_DEGREE), num_nodes)
    with sampling_of(store, config, _profile_plan(config, store, memory_bytes), heldout_epochs=0) as sampled:
        hotness = take_profile(*sampled).counts(config.profile.counting)[0]
    starts = range(0, num_nodes, _PIECE_NODES)
    return falling_ranks(lambda: (hotness[first : first + _PIECE_NODES] for first in starts), num_nodes)


def _profile_plan(config: PipelineConfig, store: GraphStore, memory_bytes: int) -> ProfilePlan:
    return _hotness_plan(config, store, memory_bytes, count_in_degrees(store).largest)


def _hotness_plan(config: PipelineConfig, store: StoreSizes, memory_bytes: int, longest_list: int) -> ProfilePlan:
    """How hotness is sampled: its profile is held as a whole."""
    counts = PROFILE_COUNTS * count_bytes(store.info.split_sizes["train"], config.sampling, config.profile.epochs, 0)
    return plan_profile(store, config.sampling, memory_bytes, counts_bytes=counts, longest_list=longest_list)


def reorder_memory(
    config: PipelineConfig, store: StoreSizes, memory_bytes: int, longest_list: Callable[[], int]
) -> int:
    """Bytes of memory that rewriting the store takes, or finding its order if that is more.

    Parameters
    ----------
    config : PipelineConfig
    store : StoreSizes
    memory_bytes : int
        What it may take, if it can do with less.
    longest_list : callable
        Tells the largest in-degree.
    """
    order, info = config.layout.order, store.info
    rewriting = layout_held_bytes(store) + _work_bytes(store, memory_bytes)
    if order == "locality":
        return max(rewriting, topology_bytes(store) + order_bytes(order, info.num_nodes, info.num_edges))
    if order == "hotness":
        return max(rewriting, _hotness_plan(config, store, memory_bytes, longest_list()).memory_bytes)
    return rewriting


def _work_bytes(store: StoreSizes, memory_bytes: int) -> int:
    """Memory for pieces of the new store: what is left of a budget, where more would save a pass."""
    left = max(LEAST_WORK_BYTES, memory_bytes - layout_held_bytes(store))
    return min(layout_work_bytes(store), left, _MOST_WORK_BYTES)


def _estimate(run: RunContext, store: GraphStore, ingested: Manifest) -> Estimate:
    """Add up what rewriting the store takes, or finding its order if that is more; and what later stages take."""
    config, layout = run.config, run.config.layout
    memory_bytes = run.artifacts.budgets.memory_bytes()
    work_bytes = _work_bytes(store, memory_bytes)
    memory = reorder_memory(config, store, memory_bytes, lambda: count_in_degrees(store).largest)
    kept = _store_bytes(config, store)
    disk = kept + _scratch_bytes(run, store, work_bytes, ingested.directory)
    freed = 0 if layout.keep_ingest else ingested.present_bytes
    sizes = GraphSizes.of_store(store, int(layout.block_bytes))
    return jointly(Estimate(memory, disk), config, sizes, run.stages_after(REORDER), kept, freed=freed)
