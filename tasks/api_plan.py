"""What opening a graph for the Python API takes, and the cache plan that a device budget asks for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from kernels.topology import Topology
from storage.blocks.stored_topology import StoredTopology
from storage.cache.plan import CachePlan, build_plan, largest_fanout, plan_bytes
from storage.cache.pre_sampling import WORK_BYTES, profile_accesses
from storage.degrees import count_in_degrees, in_degrees
from storage.errors import BudgetError
from storage.graph_store import FEATURES, INDICES, ORIGINAL_ID, GraphStore, StoreInfo
from tasks.api_options import LoadOptions, TierOptions, chosen_nodes
from tasks.bounds import (
    PROFILE_COUNTS,
    SCORE_BYTES,
    batch_nodes,
    count_bytes,
    profile_bytes,
    sampling_bytes,
    topology_bytes,
)
from tasks.profile_memory import plan_profile
from tasks.stored_columns import narrow_labels

_DEGREE_BYTES = 8
_NODE_BYTES = 48  # labels, degrees and the tiers' scratch table
_VISIT_BYTES = 64  # a node to visit: its id, and one epoch's order
_TEXT_BYTES = 9  # a byte of text ids: itself, and four of a decoded character, twice while they are decoded
_TEXT_OBJECT_BYTES = 104  # a text id while it is decoded: one Python object and references to it


def loading_bytes(
    store: GraphStore, options: LoadOptions, tiers: TierOptions, plan: CachePlan | None, num_given: int
) -> int:
    """The most memory that loading from memory takes, making a plan included."""
    num_visited = max(store.info.num_nodes, num_given)
    nbytes = _memory_bytes(store, options, tiers.device_budget if plan is None else plan.total_bytes)
    nbytes += _VISIT_BYTES * num_visited
    if tiers.device_budget:
        nbytes += _planning_bytes(store.info, options, tiers, num_visited)
    if plan is not None and plan.dynamic_rows:
        nbytes += SCORE_BYTES * store.info.num_nodes
    return nbytes


def plan_from_disk(
    store: GraphStore, given: str | npt.NDArray[np.int64], options: LoadOptions, tiers: TierOptions
) -> CachePlan:
    """Make the plan with the adjacency on disk, before anything else takes memory.

    Raises
    ------
    BudgetError
        If `host_budget` is too small for it; names the one that would do.
    """
    assert tiers.host_budget is not None
    info, num_seeds = store.info, max(store.info.split_sizes["train"], len(given))
    counts = PROFILE_COUNTS * count_bytes(num_seeds, options, tiers.profile_epochs, tiers.profile_epochs)
    longest = count_in_degrees(store).largest
    profile = plan_profile(store, options, tiers.host_budget, counts_bytes=counts, longest_list=longest)
    planning = plan_bytes(info.num_nodes, tiers.device_budget, info.feature_row_bytes)
    needed = max(profile.memory_bytes, (counts + _DEGREE_BYTES) * info.num_nodes + planning)
    if needed > tiers.host_budget:
        raise BudgetError(
            f"planning what the device tier holds needs {needed} bytes of memory and host_budget is "
            f"{tiers.host_budget}: set host_budget to at least {needed}, or give a cache_plan",
            needed,
        )
    labels = store.read_multi_labels() if store.info.is_multi_label else narrow_labels(store)
    nodes, share = chosen_nodes(store, given, labels), profile.share
    if share is None:
        topology = Topology.in_memory(*store.read_adjacency())
        return profiled_plan(store, topology, nodes, options, tiers, profile.hyperbatch)
    with StoredTopology(
        store,
        np.empty(0, np.int64),
        buffer_bytes=share.buffer,
        indptr_buffer_bytes=share.indptr_buffer,
        threads=options.threads,
    ) as stored:
        return profiled_plan(store, stored, nodes, options, tiers, profile.hyperbatch, profile.work_bytes)


def profiled_plan(
    store: GraphStore,
    topology: Topology | StoredTopology,
    nodes: IdArray,
    options: LoadOptions,
    tiers: TierOptions,
    superbatch: int,
    work_bytes: int = WORK_BYTES,
) -> CachePlan:
    """Make the plan that `garden run` would make for these nodes and options."""
    epochs, fanouts = tiers.profile_epochs, options.fanouts
    profile = profile_accesses(
        topology,
        nodes,
        fanouts,
        batch_size=options.batch_size,
        superbatch=superbatch,
        seed=options.seed,
        epochs=epochs,
        heldout_epochs=epochs,
        replace=options.replace,
        threads=options.threads,
        work_bytes=work_bytes,
    )
    return build_plan(
        profile,
        in_degrees(store),
        row_bytes=store.info.feature_row_bytes,
        id_bytes=store.extent(INDICES).dtype.itemsize,
        device_budget=tiers.device_budget,
        counting="input",
        max_fanout=largest_fanout(fanouts),
    )


def _memory_bytes(store: GraphStore, options: LoadOptions, device_bytes: int) -> int:
    """Add up the store, the device tier, sampling ahead and the rows in flight."""
    info = store.info
    in_memory = topology_bytes(store) + store.nbytes(FEATURES) + _NODE_BYTES * info.num_nodes + device_bytes
    in_flight = options.superbatch + options.prefetch + 1
    rows = in_flight * batch_nodes(info, options) * info.feature_row_bytes
    return in_memory + _id_bytes(store) + sampling_bytes(info, options) + rows


def _planning_bytes(info: StoreInfo, options: LoadOptions, tiers: TierOptions, num_seeds: int) -> int:
    """The more of counting accesses, and of planning on what was counted."""
    counts = PROFILE_COUNTS * count_bytes(num_seeds, options, tiers.profile_epochs, tiers.profile_epochs)
    planning = plan_bytes(info.num_nodes, tiers.device_budget, info.feature_row_bytes)
    return max(profile_bytes(info, options, num_seeds, counts), counts * info.num_nodes + planning)


def _id_bytes(store: GraphStore) -> int:
    """Bound what the original ids need, should anybody ask for them."""
    if not store.has(ORIGINAL_ID) or store.extent(ORIGINAL_ID).dtype.kind != "S":
        return 8 * store.info.num_nodes
    return _TEXT_BYTES * store.nbytes(ORIGINAL_ID) + _TEXT_OBJECT_BYTES * store.info.num_nodes
