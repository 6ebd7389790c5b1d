"""What exact evaluation will take: seconds and bytes, from sizes and rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.nn.layers import Layer
from kernels.nn.model import ModelSpec, build_model
from storage.blocks.edge_runs import RUN_EDGE_BYTES
from storage.blocks.probe import DiskSpeed
from storage.blocks.row_file import PIECE_BYTES
from storage.expected_store import StoreSizes
from storage.graph_store import FEATURES, INDICES, INDPTR, StoreInfo
from tasks.disk_plan import tile_budget
from tasks.expected_epoch import Expected
from tasks.machine_rates import exact_seconds
from tasks.metrics import Metric
from tasks.roc_auc import passes_over
from tasks.score_rows import ScoreFile
from tasks.step_costs import HopShape
from tasks.storage_memory import StoragePlan
from tasks.tile_plan import LayerSizes, TilePlan, plan_tiles

_FLOAT_BYTES = 4
_ANY_DISK = 1 << 62


def evaluation(
    store: StoreSizes,
    spec: ModelSpec,
    shapes: Sequence[HopShape],
    metric: Metric,
    plan: StoragePlan | None,
    disk: DiskSpeed,
    share_of_ones: float | None = None,
) -> Expected:
    """Exact validation: `shapes` are all neighbors of the nodes to score, hop by hop; from memory without a plan."""
    if not shapes or not shapes[0].num_dst:
        return Expected(0.0)
    layers = build_model(spec, seed=0).ordered_layers()
    ones = [share_of_ones, *[None] * (len(layers) - 1)]  # of the first layer's rows
    seconds = sum(exact_seconds(*part) for part in zip(layers, reversed(shapes), ones, strict=True))
    if plan is None:
        return Expected(seconds)
    read, written = evaluation_traffic(store, spec, shapes, plan)
    if metric == "roc_auc":
        scores_read, scores_written = score_traffic(store.info, spec, plan)
        read, written = read + scores_read, written + scores_written
    # Pieces are read a little ahead of the sums, which wait for most of them all the same: measured.
    return Expected(seconds + read / disk.streamed_bytes_per_s + written / disk.written_bytes_per_s, read)


def evaluation_traffic(
    store: StoreSizes, spec: ModelSpec, shapes: Sequence[HopShape], plan: StoragePlan
) -> tuple[float, float]:
    """Bytes read and written: each tile of a layer's destinations lets the rows that it needs pass by once."""
    budget = tile_budget(plan, spec, store.info)
    read = written = 0.0
    layers = build_model(spec, seed=0).ordered_layers()
    for index, (layer, shape) in enumerate(zip(layers, reversed(shapes), strict=True)):
        sizes = _sizes(store, spec, layer, shape, is_first=index == 0)
        cut = plan_tiles(sizes, budget, _ANY_DISK)
        source = _Rows(store, 0 if sizes.is_stored else sizes.source_bytes)
        if layer.transform_first or (sizes.is_stored and cut.strip_units):
            read += _Rows(store, _FLOAT_BYTES * shape.num_src * layer.in_dim if index else 0).passed(shape.num_src)
            source = _Rows(store, shape.num_src * sizes.width * sizes.itemsize)
            written += source.file_bytes
        passed, waiting = _summed(sizes, cut, source, shape)
        read, written = read + passed + waiting, written + waiting
        read += sizes.own_passes * source.passed(shape.num_dst)
        read += _touched(store, INDICES, shape.num_edges)
        read += 0 if plan.topology.indptr_buffer is None else _touched(store, INDPTR, shape.num_dst)
        written += _FLOAT_BYTES * shape.num_dst * layer.out_dim if index < len(layers) - 1 else 0
    return read, written


def score_traffic(info: StoreInfo, spec: ModelSpec, plan: StoragePlan) -> tuple[int, int]:
    """Bytes read and written of the scores of validation, which wait on disk until they are ranked.

    Of nodes of one class each, the scores to sort are as many as there are nodes; else half of all are the most.
    """
    num_nodes = info.split_sizes["valid"]
    file_bytes = ScoreFile.holding(info, num_nodes).disk_bytes
    num_scores = num_nodes * info.num_classes // 2 if info.is_multi_label else num_nodes
    return passes_over(num_scores, tile_budget(plan, spec, info)) * file_bytes, file_bytes


def _sizes(store: StoreSizes, spec: ModelSpec, layer: Layer, shape: HopShape, *, is_first: bool) -> LayerSizes:
    info, is_stored = store.info, is_first and not layer.transform_first
    width = layer.projected_dim if layer.transform_first else layer.in_dim
    return LayerSizes.of(
        layer,
        needs_graph=spec.needs_graph,
        width=width,
        num_sources=info.num_nodes if is_stored else shape.num_src,
        source_bytes=store.nbytes(FEATURES) if is_stored else _FLOAT_BYTES * shape.num_src * width,
        is_stored=is_stored,
        num_dst=shape.num_dst,
        num_edges=shape.num_edges,
        id_bytes=4 if info.num_nodes < 2**31 else 8,
    )


def _summed(sizes: LayerSizes, cut: TilePlan, source: _Rows, shape: HopShape) -> tuple[float, float]:
    """Bytes read of source rows and of edges a second time; bytes of edges and sums that are written and read."""
    passed = cut.num_tiles * source.passed(shape.num_edges / cut.num_tiles)
    edges = RUN_EDGE_BYTES * shape.num_edges if cut.goes_by_disk else 0
    if not cut.strip_units:
        return passed, edges
    striped, sums = sizes.in_strips(cut.strip_units, cut.piece_bytes)
    share = sums.num_strips / striped.num_strips
    return passed * share + (sums.num_strips - 1) * edges, edges + sums.nbytes


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
