"""Stage 2, reorder and block layout: the store in the node order that suits access, readable block by block."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from prefect import task
from prefect.cache_policies import NO_CACHE

from conf.schema import PipelineConfig
from storage.blocks.layout import estimate_layout_memory_bytes, estimate_store_bytes, lay_out
from storage.errors import MachineError
from storage.graph_store import GraphStore
from storage.locks import lock_file, locked
from storage.manifest import Manifest
from storage.order import node_order, order_bytes
from tasks.bounds import profile_bytes, topology_bytes
from tasks.budgets import SMALL_FILES_BYTES, Estimate, format_bytes
from tasks.plots import plot_degrees
from tasks.profile import sample_profile
from tasks.run_context import RunContext
from tasks.sources import STORE_FILE
from tasks.specs import INGEST, REORDER, reorder_spec

_logger = logging.getLogger(__name__)
_PICTURE = "degrees.png"


@task(name=REORDER, cache_policy=NO_CACHE)
def reorder_graph(run: RunContext) -> Manifest:
    """Open or build the laid-out store, then give back the space of the ingested one unless it is to be kept."""
    ingested = run.manifest(INGEST)

    def build(directory: Path) -> Mapping[str, Any]:
        with _ingested_store(ingested) as store:
            return _lay_out(run.config, store, directory)

    def estimate() -> Estimate:
        with _ingested_store(ingested) as store:
            return _estimate(run.config, store)

    manifest = run.open_or_build(reorder_spec(run.config, ingested.digest), build, estimate)
    if not run.config.layout.keep_ingest and (freed := run.artifacts.collect(ingested)):
        _logger.info("%s: collected the ingested store, %s", REORDER, format_bytes(freed))
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


def _lay_out(config: PipelineConfig, store: GraphStore, directory: Path) -> Mapping[str, Any]:
    layout = config.layout
    new_to_old, in_degree, out_degree = _order(config, store)
    lay_out(store, new_to_old, directory / STORE_FILE, order=layout.order, block_bytes=int(layout.block_bytes))
    plot_degrees(in_degree, out_degree, directory / _PICTURE)
    return {
        "num_nodes": store.info.num_nodes,
        "num_edges": store.info.num_edges,
        "feature_row_bytes": store.info.feature_row_bytes,
        "max_in_degree": int(in_degree.max(initial=0)),
        "max_out_degree": int(out_degree.max(initial=0)),
        "nodes_moved": int(np.count_nonzero(new_to_old != np.arange(len(new_to_old)))),
    }


def _order(
    config: PipelineConfig, store: GraphStore
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the node order and both degrees of each node."""
    (indptr, indices), out_degree = store.read_adjacency(), store.read_out_degree()
    hotness = None
    if config.layout.order == "hotness":
        hotness = sample_profile(store, config, heldout_epochs=0).feature_counts(config.profile.counting)
    order = node_order(config.layout.order, indptr, indices, hotness_N=hotness, out_degree_N=out_degree)
    return order, np.diff(indptr), out_degree


def _estimate(config: PipelineConfig, store: GraphStore) -> Estimate:
    """Add up the adjacency, which orders are found from, and what rewriting the store takes."""
    info, layout = store.info, config.layout
    memory = topology_bytes(store) + estimate_layout_memory_bytes(store)
    memory += order_bytes(layout.order, info.num_nodes, info.num_edges)
    if layout.order == "hotness":
        memory += profile_bytes(store.info, config.sampling)
    disk = estimate_store_bytes(store, int(layout.block_bytes)) + SMALL_FILES_BYTES
    return Estimate(memory_bytes=memory, disk_bytes=disk)
