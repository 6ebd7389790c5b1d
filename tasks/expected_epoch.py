"""What an epoch will take: seconds and bytes of training and of exact evaluation, from sizes and rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernels.nn.model import ModelSpec, build_model
from kernels.nn.streamed import sums_width
from storage.blocks.probe import DiskSpeed
from storage.blocks.row_pieces import PIECE_BYTES
from storage.expected_store import StoreSizes
from storage.graph_store import FEATURES, INDICES, INDPTR
from tasks.batch_sizes import BatchSizes, HopShape
from tasks.hyperbatch_size import Traffic
from tasks.machine_rates import cores, exact_seconds
from tasks.storage_memory import StoragePlan
from tasks.tiled_inference import EDGE_BYTES, NODE_BYTES, pieces_bytes

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Expected:
    """What is expected of an epoch, or of its evaluation."""

    seconds: float
    """From its beginning to its end."""
    read_bytes: float = 0.0
    """Read from disk."""


@dataclass(frozen=True)
class BatchSeconds:
    """What a mini-batch takes a core, wherever its data are."""

    sampling: float
    """Drawing its edges."""
    rows: float
    """Copying its rows, once."""
    step: float
    """A training step."""


def epoch_in_memory(num_batches: int, batch: BatchSeconds, threads: int) -> Expected:
    """An epoch whose mini-batches are loaded beside the model."""
    beside = max(1, min(threads, cores() - 1))
    loading = batch.sampling / beside
    return Expected(num_batches * max(batch.step + batch.rows, loading) if cores() > 1 else num_batches * _all(batch))


def epoch_from_disk(
    plan: StoragePlan, sizes: BatchSizes, num_batches: int, batch: BatchSeconds, disk: DiskSpeed, threads: int
) -> Expected:
    """An epoch in hyperbatches: one is sampled while the one before is gathered and the one before that trains."""
    traffic = _kept_in_buffers(plan, plan.traffic(sizes))
    lists_s = traffic.lists / disk.streamed_bytes_per_s
    rows_s = (traffic.rows + traffic.spilled + traffic.samples) / disk.streamed_bytes_per_s
    rows_s += traffic.written / disk.written_bytes_per_s
    sampling = max(lists_s, batch.sampling / min(threads, cores()))
    gathering = max(rows_s, 2 * batch.rows)
    stages = (sampling, gathering, batch.step)
    hyperbatches = math.ceil(num_batches / plan.hyperbatch)
    slowest = max(*stages, lists_s + rows_s, _all(batch) / cores())
    seconds = num_batches * (slowest * (hyperbatches - 1) + sum(stages)) / hyperbatches
    return Expected(seconds, num_batches * traffic.read)


def _kept_in_buffers(plan: StoragePlan, traffic: Traffic) -> Traffic:
    """What is left to read where the blocks of a small graph stay in the buffers from one epoch to the next."""
    store = plan.hyperbatches.store
    return replace(
        traffic,
        lists=0.0 if store.nbytes(INDICES) <= plan.topology.buffer else traffic.lists,
        rows=0.0 if store.nbytes(FEATURES) <= plan.feature_buffer else traffic.rows,
    )


def evaluation(
    store: StoreSizes, spec: ModelSpec, shapes: Sequence[HopShape], plan: StoragePlan | None, disk: DiskSpeed
) -> Expected:
    """Exact evaluation: `shapes` are all neighbors of the nodes to score, hop by hop; from memory without a plan."""
    if not shapes or not shapes[0].num_dst:
        return Expected(0.0)
    layers = build_model(spec, seed=0).ordered_layers()
    seconds = sum(exact_seconds(layer, shape) for layer, shape in zip(layers, reversed(shapes), strict=True))
    if plan is None:
        return Expected(seconds)
    read, written = evaluation_traffic(store, spec, shapes, plan)
    # Pieces are read a little ahead of the sums, which wait for most of them all the same: measured.
    return Expected(seconds + read / disk.streamed_bytes_per_s + written / disk.written_bytes_per_s, read)


def evaluation_traffic(
    store: StoreSizes, spec: ModelSpec, shapes: Sequence[HopShape], plan: StoragePlan
) -> tuple[float, float]:
    """Bytes read and written: each tile of a layer's destinations lets the rows that it needs pass by once."""
    kept = sum(plan.parts[name] for name in ("held", "offsets", "topology buffer", "feature buffer"))
    tile_bytes = max(1, plan.budget - kept - pieces_bytes(spec, store.info.num_nodes))
    read = written = 0.0
    layers = build_model(spec, seed=0).ordered_layers()
    for index, (layer, shape) in enumerate(zip(layers, reversed(shapes), strict=True)):
        width = layer.projected_dim if layer.transform_first else layer.in_dim
        before = _Rows(store, 0 if not index else _FLOAT_BYTES * shape.num_src * layer.in_dim)
        source = _Rows(store, _FLOAT_BYTES * shape.num_src * width) if layer.transform_first else before
        if layer.transform_first:
            read += before.passed(shape.num_src)
            written += source.file_bytes
        row_bytes = _FLOAT_BYTES * (width + 2 * sums_width(layer) + 3 * layer.out_dim) + NODE_BYTES
        tiles = math.ceil((shape.num_dst * row_bytes + shape.num_edges * EDGE_BYTES) / tile_bytes)
        read += tiles * source.passed(shape.num_edges / tiles) + source.passed(shape.num_dst)
        read += _touched(store, INDICES, shape.num_edges)
        read += 0 if plan.topology.indptr_buffer is None else _touched(store, INDPTR, shape.num_dst)
        written += _FLOAT_BYTES * shape.num_dst * layer.out_dim if index < len(layers) - 1 else 0
    return read, written


@dataclass(frozen=True)
class _Rows:
    """Rows that pass by: of a file of ours, or the store's features."""

    store: StoreSizes
    file_bytes: float

    def passed(self, places: float) -> float:
        """Bytes of the pieces that hold some of many places."""
        return _passed(self.file_bytes, places) if self.file_bytes else _touched(self.store, FEATURES, places)


def _touched(store: StoreSizes, name: str, places: float) -> float:
    """Bytes of the blocks that hold some of many places."""
    return _passed(store.nbytes(name), places, store.info.block_bytes)


def _passed(nbytes: float, places: float, piece_bytes: int = PIECE_BYTES) -> float:
    return nbytes * -math.expm1(-places / max(1.0, math.ceil(nbytes / piece_bytes)))


def _all(batch: BatchSeconds) -> float:
    return batch.sampling + batch.rows + batch.step
