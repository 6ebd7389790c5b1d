"""How the Python API opens a graph that memory does not hold: topology and features stay in the store's blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray, Sample
from kernels.nn.model import ModelSpec
from kernels.rng import Purpose
from storage.blocks.gathering import GatherOptions
from storage.blocks.hyperbatch import HyperbatchSampler
from storage.blocks.io_stats import IoStats
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from storage.cache.plan import CachePlan
from storage.errors import MachineError
from storage.graph_store import GraphStore
from storage.leftovers import scratch_directory
from tasks.api_batch import NodeColumns
from tasks.batch_sizes import BatchSizes, largest_possible, shared_nodes
from tasks.first_batches import PROBED, expected_sizes, sample_first
from tasks.hyperbatch_loader import HyperbatchLoader, HyperbatchOptions
from tasks.on_disk import narrow_labels, stored_degrees
from tasks.storage_memory import StoragePlan, check_bytes, plan_storage

_DEGREE_BYTES = 8
_VISIT_BYTES = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DiskOptions:
    """What is drawn, and the memory for it; `GraphLoader` says what each field means."""

    fanouts: tuple[int, ...]
    batch_size: int
    seed: int
    purpose: Purpose
    replace: bool
    threads: int
    stall_timeout_s: float
    host_budget: int


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
    batches: Callable[[IdArray], list[IdArray]],
    cached: CachePlan | None,
    options: DiskOptions,
    stack: ExitStack,
) -> OpenOnDisk:
    """Open a store, share out the memory, and read what is small.

    Parameters
    ----------
    store : GraphStore
        Open as long as the result is used.
    chosen : callable
        Gives the nodes to visit.
    batches : callable
        Gives the seeds of the first mini-batches.
    cached : CachePlan, optional
        What the device tier holds; a dynamic cache stays empty: the disk's own cache of frequent rows takes its place.
    options : DiskOptions
    stack : ExitStack
        Closes everything.

    Raises
    ------
    BudgetError
        If `host_budget` is too small; names the one that would do.
    StorageError
        If the store is damaged.
    """
    none, stats = np.empty(0, np.int64), IoStats()
    lists, rows = (none, none) if cached is None else (cached.adjacency_ids, cached.feature_ids)
    labels = store.read_multi_labels() if store.info.is_multi_label else narrow_labels(store)
    columns = NodeColumns(store.path, labels, stored_degrees, holds_ids=False)
    nodes = chosen(columns)
    seeds = batches(nodes)[:PROBED] or [np.empty(0, np.int64)]
    samples, list_bytes = sample_first(
        store, seeds, lists, lambda topology: _sampler(topology, options), threads=options.threads
    )
    kept = labels.nbytes + _VISIT_BYTES * len(nodes) + _DEGREE_BYTES * store.info.num_nodes
    kept += len(rows) * store.info.feature_row_bytes + list_bytes
    plan = _plan(store, samples, len(nodes), kept, options)
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
    sampler = _sampler(topology, options)
    directory = stack.enter_context(_scratch_beside(store.path))
    loader = HyperbatchLoader(
        sampler,
        features,
        HyperbatchOptions(
            hyperbatch=plan.hyperbatch,
            gather=GatherOptions(plan.cache, plan.spill, directory, room=plan.row_room),
            memory=plan.sampling_memory(directory),
            spills_samples=plan.spills_samples,
            sample_room=plan.sample_room,
            check_bytes=lambda sample: check_bytes(
                plan, BatchSizes.largest([sample]), threads=options.threads, row_bytes=features.row_bytes
            ),
            in_place=False,
            stall_timeout_s=options.stall_timeout_s,
        ),
    )
    return OpenOnDisk(topology, features, loader, columns, nodes, plan)


@contextmanager
def _scratch_beside(path: Path) -> Iterator[Path]:
    """Make a directory for spill files beside the store; what killed loaders left there goes.

    Raises
    ------
    MachineError
        If nothing can be written there.
    """
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(scratch_directory(path.parent, ".garden-loader-"))
        except OSError as error:
            raise MachineError(
                f"{path.parent} cannot be written to ({error.strerror}), and a loader whose graph host_budget does not "
                "hold keeps rows on disk beside the store: copy the store to a folder that can be written to, or set "
                "host_budget higher"
            ) from error
        yield directory


def _sampler(topology: StoredTopology, options: DiskOptions) -> HyperbatchSampler:
    return HyperbatchSampler(
        topology, options.fanouts, seed=options.seed, purpose=options.purpose, replace=options.replace
    )


def _plan(
    store: GraphStore, samples: tuple[Sample, ...], num_nodes: int, kept_bytes: int, options: DiskOptions
) -> StoragePlan:
    """Share out the memory by the sizes of the first mini-batches."""
    info, id_bytes = store.info, samples[0].input_nodes.itemsize
    # The model is not ours: a step on a mini-batch takes none of this memory.
    spec = ModelSpec("sage" if options.fanouts else "mlp", 1, 1, 1, max(1, len(options.fanouts)))
    graph = (info.num_nodes, info.num_edges)
    largest = largest_possible(*graph, options.fanouts, options.batch_size, id_bytes, spec, replace=options.replace)
    largest = dataclasses.replace(largest, step_bytes=0)
    return plan_storage(
        store,
        options.host_budget,
        expected_sizes(BatchSizes.largest(samples), largest),
        num_batches=max(1, -(-num_nodes // options.batch_size)),
        kept_bytes=kept_bytes,
        evaluation_bytes=0,
        threads=options.threads,
        largest=largest,
        shared_nodes=shared_nodes(samples),
    )
