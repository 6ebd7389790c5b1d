"""A graph on disk as training takes it: topology and features stay in the store's blocks, memory stays in a budget."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernels.cpu.heap import give_back_large_arrays
from kernels.mfg import IdArray, Sample
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import ModelSpec
from kernels.rng import Purpose
from kernels.sampler import shuffled_batches
from storage.blocks.frequent_rows import Keep
from storage.blocks.gathering import GatherOptions
from storage.blocks.hyperbatch import HyperbatchSampler
from storage.blocks.io_stats import IoStats
from storage.blocks.spill_room import SpillRoom
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from storage.errors import InputError
from storage.graph_store import LABELS, SPLITS, GraphStore, StoreInfo
from tasks.batch_check import check_bytes, sampling_memory
from tasks.batch_sizes import sizes_of
from tasks.data_source import Inference, Loader
from tasks.disk_plan import opening_bytes, plan_training, tile_budget
from tasks.first_batches import PROBED, measure_first
from tasks.hyperbatch_loader import HyperbatchLoader
from tasks.hyperbatch_options import HyperbatchOptions
from tasks.inference_sizes import inference_disk_bytes
from tasks.objective import Labels
from tasks.score_rows import ScoreFile, ScoreRows, ScoresOnDisk
from tasks.storage_memory import StoragePlan
from tasks.stored_columns import narrow_labels, stored_degrees
from tasks.tiled_inference import TiledInference
from tasks.training_types import Splits, TrainOptions

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """How a graph on disk is trained on; nothing here changes a loss."""

    host_budget: int
    """Bytes of memory above the libraries' own."""
    directory: Path
    """Where to spill."""
    disk_budget: int | None = None
    """Most bytes on disk, what is there already included; None takes what is free."""
    disk_taken: int = 0
    """Bytes of it that are taken while rows and samples are spilled."""
    hyperbatch: int | None = None
    """Mini-batches sampled and gathered together; None takes as many as make an epoch short."""
    keep: Keep = "top"
    """Which rows the host cache keeps."""


@dataclass(frozen=True, slots=True)
class OnDiskData:
    """Arguments of `tasks.trainer.train_from`, in its order, and the number of classes."""

    source: OnDisk
    """Graph and features."""
    labels: Labels
    """Of all nodes, in the narrowest type that holds them."""
    splits: Splits
    """Labelled nodes to train, validate and test on."""
    degrees: NodeDegrees | None
    """Of all nodes, where the network reads them."""
    num_classes: int
    """Classes, or labels of a multi-label task."""


class OnDisk:
    """The data source of a graph on disk; `open_on_disk` makes one."""

    def __init__(
        self,
        topology: StoredTopology,
        features: StoredFeatures,
        plan: StoragePlan,
        spec: ModelSpec,
        storage: StorageOptions,
        info: StoreInfo,
    ) -> None:
        self.graph, self.features, self.plan = topology, features, plan
        self._spec, self._storage, self._info = spec, storage, info

    @property
    def stats(self) -> IoStats:
        """Counts of all requests to the disk."""
        return self.features.stats

    @property
    def reused_bytes(self) -> int:
        """As `DataSource.reused_bytes`: what is planned for a step, and no longer than an epoch lasts.

        Were all kept, arrays of sampling, gathering and steps would add up with those of evaluation: measured, by a
        half.
        """
        return self.plan.parts["training step"]

    def loader(self, options: TrainOptions, purpose: Purpose) -> Loader:
        """As `DataSource.loader`."""
        sampler = _sampler(self.graph, options, purpose)
        plan, storage = self.plan, self._storage
        return HyperbatchLoader(
            sampler,
            self.features,
            HyperbatchOptions(
                hyperbatch=plan.hyperbatch,
                gather=GatherOptions(
                    plan.cache,
                    plan.spill,
                    storage.directory,
                    storage.keep,
                    plan.row_room,
                    one_cache=plan.one_cache,
                ),
                memory=sampling_memory(
                    plan, storage.directory, self.graph.id_dtype.itemsize, options.threads, self.features.row_bytes
                ),
                spills_samples=plan.spills_samples,
                sample_room=plan.sample_room,
                check_bytes=lambda sample: self._check_bytes(sample, options.threads),
                in_place=self.features.is_readable_in_place and options.input_dropout == 0,
                stall_timeout_s=options.stall_timeout_s,
            ),
        )

    def inference(
        self, nodes: IdArray, spec: ModelSpec, degrees: NodeDegrees | None, options: TrainOptions
    ) -> Inference:
        """As `DataSource.inference`: layer by layer in tiles, in the memory that training leaves."""
        storage = self._storage
        room = SpillRoom.of(storage.disk_budget, storage.disk_taken, storage.directory)
        return TiledInference(
            self.graph,
            self.features,
            nodes,
            spec,
            degrees=degrees,
            budget_bytes=tile_budget(self.plan, spec, self._info),
            directory=storage.directory,
            edges_disk_bytes=max(
                0,
                room.nbytes
                - inference_disk_bytes(spec, self.graph.num_nodes, ScoreFile.of(self._info, options.metric)),
            ),
        )

    def score_rows(self, num_rows: int, options: TrainOptions) -> ScoreRows:
        """As `DataSource.score_rows`: on disk, and ranked in the memory of tiles."""
        memory = tile_budget(self.plan, self._spec, self._info)
        return ScoresOnDisk(self._storage.directory, num_rows, self.stats, memory)

    def _check_bytes(self, sample: Sample, threads: int) -> None:
        """Refuse a mini-batch larger than there is memory for, before its rows take any."""
        found = sizes_of(sample, self._spec, are_integers=self.features.dtype.kind != "f")
        check_bytes(self.plan, found, threads=threads, row_bytes=self.features.row_bytes)


@contextmanager
def open_on_disk(
    store_path: Path,
    cached_features: IdArray,
    cached_lists: IdArray,
    options: TrainOptions,
    storage: StorageOptions,
) -> Iterator[OnDiskData]:
    """Open a store for training from disk: share out the budget, fill the device tier, read what is small.

    Parameters
    ----------
    store_path : Path
    cached_features, cached_lists : integer arrays
        Nodes of the device tier, ascending.
    options : TrainOptions
    storage : StorageOptions

    Yields
    ------
    OnDiskData

    Raises
    ------
    InputError
        If the graph has no features or labels.
    BudgetError
        If the budget is too small; names the one that would do.
    StorageError
        If the store is damaged.
    """
    give_back_large_arrays()
    with ExitStack() as stack:
        store = stack.enter_context(GraphStore.open(store_path))
        _require_columns(store)
        labels = store.read_multi_labels() if store.info.is_multi_label else narrow_labels(store)
        splits = Splits(*map(store.read_split, SPLITS)).labelled(labels)
        degrees = stored_degrees(store) if options.kind == "gcn" else None
        spec = options.model_spec(max(1, store.info.feature_dim), max(1, store.info.num_classes))
        plan = _plan(store, splits.train, len(cached_features), cached_lists, options, storage, spec)
        stats = IoStats()
        topology = stack.enter_context(
            StoredTopology(
                store,
                cached_lists,
                buffer_bytes=plan.topology.buffer,
                indptr_buffer_bytes=plan.topology.indptr_buffer,
                threads=options.threads,
                stats=stats,
            )
        )
        features = stack.enter_context(
            StoredFeatures(store, cached_features, buffer_bytes=plan.feature_buffer, stats=stats)
        )
        yield OnDiskData(
            OnDisk(topology, features, plan, spec, storage, store.info),
            labels,
            splits,
            degrees,
            store.info.num_classes,
        )


def _require_columns(store: GraphStore) -> None:
    has_labels = store.has(LABELS) or store.info.is_multi_label
    if not store.info.feature_dim or not has_labels:
        missing = "features" if has_labels else "labels"
        raise InputError(f"the graph has no {missing}: give data.{missing}, or stop before training (--until cache)")


def _sampler(topology: StoredTopology, options: TrainOptions, purpose: Purpose) -> HyperbatchSampler:
    return HyperbatchSampler(topology, options.fanouts, seed=options.seed, purpose=purpose, replace=options.replace)


def _plan(
    store: GraphStore,
    train_nodes: IdArray,
    cached_rows: int,
    cached_lists: IdArray,
    options: TrainOptions,
    storage: StorageOptions,
    spec: ModelSpec,
) -> StoragePlan:
    """Share out the budget for mini-batches like the first ones; `train_nodes` are labelled."""
    if not len(train_nodes):
        raise InputError("no labelled node to train on: check the training split and the labels")
    first = measure_first(
        store,
        shuffled_batches(train_nodes, options.batch_size, seed=options.seed, epoch=0)[:PROBED],
        cached_lists,
        lambda topology: _sampler(topology, options, Purpose.TRAIN),
        threads=options.threads,
        spec=spec,
        all_seeds=train_nodes,
        host_budget=storage.host_budget,
        opening_bytes=opening_bytes(store, spec),
    )
    evaluated = inference_disk_bytes(spec, store.info.num_nodes, ScoreFile.of(store.info, options.metric))
    return plan_training(
        store,
        options,
        spec,
        first,
        num_seeds=len(train_nodes),
        cached_rows=cached_rows,
        host_budget=storage.host_budget,
        hyperbatch=storage.hyperbatch,
        room=SpillRoom.of(storage.disk_budget, storage.disk_taken, storage.directory, least=evaluated),
    )
