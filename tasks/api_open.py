"""How the Python API opens a graph: arguments checked, bytes bounded, then store and plan loaded into the tiers."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from kernels.nn.layers import NodeDegrees
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, check_fanouts, shuffled_batches
from kernels.topology import Topology
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from storage.cache.cached_topology import adjacency_device_bytes, cached_topology
from storage.cache.plan import CachePlan, build_plan, largest_fanout, plan_bytes
from storage.cache.pre_sampling import profile_accesses
from storage.cache.tiers import FeatureTiers
from storage.degrees import in_degrees
from storage.errors import BudgetError, InputError
from storage.graph_store import FEATURES, INDICES, LABELS, ORIGINAL_ID, SPLITS, GraphStore, Split, StoreInfo
from tasks.api_batch import NodeColumns
from tasks.api_disk import DiskOptions, open_on_disk
from tasks.bounds import (
    PROFILE_COUNTS,
    SCORE_BYTES,
    batch_nodes,
    count_bytes,
    profile_bytes,
    sampling_bytes,
    topology_bytes,
)
from tasks.data_source import Loader
from tasks.loader import MiniBatchLoader
from tasks.objective import Labels, labelled
from tasks.on_disk import narrow_labels
from tasks.profile_memory import plan_profile

NodeSet = Split | Literal["all"]
Nodes = NodeSet | npt.ArrayLike

_logger = logging.getLogger(__name__)
_DEGREE_BYTES = 8
_NODE_BYTES = 48  # labels, degrees and the tiers' scratch table
_VISIT_BYTES = 64  # a node to visit: its id, and one epoch's order
_TEXT_BYTES = 9  # a byte of text ids: itself, and four of a decoded character, twice while they are decoded
_TEXT_OBJECT_BYTES = 104  # a text id while it is decoded: one Python object and references to it


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How mini-batches are drawn and loaded; `GraphLoader` says what each field means."""

    fanouts: tuple[int, ...]
    batch_size: int
    seed: int
    shuffle: bool
    replace: bool
    superbatch: int
    threads: int
    prefetch: int
    stall_timeout_s: float

    def __post_init__(self) -> None:
        for name in ("batch_size", "superbatch", "threads", "prefetch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be >= 1 (got {getattr(self, name)})")
        try:
            check_fanouts(self.fanouts)
        except ValueError as error:
            raise InputError(str(error)) from error

    @property
    def purpose(self) -> Purpose:
        """What the draws are for: an evaluation's are never training's."""
        return Purpose.TRAIN if self.shuffle else Purpose.VALIDATE

    def batches(self, nodes: IdArray, epoch: int) -> list[IdArray]:
        """Seeds of each mini-batch of an epoch."""
        if self.shuffle:
            return shuffled_batches(nodes, self.batch_size, seed=self.seed, epoch=epoch)
        return [nodes[begin : begin + self.batch_size] for begin in range(0, len(nodes), self.batch_size)]

    def loader(self, topology: Topology, features: FeatureTiers) -> MiniBatchLoader:
        """Start the threads that sample."""
        sampler = NeighborSampler(topology, self.fanouts, seed=self.seed, purpose=self.purpose, replace=self.replace)
        return MiniBatchLoader(
            sampler,
            features,
            superbatch=self.superbatch,
            threads=self.threads,
            prefetch=self.prefetch,
            stall_timeout_s=self.stall_timeout_s,
        )


@dataclass(frozen=True, slots=True)
class TierOptions:
    """What the device tier is to hold, and the most memory to use; `GraphLoader` says what each field means."""

    cache_plan: CachePlan | Path | str | None
    device_budget: int
    profile_epochs: int
    host_budget: int | None
    check: bool

    def __post_init__(self) -> None:
        if self.device_budget < 0:
            raise InputError(f"device_budget must be >= 0 (got {self.device_budget})")
        if self.device_budget and self.cache_plan is not None:
            raise InputError("give either cache_plan or device_budget: a plan has a budget of its own")
        if self.profile_epochs < 1:
            raise InputError(f"profile_epochs must be >= 1 (got {self.profile_epochs})")

    def plan(self, num_nodes: int) -> CachePlan | None:
        """Load the plan that is given, if one is.

        Raises
        ------
        InputError
            If there is no such file, or it is a plan for another store.
        """
        plan = self.cache_plan
        if isinstance(plan, Path | str):
            if not Path(plan).is_file():
                raise InputError(f"there is no cache plan at {plan}: give the plan.h5 of a run over this store")
            plan = CachePlan.load(Path(plan))
        if plan is not None:
            highest = max(ids.max(initial=-1) for ids in (plan.feature_ids, plan.adjacency_ids))
            if highest >= num_nodes:
                raise InputError(
                    f"the plan caches node {highest}, the store has {num_nodes} nodes: it is another store's; "
                    "give the plan of a run over this one, or device_budget in its place"
                )
        return plan


@dataclass(frozen=True, slots=True)
class OpenGraph:
    """A store loaded into the tiers."""

    info: StoreInfo
    """Sizes of the store."""
    plan: CachePlan | None
    """What the device tier holds."""
    memory_bytes: int
    """The most that loading mini-batches will use."""
    nodes: npt.NDArray[np.int64]
    """(n,) ids to visit."""
    topology: Topology | StoredTopology
    """Adjacency, with its cache."""
    features: FeatureTiers | StoredFeatures
    """Features, with their caches."""
    device_bytes: int
    """What the device tier holds."""
    loader: Loader
    """Loads epochs."""
    columns: NodeColumns
    """Everything else."""


def open_graph(store_path: Path, nodes: Nodes, options: LoadOptions, tiers: TierOptions, stack: ExitStack) -> OpenGraph:
    """Check everything that can be checked beforehand, then load; or leave on disk what `host_budget` does not hold.

    `stack` closes what was opened.

    Raises
    ------
    InputError, BudgetError, StorageError
        As `GraphLoader` says.
    """
    store = stack.enter_context(GraphStore.open(store_path))
    plan = tiers.plan(store.info.num_nodes)
    given = nodes if isinstance(nodes, str) else _given_nodes(np.asarray(nodes), store.info.num_nodes)
    memory_bytes = _memory_bytes(store, options, tiers.device_budget if plan is None else plan.total_bytes)
    memory_bytes += _VISIT_BYTES * max(store.info.num_nodes, len(given))
    if tiers.device_budget:
        memory_bytes += _planning_bytes(store.info, options, tiers, max(store.info.num_nodes, len(given)))
    if plan is not None and plan.dynamic_rows:
        memory_bytes += SCORE_BYTES * store.info.num_nodes
    _logger.info("loading %s into memory needs up to %d bytes", store.path, memory_bytes)
    if tiers.host_budget is None or memory_bytes <= tiers.host_budget:
        return _in_memory(store, given, options, tiers, plan, memory_bytes)
    return _on_disk(store, given, options, tiers, plan, stack, memory_bytes)


def _in_memory(
    store: GraphStore,
    given: str | npt.NDArray[np.int64],
    options: LoadOptions,
    tiers: TierOptions,
    plan: CachePlan | None,
    memory_bytes: int,
) -> OpenGraph:
    labels = store.read_multi_labels() if store.info.is_multi_label else store.read_labels()
    chosen = _chosen_nodes(store, given, labels)
    indptr, indices = store.read_adjacency()
    if plan is None and tiers.device_budget:
        plan = _profiled_plan(store, Topology.in_memory(indptr, indices), chosen, options, tiers, options.superbatch)
    cached = (plan.adjacency_ids, plan.feature_ids) if plan is not None else (np.empty(0, np.int64),) * 2
    dynamic = (0, None) if plan is None else (plan.dynamic_rows, plan.dynamic_options)
    topology = cached_topology(indptr, indices, cached[0])
    rows_ND = store.read_features()
    features = FeatureTiers(rows_ND, cached[1], check=tiers.check, dynamic_rows=dynamic[0], dynamic=dynamic[1])
    return OpenGraph(
        info=store.info,
        plan=plan,
        memory_bytes=memory_bytes,
        nodes=chosen,
        topology=topology,
        features=features,
        device_bytes=features.device_bytes + adjacency_device_bytes(topology),
        loader=options.loader(topology, features),
        columns=NodeColumns(
            store.path, labels, lambda opened: NodeDegrees(np.diff(indptr), opened.read_out_degree()), holds_ids=True
        ),
    )


def _on_disk(
    store: GraphStore,
    given: str | npt.NDArray[np.int64],
    options: LoadOptions,
    tiers: TierOptions,
    plan: CachePlan | None,
    stack: ExitStack,
    memory_bytes: int,
) -> OpenGraph:
    assert tiers.host_budget is not None  # else all is in memory
    if not store.info.feature_dim or tiers.check:
        what = "a check of rows" if tiers.check else "a graph without features"
        raise BudgetError(
            f"loading {store.path} needs up to {memory_bytes} bytes of memory and host_budget is {tiers.host_budget}: "
            f"set host_budget to at least {memory_bytes} ({what} is not for a graph that stays on disk)"
        )
    try:
        if tiers.device_budget:
            plan = _plan_from_disk(store, given, options, tiers)
        opened = open_on_disk(
            store,
            lambda columns: _chosen_nodes(store, given, columns.labels),
            lambda nodes: options.batches(nodes, 0),
            plan,
            DiskOptions(
                fanouts=options.fanouts,
                batch_size=options.batch_size,
                seed=options.seed,
                purpose=options.purpose,
                replace=options.replace,
                threads=options.threads,
                stall_timeout_s=options.stall_timeout_s,
                host_budget=tiers.host_budget,
            ),
            stack,
        )
    except BudgetError as error:
        if error.needed is None or error.needed < memory_bytes:
            raise
        raise BudgetError(
            f"loading {store.path} needs up to {memory_bytes} bytes of memory and host_budget is {tiers.host_budget}: "
            f"set host_budget to at least {memory_bytes}",
            memory_bytes,
        ) from error
    features = opened.features
    return OpenGraph(
        info=store.info,
        plan=plan,
        memory_bytes=opened.plan.total,
        nodes=opened.nodes,
        topology=opened.topology,
        features=features,
        device_bytes=features.device_CD.nbytes + opened.topology.cache_bytes,
        loader=opened.loader,
        columns=opened.columns,
    )


def _plan_from_disk(
    store: GraphStore, given: str | npt.NDArray[np.int64], options: LoadOptions, tiers: TierOptions
) -> CachePlan:
    """Make the plan with the adjacency on disk, before anything else takes memory."""
    assert tiers.host_budget is not None
    info, num_seeds = store.info, max(store.info.split_sizes["train"], len(given))
    counts = PROFILE_COUNTS * count_bytes(num_seeds, options, tiers.profile_epochs, tiers.profile_epochs)
    longest = int(in_degrees(store).max(initial=0))
    profile = plan_profile(store, options, tiers.host_budget, counts_bytes=counts, longest_list=longest)
    planning = plan_bytes(info.num_nodes, tiers.device_budget, max(1, info.feature_row_bytes))
    needed = max(profile.memory_bytes, (counts + _DEGREE_BYTES) * info.num_nodes + planning)
    if needed > tiers.host_budget:
        raise BudgetError(
            f"planning what the device tier holds needs {needed} bytes of memory and host_budget is "
            f"{tiers.host_budget}: set host_budget to at least {needed}, or give a cache_plan",
            needed,
        )
    labels = store.read_multi_labels() if store.info.is_multi_label else narrow_labels(store)
    nodes, share = _chosen_nodes(store, given, labels), profile.share
    if share is None:
        topology = Topology.in_memory(*store.read_adjacency())
        return _profiled_plan(store, topology, nodes, options, tiers, profile.hyperbatch)
    with StoredTopology(
        store,
        np.empty(0, np.int64),
        buffer_bytes=share.buffer,
        indptr_buffer_bytes=share.indptr_buffer,
        threads=options.threads,
    ) as stored:
        return _profiled_plan(store, stored, nodes, options, tiers, profile.hyperbatch)


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
    planning = plan_bytes(info.num_nodes, tiers.device_budget, max(1, info.feature_row_bytes))
    return max(profile_bytes(info, options, num_seeds, counts), counts * info.num_nodes + planning)


def _id_bytes(store: GraphStore) -> int:
    """Bound what the original ids need, should anybody ask for them."""
    if not store.has(ORIGINAL_ID) or store.extent(ORIGINAL_ID).dtype.kind != "S":
        return 8 * store.info.num_nodes
    return _TEXT_BYTES * store.nbytes(ORIGINAL_ID) + _TEXT_OBJECT_BYTES * store.info.num_nodes


def _chosen_nodes(store: GraphStore, nodes: str | npt.NDArray[np.int64], labels: Labels) -> npt.NDArray[np.int64]:
    """Ids to visit."""
    if not isinstance(nodes, str):
        return nodes
    if nodes == "all":
        return np.arange(store.info.num_nodes)
    split = next((split for split in SPLITS if split == nodes), None)
    if split is None:
        raise InputError(f"nodes must be {', '.join(SPLITS)}, all, or an array of ids (got {nodes!r})")
    chosen = store.read_split(split)
    if store.has(LABELS) or store.info.is_multi_label:
        chosen = chosen[labelled(labels)[chosen]]
    if not len(chosen):
        raise InputError(f"{store.path} has no labelled node in its {split} split: give the ids of the nodes to visit")
    return chosen


def _given_nodes(ids: npt.NDArray[Any], num_nodes: int) -> npt.NDArray[np.int64]:
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
        raise InputError(f"nodes must be a 1-D array of integer ids (got {ids.ndim}-D {ids.dtype})")
    wrong = (ids < 0) | (ids >= num_nodes)
    if wrong.any():
        raise InputError(f"node {ids[wrong][0]} is outside [0, {num_nodes})")
    return ids.astype(np.int64)


def _profiled_plan(
    store: GraphStore,
    topology: Topology | StoredTopology,
    nodes: IdArray,
    options: LoadOptions,
    tiers: TierOptions,
    superbatch: int,
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
    )
    return build_plan(
        profile,
        in_degrees(store),
        row_bytes=max(1, store.info.feature_row_bytes),
        id_bytes=store.extent(INDICES).dtype.itemsize,
        device_budget=tiers.device_budget,
        counting="input",
        max_fanout=largest_fanout(fanouts),
    )
