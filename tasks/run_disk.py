"""How much disk the stages of a run take together: what each adds and leaves, known before the first one writes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conf.schema import PipelineConfig
from kernels.nn.model import ModelSpec
from storage.blocks.layout import estimate_store_bytes, laid_out_bytes
from storage.blocks.spill_room import spilled_bytes
from storage.csc import id_dtype
from storage.expected_store import StoreSizes
from storage.formats.base import GraphSource
from storage.ingest import IngestOptions
from tasks.batch_sizes import largest_possible
from tasks.bounds import PROFILE_COUNTS, count_bytes
from tasks.budgets import SMALL_FILES_BYTES, Estimate
from tasks.hyperbatch_options import GENERATIONS
from tasks.hyperbatch_size import sample_disk_bytes
from tasks.inference_sizes import inference_disk_bytes
from tasks.memory import ingested_bytes, ingested_edges
from tasks.score_rows import ScoreFile
from tasks.sources import ingest_options
from tasks.specs import CACHE, PROFILE, REORDER, STAGES, TRAIN
from tasks.training_config import model_disk_bytes, train_options

_PLAN_NODE_BYTES = 16


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """What decides how much disk the stages after ingest take."""

    num_nodes: int
    """Nodes."""
    num_edges: int
    """Edges, or a bound of them."""
    row_bytes: int
    """Bytes of a feature row."""
    feature_dim: int
    """Features."""
    num_classes: int | None
    """Classes, or labels of a multi-label task; None where they are not known yet."""
    num_train: int
    """Training nodes, or a bound of them."""
    num_scored: int
    """Nodes whose scores are ranked at once, as far as they are sure."""
    most_scored: int
    """A bound of them."""
    store_bytes: int
    """Bytes of the laid-out store, or a bound of them."""

    @classmethod
    def of_source(cls, source: GraphSource, options: IngestOptions, block_bytes: int) -> GraphSizes:
        """Bound them by what a source declares; its nodes must be known."""
        assert source.num_nodes is not None
        train = (source.splits or {}).get("train", ())
        tested = None if source.splits is None or options.split == "random" else len(source.splits["test"])
        dim = source.features.dim if source.features is not None else 0
        return cls(
            source.num_nodes,
            ingested_edges(source, options),
            4 * dim,
            dim,
            len(source.labels.names) if source.labels is not None else None if source.labelled_later else 0,
            max(len(train), math.ceil(options.train_fraction * source.num_nodes)),
            tested or 0,
            source.num_nodes,
            laid_out_bytes(ingested_bytes(source, options), source.num_nodes, block_bytes),
        )

    @classmethod
    def of_store(cls, store: StoreSizes, block_bytes: int) -> GraphSizes:
        """Take them from the ingested store, or from the laid-out one, be it there or expected."""
        info = store.info
        return cls(
            info.num_nodes,
            info.num_edges,
            info.feature_row_bytes,
            info.feature_dim,
            info.num_classes,
            info.split_sizes["train"],
            info.split_sizes["test"],
            max(info.split_sizes["test"], info.split_sizes["valid"]),
            estimate_store_bytes(store, block_bytes),
        )


@dataclass(frozen=True, slots=True)
class StageDisk:
    """Bytes on disk of one stage."""

    adds: int
    """Most of them at any time, as far as they are sure to be needed."""
    enough: int
    """As many as are sure to do."""
    kept: int
    """What stays."""

    @classmethod
    def written_once(cls, nbytes: int) -> StageDisk:
        """A stage whose output grows until it is done."""
        return cls(nbytes, nbytes, nbytes)


def ingest_jointly(config: PipelineConfig, source: GraphSource, estimate: Estimate, stages: Sequence[str]) -> Estimate:
    """Add to the estimate of ingest what the stages after it take, once the nodes are known."""
    if source.num_nodes is None:
        return estimate
    options = ingest_options(config)
    sizes = GraphSizes.of_source(source, options, int(config.layout.block_bytes))
    return jointly(estimate, config, sizes, stages, ingested_bytes(source, options))


def beside_spills(config: PipelineConfig, sizes: GraphSizes, ingested: int) -> int:
    """Bytes on disk beside what training spills: what the stages before it leave, and the model."""
    kept = sum(stage_disk(stage, config, sizes).kept for stage in STAGES[1:])
    return kept + (ingested if config.layout.keep_ingest else 0)


def jointly(
    estimate: Estimate, config: PipelineConfig, sizes: GraphSizes, stages: Sequence[str], kept: int, *, freed: int = 0
) -> Estimate:
    """Add to a stage's estimate what the stages after it take, beyond what is there before it.

    Parameters
    ----------
    estimate : Estimate
        Of the stage.
    config : PipelineConfig
    sizes : GraphSizes
    stages : sequence of str
        Those after it.
    kept : int
        Bytes that it leaves.
    freed : int
        Bytes of its input that go once it is done; those of its output go once `reorder` is done.
    """
    held, joint, enough = kept - freed, 0, 0
    for stage in stages:
        disk = stage_disk(stage, config, sizes)
        joint, enough = max(joint, held + disk.adds), max(enough, held + disk.enough)
        held += disk.kept
        if stage == REORDER and not config.layout.keep_ingest:
            held -= kept
    return dataclasses.replace(estimate, joint_disk_bytes=joint, enough_disk_bytes=enough)


def stage_disk(stage: str, config: PipelineConfig, sizes: GraphSizes) -> StageDisk:
    """What a stage after ingest takes."""
    stages: dict[str, Callable[[], StageDisk]] = {
        REORDER: lambda: StageDisk.written_once(sizes.store_bytes + SMALL_FILES_BYTES),
        PROFILE: lambda: StageDisk.written_once(profile_disk_bytes(config, sizes.num_train, sizes.num_nodes)),
        CACHE: lambda: StageDisk.written_once(plan_disk_bytes(sizes.num_nodes)),
        TRAIN: lambda: _training_disk(config, sizes),
    }
    return stages[stage]()


def profile_disk_bytes(config: PipelineConfig, num_train: int, num_nodes: int) -> int:
    """Bytes of an access profile."""
    asked = config.profile
    one = count_bytes(num_train, config.sampling, asked.epochs, asked.heldout_epochs)
    return PROFILE_COUNTS * one * num_nodes + SMALL_FILES_BYTES


def plan_disk_bytes(num_nodes: int) -> int:
    """Bytes of a cache plan."""
    return _PLAN_NODE_BYTES * num_nodes + SMALL_FILES_BYTES


def _training_disk(config: PipelineConfig, sizes: GraphSizes) -> StageDisk:
    """Beside the model: from disk, layers' files of evaluation, or what hyperbatches spill."""
    least, most = (_spec(config, sizes, sizes.num_classes or unknown) for unknown in (1, config.model.hidden))
    adds, enough = model_disk_bytes(least, config.training.epochs), model_disk_bytes(most, config.training.epochs)
    if config.storage.mode == "storage":
        scores = ScoreFile(sizes.num_scored, least.num_classes + 1)
        most_scores = ScoreFile(sizes.most_scored, 2 * most.num_classes)
        adds += inference_disk_bytes(least, sizes.num_nodes, scores)
        enough += max(
            inference_disk_bytes(most, sizes.num_nodes, most_scores),
            _most_spilled(config, sizes, most) + most_scores.disk_bytes,  # of validation over sampled neighbors
        )
    return StageDisk(adds, enough, model_disk_bytes(least, config.training.epochs))


def _most_spilled(config: PipelineConfig, sizes: GraphSizes, spec: ModelSpec) -> int:
    """Samples of each hyperbatch held, and rows of one of its mini-batches, all as large as any can be."""
    sampling, id_bytes = config.sampling, id_dtype(sizes.num_nodes).itemsize
    graph = (sizes.num_nodes, sizes.num_edges)
    num_seeds = min(sampling.batch_size, sizes.num_nodes)
    largest = largest_possible(*graph, sampling.fanouts, num_seeds, id_bytes, spec, replace=sampling.replace)
    count = min(config.storage.hyperbatch or 1, max(1, -(-sizes.num_train // sampling.batch_size)))
    samples = sample_disk_bytes(count, largest, largest) if largest.edges else 0
    return samples + GENERATIONS * spilled_bytes(largest.nodes, sizes.row_bytes, 1)


def _spec(config: PipelineConfig, sizes: GraphSizes, num_classes: int) -> ModelSpec:
    return train_options(config, None).model_spec(max(1, sizes.feature_dim), num_classes)
