"""Exact inference out of core: layer by layer, a tile of destinations at a time, source rows streamed in order.

Each tile's sums stay in memory while the windows of source rows that it needs pass by once, or of some of their columns
at a time (`tasks.tile_sums`); a layer's output goes to a file. The tile's edges are put in the order of the windows, in
memory or by way of the disk: `tasks.tile_plan` says what moves the fewest bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kernels.mfg import IdArray, TierReads
from kernels.nn.layers import Layer, NodeDegrees, as_float
from kernels.nn.model import GnnModel, ModelSpec
from kernels.nn.streamed import in_strips
from kernels.rank_map import RankMap, check_ascending
from storage.blocks.row_file import RowFile, RowLayout
from storage.blocks.row_pieces import FeaturePieces, Rows
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from storage.errors import BudgetError
from tasks.inference_sizes import tile_bytes
from tasks.needed_lists import I64Array, ListReads, needed_sets
from tasks.row_source import RowSource
from tasks.tile_plan import LayerSizes, TilePlan, plan_tiles
from tasks.tile_sums import FinishedSums, Tile, TileSums, floats

_logger = logging.getLogger(__name__)


class TiledInference:
    """Predicts fixed nodes from their complete neighborhoods with topology and features on disk.

    The outcome is that of `tasks.inference.ExactInference`, to rounding, for any budget.

    Parameters
    ----------
    topology : StoredTopology
    features : StoredFeatures
    nodes : (n,) integer array, optional
        Strictly ascending. None: all nodes, which takes no memory for their ids.
    spec : ModelSpec
    degrees : NodeDegrees, optional
        Of all nodes (GCN).
    budget_bytes : int
        Memory for tiles, beside the sets of needed nodes (`sets_bytes`).
    directory : Path
        Where the layers' outputs go, and edges.
    edges_disk_bytes : int
        Most disk for edges, beside the layers' files.

    Raises
    ------
    ValueError
        If a node is out of range, or nodes do not ascend.
    BudgetError
        If the budget is below a MiB, or more where many nodes have wide rows (`tile_bytes`).
    """

    def __init__(
        self,
        topology: StoredTopology,
        features: StoredFeatures,
        nodes: IdArray | None,
        spec: ModelSpec,
        *,
        degrees: NodeDegrees | None = None,
        budget_bytes: int,
        directory: Path,
        edges_disk_bytes: int = 0,
    ) -> None:
        if nodes is not None:
            check_ascending(nodes, topology.num_nodes)
        if budget_bytes < (least := tile_bytes(spec, topology.num_nodes)):
            raise BudgetError(
                f"exact evaluation from disk is left {budget_bytes} bytes and needs {least}: set host_budget higher by "
                f"at least {least - budget_bytes}"
            )
        self._topology, self._features, self._spec, self._degrees = topology, features, spec, degrees
        self._directory, self._tile_bytes, self._disk_bytes = directory, budget_bytes, edges_disk_bytes
        self._stored = features.dtype
        if nodes is None:
            self._needed = [RankMap.of_all(topology.num_nodes)] * (spec.num_layers + 1)
        else:
            self._needed = needed_sets(
                ListReads(topology),
                nodes.astype(np.int64, copy=False),
                spec.num_layers,
                needs_graph=spec.needs_graph,
            )

    @property
    def reads(self) -> tuple[TierReads, TierReads]:
        """Feature rows and adjacency lists read by the last stream, once it has ended."""
        id_bytes = self._topology.id_dtype.itemsize
        return (
            TierReads(host_rows=self._needed[0].num_slots, host_bytes=self._feature_bytes),
            TierReads(host_rows=self._lists_read, host_bytes=self._edges_read * id_bytes),
        )

    def stream(self, model: GnnModel) -> Iterator[Tensor]:
        """Outputs of the nodes in their order, some at a time: for more of them than memory holds.

        Raises
        ------
        ValueError
            If the model's spec is not the one that this was made for.
        StorageError, MachineError
            If a block is damaged or cannot be read, or the disk is full.
        """
        if model.spec != self._spec:
            raise ValueError(f"this inference is for {self._spec}, the model has {model.spec}")
        self._feature_bytes, self._lists_read, self._edges_read = 0, 0, 0
        layers, files = model.ordered_layers(), list[RowFile]()
        plans = [self.plan(layer, index) for index, layer in enumerate(layers)]
        source = RowSource(FeaturePieces(self._features), self._topology.num_nodes)
        try:
            for index, (layer, plan) in enumerate(zip(layers, plans, strict=True)):
                if layer.transform_first or (source.is_stored and plan.strip_width):
                    files.append(self._written(layer, index, source, plan))
                    source = self._source(files[-1], index)
                    self._drop(files, 1)
                if index == len(layers) - 1:
                    yield from self._combined(model, index, source, plan)
                    return
                layout = RowLayout(self._needed[index + 1].num_slots, layer.out_dim)
                if not layers[index + 1].transform_first:
                    after = plans[index + 1]
                    layout = replace(layout, strip_width=after.strip_width, target_bytes=after.piece_bytes)
                files.append(RowFile(self._directory, layout, self._features.stats))
                for rows in self._combined(model, index, source, plan):
                    files[-1].append(rows.numpy())
                files[-1].finish()
                source = self._source(files[-1], index + 1)
                self._drop(files, 1)
        finally:
            self._drop(files, 0)

    def _source(self, file: RowFile, level: int) -> RowSource:
        return RowSource(file, self._needed[level].num_slots, self._needed[level])

    @staticmethod
    def _drop(files: list[RowFile], keep: int) -> None:
        while len(files) > keep:
            files.pop(0).close()

    @torch.no_grad()
    def _written(self, layer: Layer, index: int, source: RowSource, plan: TilePlan) -> RowFile:
        """Write the rows of all needed sources as the layer reads them, projected where it projects first, once."""
        needed, projects = self._needed[index], layer.transform_first
        width, dtype = (layer.projected_dim, np.dtype(np.float32)) if projects else (source.pieces.width, self._stored)
        layout = RowLayout(needed.num_slots, width, plan.strip_width, dtype.itemsize, plan.piece_bytes)
        out = RowFile(self._directory, layout, self._features.stats, dtype)
        reads = ListReads(self._topology, plan.lists_at_once)
        try:
            for _, rows in source.rows_of(reads, needed, 0, needed.num_slots, plan.rows_at_once):
                self._count_features(source, len(rows))
                out.append(_projected(layer, rows, plan) if projects else rows)
            out.finish()
        except BaseException:
            out.close()
            raise
        return out

    def _combined(self, model: GnnModel, index: int, source: RowSource, plan: TilePlan) -> Iterator[Tensor]:
        """Output of one layer's destinations, ascending, some at a time, activations included."""
        needed, num_tiles, waiting = self._needed[index + 1], 0, list[RowFile]()
        sums = self._sums(model.ordered_layers()[index], index, source, plan)
        try:
            for tile in self._tiles(sums.reads, needed, plan):
                num_tiles += 1
                yield from self._finished(model, index, sums, tile, sums.of(tile, waiting))
                self._drop(waiting, 0)
        finally:
            self._drop(waiting, 0)
        edges = "by the disk" if plan.goes_by_disk else "in memory"
        _logger.debug("layer %d: %d tiles, edges %s, strips of %d", index, num_tiles, edges, plan.strip_units)

    def _finished(
        self, model: GnnModel, index: int, sums: TileSums, tile: Tile, finished: FinishedSums
    ) -> Iterator[Tensor]:
        done = 0
        for ids, rows in sums.source.rows_of(sums.reads, sums.needed, tile.first, tile.last, sums.plan.rows_at_once):
            with torch.no_grad():  # never across a yield: it holds for a thread
                degree_D = self._topology.lists(ids)[1] if self._spec.needs_graph else np.zeros_like(ids)
                degrees_D = self._degrees.take(ids) if self._degrees is not None else None
                out = model.activate(index, finished.finish(done, floats(rows), degree_D, degrees_D))
            done += len(ids)
            yield out

    def _sums(self, layer: Layer, index: int, source: RowSource, plan: TilePlan) -> TileSums:
        return TileSums(
            layer=layer,
            needed=self._needed[index + 1],
            source=source,
            plan=plan,
            reads=ListReads(self._topology, plan.lists_at_once, plan.entries_at_once),
            degrees=self._degrees,
            directory=self._directory,
            stats=self._features.stats,
            count=lambda num_rows: self._count_features(source, num_rows),
        )

    def plan(self, layer: Layer, index: int) -> TilePlan:
        """Cut a layer within the budget."""
        is_stored = index == 0 and not layer.transform_first
        width = layer.projected_dim if layer.transform_first else layer.in_dim
        num_sources = self._topology.num_nodes if is_stored else self._needed[index].num_slots
        sizes = LayerSizes.of(
            layer,
            needs_graph=self._spec.needs_graph,
            num_edges=self._num_edges[index + 1],
            num_sources=num_sources,
            num_dst=self._needed[index + 1].num_slots,
            source_bytes=num_sources * (self._features.row_bytes if is_stored else 4 * width),
            width=width,
            is_stored=is_stored,
            id_bytes=self._topology.id_dtype.itemsize,
        )
        return plan_tiles(sizes, self._tile_bytes, self._disk_bytes)

    @cached_property
    def _num_edges(self) -> list[int]:
        """Edges into the nodes of each set."""
        if not self._spec.needs_graph:
            return [0] * len(self._needed)
        reads, num_edges = ListReads(self._topology), list[int]()
        for level, needed in enumerate(self._needed):
            if level and needed is self._needed[level - 1]:
                num_edges.append(num_edges[-1])
            elif needed.num_slots == self._topology.num_nodes:
                num_edges.append(self._topology.num_edges)
            else:
                num_edges.append(sum(int(degree.sum()) for _, degree in reads.degrees(needed)))
        return num_edges

    def _count_features(self, source: RowSource, num_rows: int) -> None:
        self._feature_bytes += num_rows * self._features.row_bytes if source.is_stored else 0

    def _tiles(self, reads: ListReads, needed: RankMap, plan: TilePlan) -> Iterator[Tile]:
        """Cut the destinations into tiles whose sums and edges fit; one destination is the least."""
        first, held, num_edges = 0, 0, 0
        for at, degree in self._degrees_of(reads, needed):
            self._lists_read += len(degree)
            self._edges_read += int(degree.sum())
            total = np.cumsum(plan.dst_bytes + np.minimum(degree, plan.most_edges) * plan.edge_bytes)
            done, before = 0, 0
            while done < len(degree):
                stop = int(np.searchsorted(total, before + plan.tile_bytes - held, side="right"))
                stop = max(stop, done + (at + done == first))
                if stop > done:
                    held += int(total[stop - 1]) - before
                    num_edges += int(degree[done:stop].sum())
                    done, before = stop, int(total[stop - 1])
                if done < len(degree):
                    yield Tile(first, at + done, num_edges)
                    first, held, num_edges = at + done, 0, 0
        if first < needed.num_slots:
            yield Tile(first, needed.num_slots, num_edges)

    def _degrees_of(self, reads: ListReads, needed: RankMap) -> Iterator[tuple[int, I64Array]]:
        """Lengths of the lists that a layer uses."""
        if self._spec.needs_graph:
            return reads.degrees(needed)
        return ((at, np.zeros_like(ids)) for at, ids in reads.nodes(needed, 0, needed.num_slots))


def _projected(layer: Layer, rows: Rows, plan: TilePlan) -> Rows:
    projected = as_float(layer.project(torch.from_numpy(rows)))
    ordered: Rows = (in_strips(layer, projected, plan.strip_units) if plan.strip_units else projected).numpy()
    return ordered
