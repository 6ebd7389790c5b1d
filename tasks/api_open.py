"""How the Python API opens a graph: arguments checked, bytes bounded, then store and plan loaded into the tiers."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kernels.nn.layers import NodeDegrees
from kernels.topology import Topology
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from storage.cache.cached_topology import adjacency_device_bytes, cached_topology
from storage.cache.plan import CachePlan
from storage.cache.tiers import FeatureTiers
from storage.errors import BudgetError
from storage.graph_store import GraphStore, StoreInfo
from tasks.api_batch import NodeColumns
from tasks.api_disk import check_opening, open_on_disk
from tasks.api_options import LoadOptions, Nodes, TierOptions, chosen_nodes, given_nodes, most_visited
from tasks.api_plan import loading_bytes, plan_from_disk, profiled_plan
from tasks.data_source import Loader

_logger = logging.getLogger(__name__)


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
    given = nodes if isinstance(nodes, str) else given_nodes(np.asarray(nodes), store.info.num_nodes)
    memory_bytes = loading_bytes(store, options, tiers, plan, len(given))
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
    chosen = chosen_nodes(store, given, labels)
    indptr, indices = store.read_adjacency()
    if plan is None and tiers.device_budget:
        plan = profiled_plan(store, Topology.in_memory(indptr, indices), chosen, options, tiers, options.superbatch)
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
    try:
        check_opening(store, most_visited(store.info, given), tiers)
        if tiers.device_budget:
            plan = plan_from_disk(store, given, options, tiers)

        def chosen(columns: NodeColumns) -> npt.NDArray[np.int64]:
            return chosen_nodes(store, given, columns.labels)

        opened = open_on_disk(store, chosen, plan, options, tiers, stack)
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
