"""What exact evaluation will take: seconds and bytes, from sizes and rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.nn.model import ModelSpec, build_model
from kernels.nn.streamed import sums_width
from storage.blocks.probe import DiskSpeed
from storage.blocks.row_pieces import PIECE_BYTES
from storage.expected_store import StoreSizes
from storage.graph_store import FEATURES, INDICES, INDPTR
from tasks.batch_sizes import HopShape
from tasks.expected_epoch import Expected
from tasks.machine_rates import exact_seconds
from tasks.storage_memory import StoragePlan
from tasks.tiled_inference import EDGE_BYTES, NODE_BYTES, pieces_bytes

_FLOAT_BYTES = 4


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
