"""The memory plan of training from disk, from sizes alone: of a store that is open, or of one that is expected."""

from __future__ import annotations

from kernels.nn.model import ModelSpec
from kernels.rank_map import RankMap
from storage.blocks.spill_room import ENDLESS, SpillRoom
from storage.errors import BudgetError
from storage.expected_store import StoreSizes
from storage.graph_store import SPLITS, StoreInfo
from tasks.batch_sizes import largest_possible, sizes_of_hops
from tasks.first_batches import FirstBatches, probing_bytes
from tasks.inference_sizes import inference_disk_bytes, pieces_bytes, sets_bytes, tile_bytes
from tasks.score_rows import ScoreFile
from tasks.scoring_memory import scoring_bytes
from tasks.step_costs import HopShape, weight_bytes
from tasks.storage_memory import StoragePlan, plan_storage
from tasks.storage_need import ROWS_AT_ONCE, ROWS_AT_ONCE_COPIED
from tasks.stored_columns import degree_bytes, label_dtype
from tasks.training_types import TrainOptions

_MODEL_COPIES = 5
"""Weights, gradients, both moments of Adam, the best epoch's weights."""
_ID_BYTES = 8
_SHUFFLING_BYTES = 16
"""A training node while an epoch's order is drawn, beside that order: its key, and its place."""


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
    scores = ScoreFile.of(info, options.metric)
    beside, spills = _sampled_scoring(info, options, scores, room)
    held = _held_bytes(info, spec, cached_rows, first.list_bytes) + sets_bytes(spec, info.num_nodes) + beside
    plan = plan_storage(
        store,
        host_budget,
        first.expected(largest),
        num_batches=-(-num_seeds // options.batch_size),
        kept_bytes=held,
        evaluation_bytes=max(tile_bytes(spec, info.num_nodes) + _beside_tiles(spec, info), _beginning_bytes(info)),
        threads=options.threads,
        hyperbatch=hyperbatch,
        largest=largest,
        shared_nodes=first.shared_nodes,
        room=spills,
        rows_at_once=ROWS_AT_ONCE_COPIED if spec.input_dropout else ROWS_AT_ONCE,
    )
    if (evaluated := inference_disk_bytes(spec, info.num_nodes, scores)) > room.nbytes:
        raise room.short("exact evaluation writes", evaluated)
    return plan


def opening_bytes(store: StoreSizes, spec: ModelSpec) -> int:
    """Bytes that opening a graph for training takes at most, until the budget is shared out.

    What a mini-batch is found to draw of one list is not in it; see `tasks.first_batches.measure_first`.
    """
    info = store.info
    return _column_bytes(info, spec) + max(_beginning_bytes(info), probing_bytes(info))


def least_budget(store: StoreSizes, options: TrainOptions, spec: ModelSpec, budget: int) -> int:
    """The least of a budget that is known before anything is read.

    Parameters
    ----------
    store : StoreSizes
    options : TrainOptions
    spec : ModelSpec
    budget : int

    Returns
    -------
    int
        What opening the graph takes, which tells how much training takes, where the budget has so much; else the
        least that training on mini-batches of a seed without neighbors takes, where that is more.
    """
    opening = opening_bytes(store, spec)
    if opening <= budget:
        return opening
    shapes = [HopShape(1, 1, 0)] * len(options.fanouts)
    smallest = sizes_of_hops(shapes, 1, 1, 4, spec, are_integers=store.info.has_integer_features)
    try:
        plan_training(
            store, options, spec, FirstBatches(smallest, 0), num_seeds=1, cached_rows=0, host_budget=1, hyperbatch=1,
            room=ENDLESS,
        )  # fmt: skip
    except BudgetError as error:
        return max(opening, error.needed or 0)
    return opening


def _sampled_scoring(
    info: StoreInfo, options: TrainOptions, scores: ScoreFile, room: SpillRoom
) -> tuple[int, SpillRoom]:
    """Bytes that validation over sampled neighbors takes beside mini-batches, and the room on disk that it leaves."""
    if options.validation != "sampled" or not info.split_sizes["valid"]:
        return 0, room
    if options.metric != "roc_auc":
        return _scoring_bytes(info), room
    return _scoring_bytes(info) + scores.memory_bytes, room.less(scores.disk_bytes)


def tile_budget(plan: StoragePlan, spec: ModelSpec, info: StoreInfo) -> int:
    """Bytes that exact evaluation has for its tiles, beside what is kept, pieces of rows and scoring; then ranking."""
    kept = sum(plan.parts[name] for name in ("held", "offsets", "topology buffer", "feature buffer"))
    return plan.budget - kept - _beside_tiles(spec, info)


def _beside_tiles(spec: ModelSpec, info: StoreInfo) -> int:
    """Bytes of pieces of rows and of scores on their way, and of what is scored at once."""
    scores = ScoreFile.of(info, "roc_auc")
    pieces = pieces_bytes(spec, info.num_nodes, info.feature_row_bytes, info.block_bytes, scores)
    return pieces + _scoring_bytes(info)


def _scoring_bytes(info: StoreInfo) -> int:
    """Bytes that scoring takes, of validation as of the test."""
    num_nodes = max(info.split_sizes["valid"], info.split_sizes["test"])
    return scoring_bytes(num_nodes, max(1, info.num_classes), many_labels=info.is_multi_label)


def _beginning_bytes(info: StoreInfo) -> int:
    """Bytes taken before the first mini-batch of a run or of an epoch, and not any more when it comes.

    While labelled nodes are picked: a copy of their ids, marks of nodes and labels. While an epoch's order is drawn:
    its keys.
    """
    marks = info.num_nodes * (1 + (info.num_classes if info.is_multi_label else 0))
    picking = _ID_BYTES * sum(info.split_sizes[split] for split in SPLITS) + marks
    return max(picking, _SHUFFLING_BYTES * info.split_sizes["train"])


def _held_bytes(info: StoreInfo, spec: ModelSpec, cached_rows: int, cached_list_bytes: int) -> int:
    """Bytes held from the first epoch to the last: labels, splits, the order of an epoch, degrees, the device tier.

    Also the model with its optimizer.
    """
    nodes = info.num_nodes
    device = cached_rows * info.feature_row_bytes + cached_list_bytes
    device += RankMap.nbytes_for(nodes) if cached_rows else 0
    return _column_bytes(info, spec) + device + _MODEL_COPIES * weight_bytes(spec)


def _column_bytes(info: StoreInfo, spec: ModelSpec) -> int:
    """Bytes of labels, splits, the order of an epoch, degrees."""
    nodes, sizes = info.num_nodes, [info.split_sizes[split] for split in SPLITS]
    ids = _ID_BYTES * (sum(sizes) + info.split_sizes["train"])
    label_bytes = nodes * (info.num_classes if info.is_multi_label else label_dtype(info.num_classes).itemsize)
    return label_bytes + ids + (degree_bytes(info) if spec.kind == "gcn" else 0)
