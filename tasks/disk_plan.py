"""The memory plan of training from disk, from sizes alone: of a store that is open, or of one that is expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.mfg import Sample
from kernels.nn.model import ModelSpec, build_model
from kernels.rank_map import RankMap
from storage.blocks.spill_room import SpillRoom
from storage.expected_store import StoreSizes
from storage.graph_store import SPLITS, StoreInfo
from tasks.batch_sizes import BatchSizes, largest_possible, shared_nodes
from tasks.first_batches import expected_sizes
from tasks.inference_sizes import inference_disk_bytes, pieces_bytes, sets_bytes
from tasks.storage_memory import StoragePlan, plan_storage
from tasks.tile_plan import LEAST_TILE_BYTES
from tasks.training_types import TrainOptions
from tasks.validation import scoring_bytes

_MODEL_COPIES = 5
"""Weights, gradients, both moments of Adam, the best epoch's weights."""
_SPLIT_ID_BYTES, _SPLIT_COPIES = 8, 4


@dataclass(frozen=True, slots=True)
class FirstBatches:
    """What is known of the first mini-batches, or expected of them."""

    sizes: BatchSizes
    """None of them is larger."""
    shared_nodes: int
    """Input nodes that two of them have in common."""

    @classmethod
    def of(cls, samples: Sequence[Sample], spec: ModelSpec, info: StoreInfo) -> FirstBatches:
        """Those that were sampled."""
        sizes = BatchSizes.largest(samples, spec, are_integers=info.feature_dtype.kind != "f")
        return cls(sizes, shared_nodes(samples))


def plan_training(
    store: StoreSizes,
    options: TrainOptions,
    spec: ModelSpec,
    first: FirstBatches,
    *,
    num_seeds: int,
    cached_rows: int,
    cached_list_bytes: int,
    host_budget: int,
    hyperbatch: int | None,
    room: SpillRoom,
) -> StoragePlan:
    """Share out the budget of training from disk.

    Parameters
    ----------
    store : StoreSizes
    options : TrainOptions
    spec : ModelSpec
    first : FirstBatches
    num_seeds : int
        Nodes to train on.
    cached_rows, cached_list_bytes : int
        Rows of the device tier, and bytes of its lists with their maps.
    host_budget : int
        Bytes of memory above the libraries' own.
    hyperbatch : int, optional
        Mini-batches to sample and gather together.
    room : SpillRoom
        On disk, for what is spilled; between epochs it is evaluation's.

    Raises
    ------
    BudgetError
        If the budget is too small, or that of the disk; names the smallest one that would do.
    MachineError
        If the disk is too small.
    """
    info, id_bytes = store.info, first.sizes.id_bytes
    largest = largest_possible(
        info.num_nodes,
        info.num_edges,
        options.fanouts,
        options.batch_size,
        id_bytes,
        spec,
        replace=options.replace,
        are_integers=info.feature_dtype.kind != "f",
    )
    held = _held_bytes(info, spec, cached_rows, cached_list_bytes)
    held += sets_bytes(spec, info.num_nodes, prepared=2)  # for the validation and for the test nodes
    plan = plan_storage(
        store,
        host_budget,
        expected_sizes(first.sizes, largest),
        num_batches=-(-num_seeds // options.batch_size),
        kept_bytes=held,
        evaluation_bytes=LEAST_TILE_BYTES
        + pieces_bytes(spec, info.num_nodes, info.feature_row_bytes, info.block_bytes),
        threads=options.threads,
        hyperbatch=hyperbatch,
        largest=largest,
        shared_nodes=first.shared_nodes,
        room=room,
    )
    if (evaluated := inference_disk_bytes(spec, info.num_nodes)) > room.nbytes:
        raise room.short("exact evaluation writes", evaluated)
    return plan


def label_dtype(num_classes: int) -> np.dtype[Any]:
    """The narrowest type for classes, -1 included."""
    return np.dtype(next(kind for kind in (np.int8, np.int16, np.int32) if num_classes <= np.iinfo(kind).max))


def _held_bytes(info: StoreInfo, spec: ModelSpec, cached_rows: int, cached_list_bytes: int) -> int:
    """Bytes held from the first epoch to the last: labels and their mask, splits twice, degrees, the device tier.

    Also what evaluation takes that no tile counts: the model with its optimizer, and the scored nodes' outputs.
    """
    nodes, sizes = info.num_nodes, [info.split_sizes[split] for split in SPLITS]
    label_bytes = nodes * (info.num_classes if info.is_multi_label else label_dtype(info.num_classes).itemsize)
    degree_bytes = 2 * nodes * (4 if info.num_edges < 2**31 else 8) if spec.kind == "gcn" else 0
    device = cached_rows * info.feature_row_bytes + cached_list_bytes
    device += RankMap.nbytes_for(nodes) if cached_rows else 0
    scored = max(sizes[1:])  # one after the other
    scoring = scoring_bytes(scored, spec.num_classes, many_labels=info.is_multi_label)
    weights = sum(weight.nbytes for weight in build_model(spec, seed=0).parameters())
    kept = label_bytes + nodes + _SPLIT_COPIES * _SPLIT_ID_BYTES * sum(sizes) + degree_bytes + device
    return kept + scoring + _MODEL_COPIES * weights
