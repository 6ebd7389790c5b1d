"""A model's output for all nodes of a store, in the input's order: from memory, or from disk within a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.nn.layers import NodeDegrees
from kernels.nn.model import GnnModel
from kernels.rank_map import RankMap
from kernels.topology import Topology
from storage.blocks.buffer import DEFAULT_DEPTH, LEAST_BLOCKS
from storage.blocks.io_stats import IoStats
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from storage.cache.tiers import FeatureTiers
from storage.errors import InputError
from storage.formats.results import PART_BYTES, writing_bytes
from storage.graph_store import FEATURES, ORIGINAL_ID, GraphStore
from storage.keyed_rows import in_node_order, spill_disk_bytes
from storage.store_format import NEW_TO_OLD
from tasks.bounds import topology_bytes
from tasks.budgets import SMALL_FILES_BYTES, Estimate
from tasks.inference import DEFAULT_CHUNK_BYTES, ExactInference, inference_bytes
from tasks.inference_sizes import inference_disk_bytes, pieces_bytes, tile_bytes
from tasks.prediction_ids import ColumnInTurn, ids_in_turn, stored_ids
from tasks.storage_need import SLACK_BYTES, TopologyShare, topology_share
from tasks.stored_columns import stored_degrees
from tasks.tile_plan import MOST_EDGE_BYTES
from tasks.tiled_inference import TiledInference

Rows = tuple[npt.NDArray[Any], npt.NDArray[np.float32]]
"""Ids as the store has them (integers, or UTF-8 bytes) and output of consecutive nodes of the input."""
_FLOAT_BYTES = 4
_TEXT_VALUE_BYTES = 16  # -1.17549435e-38 and what separates it
_NODE_BYTES = 64  # in memory: degrees, orders of nodes, scratch tables
_DEGREE_BYTES = 16  # from disk: both degrees, int64 where there are 2**31 edges
_CHUNKS = (DEFAULT_CHUNK_BYTES, 64 << 20, 16 << 20, 4 << 20, 1 << 20)
_TEXT_COPIES, _TEXT_BYTES = 5, 104  # a name: itself, decoded to four bytes a character; an object
_LEAST_WINDOW_BYTES, _MOST_WINDOW_BYTES = 1 << 20, 16 << 20
_WINDOWS = 3


@dataclass(frozen=True, slots=True)
class Head:
    """The part of a model whose output is wanted."""

    model: GnnModel
    """Its layers."""
    finish: Callable[[Tensor], Tensor]
    """What is done to their output, row by row."""
    width: int
    """Values a node."""

    @classmethod
    def of(cls, model: GnnModel, *, hidden: bool) -> Head:
        """Take all layers; or those before the last, whose output enters it.

        Raises
        ------
        InputError
            If the model has one layer, and so no hidden representation.
        """
        spec = model.spec
        if not hidden:
            return cls(model, lambda rows: rows, spec.num_classes)
        if spec.num_layers < 2:
            raise InputError("the model has one layer, so no hidden representation: train one with two fanouts or more")
        front = GnnModel(replace(spec, num_layers=spec.num_layers - 1), model.ordered_layers()[:-1])
        front.norms = model.norms[:-1]

        def activated(rows: Tensor) -> Tensor:
            with torch.no_grad():
                return model.activate(spec.num_layers - 2, rows)

        return cls(front, activated, spec.hidden)


@dataclass(frozen=True, slots=True)
class PredictionPlan:
    """Where the graph is while a model is applied to it, and what all of it takes."""

    estimate: Estimate
    """Memory, and disk: scratch files and the output together."""
    table_bytes: int = 0
    """Disk of the output alone."""
    chunk: int = 0
    """Bytes of rows and edges that a layer takes at once in memory."""
    share: TopologyShare | None = None
    """Buffers for the adjacency on disk; None: the graph is in memory."""
    feature_buffer: int = 0
    """Bytes for blocks of features."""
    tile: int = 0
    """Bytes for a tile of destinations."""
    window: int = 0
    """Bytes of rows that are put into the input's order at once."""


def plan_prediction(head: Head, store: GraphStore, out: Path, memory_bytes: int) -> PredictionPlan:
    """Predict from memory where graph and output fit, else from disk with what there is.

    Where not even that fits, the plan is the smallest there is, above `memory_bytes`.
    """
    value_bytes = _TEXT_VALUE_BYTES if out.suffix == ".csv" else _FLOAT_BYTES
    row_bytes = value_bytes * (head.width + 4) + _id_bytes(store)
    table = row_bytes * store.info.num_nodes + SMALL_FILES_BYTES
    for chunk_bytes in _CHUNKS:
        in_memory = PredictionPlan(
            Estimate(writing_bytes(out) + _in_memory_bytes(head, store, chunk_bytes), table), table, chunk_bytes
        )
        if in_memory.estimate.memory_bytes <= memory_bytes:
            return in_memory
    from_disk = _plan_from_disk(head, store, writing_bytes(out), memory_bytes, table)
    return min(in_memory, from_disk, key=lambda plan: plan.estimate.memory_bytes)


def _plan_from_disk(head: Head, store: GraphStore, writing: int, memory_bytes: int, table: int) -> PredictionPlan:
    info, block_bytes = store.info, store.info.block_bytes
    degrees = _DEGREE_BYTES * info.num_nodes if head.model.spec.needs_degrees else 0
    computing = (
        pieces_bytes(head.model.spec, info.num_nodes, info.feature_row_bytes, block_bytes)
        + RankMap.nbytes_for(info.num_nodes)
        + degrees
    )
    computing += sum(min(2 * block_bytes, store.nbytes(name)) for name in (ORIGINAL_ID, NEW_TO_OLD) if store.has(name))
    # Rows that change places are written when all are computed.
    always, writing = (SLACK_BYTES, writing) if store.has(NEW_TO_OLD) else (SLACK_BYTES + writing, 0)
    least_blocks = LEAST_BLOCKS * block_bytes
    share, features, window = _smallest(store), least_blocks, _LEAST_WINDOW_BYTES
    tile = tile_bytes(head.model.spec, info.num_nodes)
    left = memory_bytes - always - _WINDOWS * window - max(writing, computing + _taken(share, features, tile))
    if left > 0:
        window = min(_MOST_WINDOW_BYTES, window + left // 8)
        room = memory_bytes - always - _WINDOWS * window - computing
        larger = topology_share(store, room)
        if _taken(larger) - _taken(share) <= (room - _taken(share, features, tile)) // 2:
            share = larger
        wanted = min((DEFAULT_DEPTH + 2) * max(block_bytes, 1 << 20), room // 4, room - _taken(share) - tile)
        features = max(least_blocks, wanted)
        tile = max(tile, min(room - _taken(share, features), _largest_tile(head, store)))
    files = inference_disk_bytes(head.model.spec, info.num_nodes)
    if store.has(NEW_TO_OLD):  # the layers' files are gone before the table is written
        disk = spill_disk_bytes(info.num_nodes, _record_bytes(head, store)) + max(table, files)
    else:
        disk = table + files
    memory = always + _WINDOWS * window + max(writing, computing + _taken(share, features, tile))
    return PredictionPlan(Estimate(memory, disk), table, 0, share, features, tile, window)


def predicted_rows(
    head: Head, store: GraphStore, plan: PredictionPlan, scratch: Path, *, edges_disk_bytes: int = 0
) -> Iterator[Rows]:
    """Give ids and output of all nodes in the input's order, some at a time and at least once.

    Parameters
    ----------
    head : Head
    store : GraphStore
    plan : PredictionPlan
    scratch : Path
        Directory for what does not fit memory.
    edges_disk_bytes : int
        Disk that the plan does not count and edges may take where that spares reading.
    """
    if plan.share is None:
        yield from _from_memory(head, store, plan.chunk)
        return
    rows = _from_disk(head, store, plan, plan.share, scratch, edges_disk_bytes)
    if store.has(NEW_TO_OLD):
        rows = _reordered(rows, head, store, scratch, plan.window)
    yield from rows


def original_ids(stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Ids as the input had them."""
    return np.strings.decode(stored, "utf-8") if stored.dtype.kind == "S" else stored.astype(np.int64, copy=False)


def _from_memory(head: Head, store: GraphStore, chunk_bytes: int) -> Iterator[Rows]:
    indptr, indices = store.read_adjacency()
    topology, spec = Topology.in_memory(indptr, indices), head.model.spec
    degrees = NodeDegrees(np.diff(indptr), store.read_out_degree()) if spec.needs_degrees else None
    nodes = np.arange(store.info.num_nodes)
    inference = ExactInference(topology, nodes, spec, degrees=degrees, chunk_bytes=chunk_bytes)
    logits = inference.run(head.model, FeatureTiers(store.read_features(), np.empty(0, np.int64))).logits
    del topology, indptr, indices, inference
    order = np.argsort(store.read_new_to_old())
    ids_N = stored_ids(store, 0, store.info.num_nodes)
    for part in _slices(len(order), _row_bytes(head, store)):
        yield ids_N[order[part]], head.finish(logits[order[part]]).numpy()


def _from_disk(
    head: Head, store: GraphStore, plan: PredictionPlan, share: TopologyShare, scratch: Path, edges_disk_bytes: int
) -> Iterator[Rows]:
    """Ids and output in the store's order."""
    spec, none, stats = head.model.spec, np.empty(0, np.int64), IoStats()
    with (
        StoredTopology(
            store, none, buffer_bytes=share.buffer, indptr_buffer_bytes=share.indptr_buffer, stats=stats
        ) as topology,
        StoredFeatures(store, none, buffer_bytes=plan.feature_buffer, stats=stats) as features,
    ):
        degrees = stored_degrees(store) if spec.needs_degrees else None
        inference = TiledInference(
            topology, features, None, spec, degrees=degrees, budget_bytes=plan.tile, directory=scratch,
            edges_disk_bytes=edges_disk_bytes,
        )  # fmt: skip
        done, ids_of = 0, ids_in_turn(store)
        for tile in inference.stream(head.model):
            for part in _slices(len(tile), _row_bytes(head, store)):
                rows = head.finish(tile[part]).numpy()
                yield ids_of(done, done + len(rows)), rows
                done += len(rows)


def _reordered(rows: Iterator[Rows], head: Head, store: GraphStore, scratch: Path, window_bytes: int) -> Iterator[Rows]:
    """Bring rows from the store's order into the input's by way of files."""
    cut, id_dtype = _FLOAT_BYTES * head.width, stored_ids(store, 0, 0).dtype

    def keyed() -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]]:
        done, column = 0, ColumnInTurn(store, NEW_TO_OLD)
        for ids, output in rows:
            old = column.take(done, done + len(ids)).astype(np.int64, copy=False)
            parts = (np.ascontiguousarray(part).view(np.uint8).reshape(len(ids), -1) for part in (output, ids))
            yield old, np.concatenate(list(parts), axis=1)
            done += len(ids)

    for records in in_node_order(keyed(), store.info.num_nodes, scratch, window_bytes):
        for part in _slices(len(records), _row_bytes(head, store)):
            output, ids = (np.ascontiguousarray(half) for half in np.split(records[part], [cut], axis=1))
            yield ids.view(id_dtype).reshape(-1), output.view(np.float32)


def _slices(num_rows: int, row_bytes: int) -> Iterator[slice]:
    """Cut rows into pieces of a MiB; one piece, without any, of none."""
    step = max(1, PART_BYTES // max(1, row_bytes))
    for first in range(0, max(1, num_rows), step):
        yield slice(first, min(first + step, num_rows))


def _in_memory_bytes(head: Head, store: GraphStore, chunk_bytes: int) -> int:
    """The store, exact inference with its output, and the ids."""
    info = store.info
    graph = topology_bytes(store) + store.nbytes(FEATURES) + (_NODE_BYTES + _id_bytes(store)) * info.num_nodes
    inference = inference_bytes(head.model.spec, info.num_nodes, info.num_edges, chunk_bytes)
    return graph + inference


def _id_bytes(store: GraphStore) -> int:
    return store.extent(ORIGINAL_ID).dtype.itemsize if store.has(ORIGINAL_ID) else 8


def _record_bytes(head: Head, store: GraphStore) -> int:
    return _FLOAT_BYTES * head.width + _id_bytes(store)


def _row_bytes(head: Head, store: GraphStore) -> int:
    """Bytes of a row on its way out, its id decoded where it is a name."""
    is_text = store.has(ORIGINAL_ID) and store.extent(ORIGINAL_ID).dtype.kind == "S"
    return _record_bytes(head, store) + (_TEXT_COPIES * _id_bytes(store) + _TEXT_BYTES if is_text else 0)


def _smallest(store: GraphStore) -> TopologyShare:
    """The least buffers: what a share of a budget buys is decided by the budget, so that of none."""
    return topology_share(store, 0)


def _taken(share: TopologyShare, features: int = 0, tile: int = 0) -> int:
    return share.buffer + share.indptr + features + tile


def _largest_tile(head: Head, store: GraphStore) -> int:
    """All destinations of a layer with all their edges: more does not help."""
    widest = max(layer.in_dim + layer.projected_dim + 3 * layer.out_dim for layer in head.model.ordered_layers())
    node_bytes = _FLOAT_BYTES * widest + _NODE_BYTES
    held = node_bytes * store.info.num_nodes + MOST_EDGE_BYTES * store.info.num_edges
    return max(
        tile_bytes(head.model.spec, store.info.num_nodes), 2 * held
    )  # half of a tile's memory is for what passes by
