"""How the Python API opens a graph that memory does not hold: topology and features stay in the store's blocks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from kernels.nn.model import ModelSpec
from storage.blocks.gathering import GatherOptions
from storage.blocks.hyperbatch import HyperbatchSampler
from storage.blocks.io_stats import IoStats
from storage.blocks.nameless import open_nameless
from storage.blocks.row_check import RowChecker
from storage.blocks.spill_room import SpillRoom
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from storage.cache.plan import CachePlan
from storage.errors import BudgetError, MachineError
from storage.graph_store import INDICES, GraphStore, StoreInfo
from tasks.api_batch import NodeColumns
from tasks.api_options import LoadOptions, TierOptions
from tasks.batch_check import check_bytes, sampling_memory
from tasks.batch_sizes import largest_possible, sizes_of
from tasks.first_batches import PROBED, measure_first, probing_bytes
from tasks.hyperbatch_loader import HyperbatchLoader
from tasks.hyperbatch_options import HyperbatchOptions
from tasks.storage_memory import StoragePlan, plan_storage
from tasks.storage_need import ROWS_AT_ONCE_COPIED
from tasks.stored_columns import degree_bytes, label_dtype, narrow_labels, stored_degrees

_VISIT_BYTES = 64


@dataclasses.dataclass(frozen=True, slots=True)
class OpenOnDisk:
    """A store whose large parts stay where they are."""

    topology: StoredTopology
    """Adjacency, with the lists that a plan caches."""
    features: StoredFeatures
    """Features, with the rows that a plan caches."""
    loader: HyperbatchLoader
    """Loads epochs."""
    columns: NodeColumns
    """Everything else."""
    nodes: npt.NDArray[np.int64]
    """(n,) ids to visit."""
    plan: StoragePlan
    """How memory is shared out."""


def open_on_disk(
    store: GraphStore,
    chosen: Callable[[NodeColumns], npt.NDArray[np.int64]],
    cached: CachePlan | None,
    options: LoadOptions,
    tiers: TierOptions,
    stack: ExitStack,
) -> OpenOnDisk:
    """Open a store, share out the memory, and read what is small.

    Parameters
    ----------
    store : GraphStore
        Open as long as the result is used.
    chosen : callable
        Gives the nodes to visit.
    cached : CachePlan, optional
        What the device tier holds; a dynamic cache stays empty: the disk's own cache of frequent rows takes its place.
    options : LoadOptions
    tiers : TierOptions
        With a `host_budget`.
    stack : ExitStack
        Closes everything.

    Raises
    ------
    BudgetError
        If `host_budget` or `disk_budget` is too small; names the one that would do.
    MachineError
        If nothing can be spilled where it is to be, or the disk is too small.
    StorageError
        If the store is damaged.
    """
    none, stats = np.empty(0, np.int64), IoStats()
    lists, rows = (none, none) if cached is None else (cached.adjacency_ids, cached.feature_ids)
    labels = store.read_multi_labels() if store.info.is_multi_label else narrow_labels(store)
    columns = NodeColumns(store.path, labels, stored_degrees, holds_ids=False)
    nodes, folder = chosen(columns), tiers.scratch or store.path.parent
    _check_scratch(folder)
    checker = RowChecker(store) if tiers.check and store.info.feature_row_bytes else None
    if checker is not None:
        stack.callback(checker.close)
    kept = labels.nbytes + _VISIT_BYTES * len(nodes) + degree_bytes(store.info)
    kept += len(rows) * store.info.feature_row_bytes + (0 if checker is None else checker.nbytes)
    plan = _plan(store, nodes, lists, kept, folder, options, tiers)
    topology = stack.enter_context(
        StoredTopology(
            store,
            lists,
            buffer_bytes=plan.topology.buffer,
            indptr_buffer_bytes=plan.topology.indptr_buffer,
            threads=options.threads,
            stats=stats,
        )
    )
    features = stack.enter_context(StoredFeatures(store, rows, buffer_bytes=plan.feature_buffer, stats=stats))
    loader = HyperbatchLoader(_sampler(topology, options), features, _loading(plan, folder, options, checker, store))
    return OpenOnDisk(topology, features, loader, columns, nodes, plan)


def check_opening(store: GraphStore, num_visited: int, tiers: TierOptions) -> None:
    """Refuse a budget that does not hold what `open_on_disk` takes until it is known what loading so many nodes takes.

    Raises
    ------
    BudgetError
        Names the least that would do.
    """
    assert tiers.host_budget is not None  # else all is in memory
    needed = _opening_bytes(store.info, num_visited)
    if needed > tiers.host_budget:
        raise BudgetError(
            f"loading {store.path} from disk needs {needed} bytes of memory to begin with and host_budget is "
            f"{tiers.host_budget}: set host_budget to at least {needed}",
            needed,
        )


def _opening_bytes(info: StoreInfo, num_visited: int) -> int:
    """Labels, nodes to visit, and what finding out the sizes of mini-batches takes."""
    label_bytes = info.num_classes if info.is_multi_label else label_dtype(info.num_classes).itemsize
    return info.num_nodes * label_bytes + _VISIT_BYTES * num_visited + probing_bytes(info)


def _loading(
    plan: StoragePlan, folder: Path, options: LoadOptions, checker: RowChecker | None, store: GraphStore
) -> HyperbatchOptions:
    row_bytes, id_bytes = store.info.feature_row_bytes, store.extent(INDICES).dtype.itemsize
    return HyperbatchOptions(
        hyperbatch=plan.hyperbatch,
        gather=GatherOptions(plan.cache, plan.spill, folder, room=plan.row_room, one_cache=plan.one_cache),
        memory=sampling_memory(plan, folder, id_bytes, options.threads, row_bytes),
        spills_samples=plan.spills_samples,
        sample_room=plan.sample_room,
        check_bytes=lambda sample: check_bytes(plan, sizes_of(sample), threads=options.threads, row_bytes=row_bytes),
        check_rows=None if checker is None else checker.check,
        in_place=False,
        stall_timeout_s=options.stall_timeout_s,
    )


def _check_scratch(folder: Path) -> None:
    """Find out whether files can be made there; they have no names, so whatever ends the process, nothing is left.

    Raises
    ------
    MachineError
        If not.
    """
    try:
        os.close(open_nameless(folder, direct=False))
    except OSError as error:
        raise MachineError(
            f"{folder} cannot be written to ({error.strerror}), and a loader whose graph host_budget does not hold "
            "keeps rows on disk there, by default beside the store: give another folder (scratch), or set host_budget "
            "higher"
        ) from error


def _sampler(topology: StoredTopology, options: LoadOptions) -> HyperbatchSampler:
    return HyperbatchSampler(
        topology, options.fanouts, seed=options.seed, purpose=options.purpose, replace=options.replace
    )


def _plan(
    store: GraphStore,
    nodes: npt.NDArray[np.int64],
    cached_lists: IdArray,
    kept_bytes: int,
    folder: Path,
    options: LoadOptions,
    tiers: TierOptions,
) -> StoragePlan:
    """Share out the memory by the sizes of the first mini-batches."""
    assert tiers.host_budget is not None  # else all is in memory
    seeds = options.batches(nodes, 0)[:PROBED] or [np.empty(0, np.int64)]
    first = measure_first(
        store,
        seeds,
        cached_lists,
        lambda topology: _sampler(topology, options),
        threads=options.threads,
        all_seeds=nodes,
        host_budget=tiers.host_budget,
        opening_bytes=_opening_bytes(store.info, len(nodes)),
    )
    info, id_bytes = store.info, first.sizes.id_bytes
    # The model is not ours: a step on a mini-batch takes none of this memory.
    spec = ModelSpec("sage" if options.fanouts else "mlp", 1, 1, 1, max(1, len(options.fanouts)))
    graph = (info.num_nodes, info.num_edges)
    num_seeds = min(options.batch_size, max(1, len(nodes)))
    largest = largest_possible(*graph, options.fanouts, num_seeds, id_bytes, spec, replace=options.replace)
    largest = dataclasses.replace(largest, step_bytes=0)
    return plan_storage(
        store,
        tiers.host_budget,
        first.expected(largest),
        num_batches=max(1, -(-len(nodes) // options.batch_size)),
        kept_bytes=kept_bytes + first.list_bytes,
        evaluation_bytes=0,
        threads=options.threads,
        largest=largest,
        shared_nodes=first.shared_nodes,
        room=SpillRoom.of(tiers.disk_budget, 0, folder),
        rows_at_once=ROWS_AT_ONCE_COPIED,
    )
