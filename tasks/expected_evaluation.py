"""What exact evaluation will take: seconds and bytes, from sizes and rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.nn.model import ModelSpec, build_model
from storage.blocks.edge_runs import RUN_EDGE_BYTES
from storage.blocks.probe import DiskSpeed
from storage.blocks.row_pieces import PIECE_BYTES
from storage.expected_store import StoreSizes
from storage.graph_store import FEATURES, INDICES, INDPTR
from tasks.disk_plan import tile_budget
from tasks.expected_epoch import Expected
from tasks.machine_rates import exact_seconds
from tasks.step_costs import HopShape
from tasks.storage_memory import StoragePlan
from tasks.tile_plan import LayerSizes, plan_tiles

_FLOAT_BYTES = 4
_ANY_DISK = 1 << 62


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
    info = store.info
    budget = tile_budget(plan, spec, info, shapes[0].num_dst)
    read = written = 0.0
    layers = build_model(spec, seed=0).ordered_layers()
    for index, (layer, shape) in enumerate(zip(layers, reversed(shapes), strict=True)):
        width = layer.projected_dim if layer.transform_first else layer.in_dim
        before = _Rows(store, 0 if not index else _FLOAT_BYTES * shape.num_src * layer.in_dim)
        source = _Rows(store, _FLOAT_BYTES * shape.num_src * width) if layer.transform_first else before
        if layer.transform_first:
            read += before.passed(shape.num_src)
            written += source.file_bytes
        sizes = LayerSizes.of(
            layer,
            needs_graph=spec.needs_graph,
            width=width,
            num_sources=shape.num_src if source.file_bytes else info.num_nodes,
            source_bytes=int(source.file_bytes) or store.nbytes(FEATURES),
            num_dst=shape.num_dst,
            num_edges=shape.num_edges,
            id_bytes=4 if info.num_nodes < 2**31 else 8,
        )
        cut = plan_tiles(sizes, budget, _ANY_DISK)
        read += cut.num_tiles * source.passed(shape.num_edges / cut.num_tiles)
        read += sizes.own_passes * source.passed(shape.num_dst)
        spilled = RUN_EDGE_BYTES * shape.num_edges if cut.goes_by_disk else 0
        read, written = read + spilled, written + spilled
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
