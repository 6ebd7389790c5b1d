"""What a configuration asks of training: its options, and how its `host_budget` is shared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from conf.schema import PipelineConfig
from kernels.backend import Backend, resolve_backend
from kernels.nn.model import ModelSpec, build_model
from kernels.rank_map import RankMap
from storage.expected_store import StoreSizes
from storage.graph_store import FEATURES
from tasks.bounds import SCORE_BYTES, batch_nodes, loading_bytes, superbatch_bytes, topology_bytes
from tasks.budgets import SMALL_FILES_BYTES, Estimate
from tasks.in_flight import DEFAULT_IN_FLIGHT_BYTES
from tasks.inference import CHUNKS_AT_WORK, DEFAULT_CHUNK_BYTES, inference_bytes
from tasks.training_types import TrainOptions

_LEAST_CHUNK_BYTES = 16 << 20
_IN_FLIGHT_SHARE = 4
_BUDGET_ON_A_CPU = 6 << 20
_MAPS = 2  # of rows and of lists
_EPOCH_BYTES = 4096  # an epoch's report: a line beside the checkpoint, and as part of the artifact
_MODEL_COPIES = 12
"""Weights on disk: four times in a checkpoint (with Adam's moments and the best epoch's), in the one before while it
is replaced, twice in the artifact while it is replaced, and in what is registered, with room for their names."""


@dataclass(frozen=True, slots=True)
class MemoryShares:
    """What training may hold, and what that comes to with all that it must hold.

    The least that training needs does not depend on the budget, so a budget of just that will do: mini-batches in
    flight and chunks of evaluation grow only by what is left above it.
    """

    in_flight_bytes: int
    """Most bytes of mini-batches that each process loads ahead."""
    chunk_bytes: int
    """Most bytes of a chunk of exact evaluation."""
    total_bytes: int
    """The most memory that all processes take above their libraries."""

    @classmethod
    def of(cls, config: PipelineConfig, store: StoreSizes, *, on_gpu: bool = False) -> MemoryShares:
        """Share `host_budget`, or take the defaults without one; what was set in `sampling.in_flight_bytes` stays."""
        asked, budget = config.sampling.in_flight_bytes, config.host_budget
        if budget is None:
            in_flight, chunk = int(asked or DEFAULT_IN_FLIGHT_BYTES), DEFAULT_CHUNK_BYTES
        else:
            in_flight = _in_flight_bytes(config, store, int(budget), on_gpu) if asked is None else int(asked)
            left = int(budget) - _memory_bytes(config, store, in_flight, 0, on_gpu)
            chunk = min(DEFAULT_CHUNK_BYTES, max(_LEAST_CHUNK_BYTES, left // CHUNKS_AT_WORK))
        return cls(in_flight, chunk, _memory_bytes(config, store, in_flight, chunk, on_gpu))


def stand_in_bytes(config: PipelineConfig) -> int:
    """Bytes of `cache.device_budget`; of `auto`, what it is on a CPU."""
    budget = config.cache.device_budget
    return int(_BUDGET_ON_A_CPU if budget == "auto" else budget)


def chosen_backend(config: PipelineConfig) -> Backend:
    """Choose the backend of a configuration on this machine.

    Raises
    ------
    NoDeviceError
        If it asks for a GPU that cannot be used, or for what is not done on one.
    """
    obstacle = ""
    if config.storage.mode == "storage":
        obstacle = "training from disk (storage.mode=storage) computes on the CPU only"
    return resolve_backend(config.backend, obstacle=obstacle).backend


def train_options(config: PipelineConfig, checkpoint: Path | None) -> TrainOptions:
    """Translate the `sampling`, `model` and `training` sections, where there is no `host_budget` to share.

    `MemoryShares` says what a budget leaves for mini-batches in flight and for chunks of evaluation.
    """
    sampling, model, training = config.sampling, config.model, config.training
    return TrainOptions(
        kind=model.kind,
        fanouts=sampling.fanouts,
        hidden=model.hidden,
        dropout=model.dropout,
        input_dropout=model.input_dropout,
        heads=model.heads,
        attention_dropout=model.attention_dropout,
        norm=model.norm,
        epochs=training.epochs,
        learning_rate=training.learning_rate,
        schedule=training.schedule,
        warmup_steps=training.warmup_steps,
        step_epochs=training.step_epochs,
        step_factor=training.step_factor,
        clip_norm=training.clip_norm,
        precision=training.precision,
        class_weights=training.class_weights,
        accumulate=training.accumulate,
        workers=training.workers,
        metric=training.metric,
        weight_decay=training.weight_decay,
        patience=training.patience,
        validation=training.validation,
        batch_size=sampling.batch_size,
        replace=sampling.replace,
        pinned=config.cache.pinned,
        superbatch=sampling.superbatch,
        threads=sampling.threads,
        seed=config.seed,
        checkpoint_path=checkpoint,
        in_flight_bytes=int(sampling.in_flight_bytes or DEFAULT_IN_FLIGHT_BYTES),
    )


def training_estimate(config: PipelineConfig, store: StoreSizes, *, on_gpu: bool = False) -> Estimate:
    """Add up the store, the device tier, sampling ahead, the rows in flight and the layers' outputs."""
    info, memory = store.info, MemoryShares.of(config, store, on_gpu=on_gpu).total_bytes
    spec = train_options(config, None).model_spec(max(1, info.feature_dim), max(1, info.num_classes))
    return Estimate(memory_bytes=memory, disk_bytes=model_disk_bytes(spec, config.training.epochs))


def model_disk_bytes(spec: ModelSpec, epochs: int) -> int:
    """Bytes of checkpoints, model, history and pictures."""
    weights = sum(weight.nbytes for weight in build_model(spec, seed=0).parameters())
    return _MODEL_COPIES * weights + _EPOCH_BYTES * epochs + 2 * SMALL_FILES_BYTES


def _in_flight_bytes(config: PipelineConfig, store: StoreSizes, budget: int, on_gpu: bool) -> int:
    """A quarter of the budget, but no more than the least of everything else leaves; one super-batch is the least."""
    least = superbatch_bytes(store.info, config.sampling)
    spare = budget - _memory_bytes(config, store, least, _LEAST_CHUNK_BYTES, on_gpu)
    return max(least, min(budget // _IN_FLIGHT_SHARE, least + spare // config.training.workers))


def _memory_bytes(
    config: PipelineConfig, store: StoreSizes, in_flight_bytes: int, chunk_bytes: int, on_gpu: bool
) -> int:
    info, device_budget = store.info, stand_in_bytes(config)
    if on_gpu:  # no rows stand in for those on the GPU, copies of its lists do until they are there
        device_budget = min(device_budget, topology_bytes(store))
    elif not config.cache.dynamic.share:  # there is no more to hold than all rows and lists
        whole = topology_bytes(store) + store.nbytes(FEATURES) + _MAPS * RankMap.nbytes_for(info.num_nodes)
        device_budget = min(device_budget, whole)
    nodes, widest = batch_nodes(info, config.sampling), max(info.feature_dim, config.model.hidden)
    shared = topology_bytes(store) + store.nbytes(FEATURES)
    loading = loading_bytes(info, config.sampling, in_flight_bytes)
    steps = 4 * 4 * nodes * widest
    scores = SCORE_BYTES * info.num_nodes if config.cache.dynamic.share else 0
    process = 5 * 8 * info.num_nodes + scores + device_budget + loading + steps
    spec = train_options(config, None).model_spec(max(1, info.feature_dim), max(1, info.num_classes))
    # Prepared for the validation nodes and, at the end, for the test nodes.
    exact = inference_bytes(spec, info.num_nodes, info.num_edges, chunk_bytes, prepared=2)
    return shared + config.training.workers * process + max(0, exact - steps)
