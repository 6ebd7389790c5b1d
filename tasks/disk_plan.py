"""The memory plan of training from disk, from sizes alone: of a store that is open, or of one that is expected."""

from __future__ import annotations

from kernels.nn.model import ModelSpec
from kernels.rank_map import RankMap
from storage.blocks.spill_room import SpillRoom
from storage.expected_store import StoreSizes
from storage.graph_store import SPLITS, StoreInfo
from tasks.batch_sizes import largest_possible
from tasks.first_batches import FirstBatches
from tasks.inference_sizes import inference_disk_bytes, pieces_bytes, sets_bytes, tile_bytes
from tasks.step_costs import weight_bytes
from tasks.storage_memory import StoragePlan, plan_storage
from tasks.storage_need import ROWS_AT_ONCE, ROWS_AT_ONCE_COPIED
from tasks.stored_columns import degree_bytes, label_dtype
from tasks.training_types import TrainOptions
from tasks.validation import scoring_bytes

_MODEL_COPIES = 5
"""Weights, gradients, both moments of Adam, the best epoch's weights."""
_SPLIT_ID_BYTES, _SPLIT_COPIES = 8, 4


def plan_training(
    store: StoreSizes,
    options: TrainOptions,
    spec: ModelSpec,
    first: FirstBatches,
    *,
    num_seeds: int,
    cached_rows: int,
    host_budget: int,
    hyperbatch: int | None,
    room: SpillRoom,
    num_scored: tuple[int, int] | None = None,
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
    cached_rows : int
        Rows of the device tier; its lists are those that `first` counts.
    host_budget : int
        Bytes of memory above the libraries' own.
    hyperbatch : int, optional
        Mini-batches to sample and gather together.
    room : SpillRoom
        On disk, for what is spilled; between epochs it is evaluation's.
    num_scored : tuple of int, optional
        Nodes to validate and to test on; all of these splits without it.

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
        min(options.batch_size, num_seeds),
        id_bytes,
        spec,
        replace=options.replace,
        are_integers=info.has_integer_features,
    )
    held = _held_bytes(info, spec, cached_rows, first.list_bytes)
    held += sets_bytes(spec, info.num_nodes, prepared=2)  # for the validation and for the test nodes
    valid, test = (
        scoring_bytes(number, spec.num_classes, many_labels=info.is_multi_label)
        for number in num_scored or (info.split_sizes["valid"], info.split_sizes["test"])
    )
    if options.validation == "sampled":  # beside mini-batches
        held += valid
    plan = plan_storage(
        store,
        host_budget,
        first.expected(largest),
        num_batches=-(-num_seeds // options.batch_size),
        kept_bytes=held,
        evaluation_bytes=tile_bytes(spec, info.num_nodes)
        + pieces_bytes(spec, info.num_nodes, info.feature_row_bytes, info.block_bytes)
        + max(valid, test),
        threads=options.threads,
        hyperbatch=hyperbatch,
        largest=largest,
        shared_nodes=first.shared_nodes,
        room=room,
        rows_at_once=ROWS_AT_ONCE_COPIED if spec.input_dropout else ROWS_AT_ONCE,
    )
    if (evaluated := inference_disk_bytes(spec, info.num_nodes)) > room.nbytes:
        raise room.short("exact evaluation writes", evaluated)
    return plan


def tile_budget(plan: StoragePlan, spec: ModelSpec, info: StoreInfo, num_scored: int) -> int:
    """Bytes that exact evaluation of some nodes has for its tiles, beside what is kept, pieces of rows and scores."""
    kept = sum(plan.parts[name] for name in ("held", "offsets", "topology buffer", "feature buffer"))
    pieces = pieces_bytes(spec, info.num_nodes, info.feature_row_bytes, info.block_bytes)
    return plan.budget - kept - pieces - scoring_bytes(num_scored, spec.num_classes, many_labels=info.is_multi_label)


def _held_bytes(info: StoreInfo, spec: ModelSpec, cached_rows: int, cached_list_bytes: int) -> int:
    """Bytes held from the first epoch to the last: labels and their mask, splits twice, degrees, the device tier.

    Also the model with its optimizer.
    """
    nodes, sizes = info.num_nodes, [info.split_sizes[split] for split in SPLITS]
    label_bytes = nodes * (info.num_classes if info.is_multi_label else label_dtype(info.num_classes).itemsize)
    degrees = degree_bytes(info) if spec.kind == "gcn" else 0
    device = cached_rows * info.feature_row_bytes + cached_list_bytes
    device += RankMap.nbytes_for(nodes) if cached_rows else 0
    kept = label_bytes + nodes + _SPLIT_COPIES * _SPLIT_ID_BYTES * sum(sizes) + degrees + device
    return kept + _MODEL_COPIES * weight_bytes(spec)
