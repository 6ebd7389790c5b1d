"""Exact inference out of core: layer by layer, a tile of destinations at a time, source rows streamed in order.

Each tile's sums stay in memory while the windows of source rows that it needs pass by once; a layer's output goes to a
file. The tile's edges are put in the order of the windows, in memory or by way of the disk: `tasks.tile_plan` says what
moves fewer bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kernels.mfg import IdArray, TierReads
from kernels.nn.layers import Layer, NodeDegrees, as_float
from kernels.nn.model import GnnModel, ModelSpec
from kernels.nn.streamed import Sums, begins_with_own_rows, sums_of
from kernels.rank_map import RankMap
from storage.blocks.edge_runs import EdgeRuns, MemoryRuns, SpilledRuns, Windows
from storage.blocks.row_pieces import FeaturePieces, RowFile, Rows, windows_of
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from storage.errors import BudgetError
from tasks.inference import Predictions
from tasks.inference_sizes import tile_bytes
from tasks.needed_lists import I64Array, ListReads, needed_sets
from tasks.row_source import RowSource
from tasks.tile_plan import LayerSizes, TilePlan, plan_tiles

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Tile:
    """Consecutive destinations of a layer."""

    first: int
    """Slot of the first one in the set of destinations."""
    last: int
    """Slot after the last one."""
    num_edges: int
    """Lengths of their lists together."""


class TiledInference:
    """Predicts fixed nodes from their complete neighborhoods with topology and features on disk.

    The outcome is that of `tasks.inference.ExactInference`, to rounding, for any budget.

    Parameters
    ----------
    topology : StoredTopology
    features : StoredFeatures
    nodes : (n,) integer array, optional
        Any order; duplicates are allowed. None: all nodes, which takes no memory for their ids.
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
        If a node is out of range.
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
        if nodes is not None and len(nodes) and (int(nodes.min()) < 0 or int(nodes.max()) >= topology.num_nodes):
            raise ValueError(f"nodes must lie in [0, {topology.num_nodes}) (got {nodes.min()}..{nodes.max()})")
        if budget_bytes < (least := tile_bytes(spec, topology.num_nodes)):
            raise BudgetError(
                f"exact evaluation from disk is left {budget_bytes} bytes and needs {least}: set host_budget higher by "
                f"at least {least - budget_bytes}"
            )
        self._topology, self._features, self._spec, self._degrees = topology, features, spec, degrees
        self._nodes = None if nodes is None else nodes.astype(np.int64, copy=False)
        self._are_ascending = nodes is not None and bool(np.all(nodes[1:] > nodes[:-1]))
        self._directory, self._tile_bytes, self._disk_bytes = directory, budget_bytes, edges_disk_bytes
        if nodes is None:
            self._needed = [RankMap.of_all(topology.num_nodes)] * (spec.num_layers + 1)
        else:
            self._needed = needed_sets(
                ListReads(topology), np.unique(nodes).astype(np.int64), spec.num_layers, needs_graph=spec.needs_graph
            )

    def run(self, model: GnnModel) -> Predictions:
        """Predict with one model; raises as `ExactInference.run` does.

        Raises
        ------
        StorageError, MachineError
            If a block is damaged or cannot be read, or the disk is full.
        """
        logits = torch.empty(self._needed[-1].num_slots, model.ordered_layers()[-1].out_dim)
        done = 0
        for tile in self.stream(model):
            logits[done : done + len(tile)] = tile
            done += len(tile)
        feature_reads = TierReads(host_rows=self._needed[0].num_slots, host_bytes=self._feature_bytes)
        adjacency_reads = TierReads(
            host_rows=self._lists_read, host_bytes=self._edges_read * self._topology.id_dtype.itemsize
        )
        if self._nodes is not None and not self._are_ascending:
            logits = logits[self._needed[-1].slots(self._nodes)]
        return Predictions(logits, feature_reads, adjacency_reads)

    def stream(self, model: GnnModel) -> Iterator[Tensor]:
        """Outputs of the distinct nodes, ascending, some at a time: for more of them than memory holds."""
        if model.spec != self._spec:
            raise ValueError(f"this inference is for {self._spec}, the model has {model.spec}")
        self._feature_bytes, self._lists_read, self._edges_read = 0, 0, 0
        layers, files = model.ordered_layers(), list[RowFile]()
        source = RowSource(FeaturePieces(self._features), self._topology.num_nodes)
        try:
            for index, layer in enumerate(layers):
                if layer.transform_first:
                    files.append(self._projected(layer, index, source))
                    source = self._written(files[-1], index)
                    self._drop(files, 1)
                if index == len(layers) - 1:
                    yield from self._combined(model, index, source)
                    return
                out = RowFile(self._directory, self._needed[index + 1].num_slots, layer.out_dim, self._features.stats)
                files.append(out)
                for rows in self._combined(model, index, source):
                    out.append(rows.numpy())
                out.finish()
                source = self._written(out, index + 1)
                self._drop(files, 1)
        finally:
            self._drop(files, 0)

    def _written(self, file: RowFile, level: int) -> RowSource:
        return RowSource(file, self._needed[level].num_slots, self._needed[level])

    @staticmethod
    def _drop(files: list[RowFile], keep: int) -> None:
        while len(files) > keep:
            files.pop(0).close()

    @torch.no_grad()
    def _projected(self, layer: Layer, index: int, source: RowSource) -> RowFile:
        """Project the rows of all needed sources, each once."""
        needed, plan = self._needed[index], self.plan(layer, index, source)
        out = RowFile(self._directory, needed.num_slots, layer.projected_dim, self._features.stats)
        reads = ListReads(self._topology, plan.lists_at_once)
        try:
            for _, rows in source.rows_of(reads, needed, 0, needed.num_slots, plan.rows_at_once):
                self._count_features(source, len(rows))
                out.append(as_float(layer.project(torch.from_numpy(rows))).numpy())
            out.finish()
        except BaseException:
            out.close()
            raise
        return out

    def _combined(self, model: GnnModel, index: int, source: RowSource) -> Iterator[Tensor]:
        """Output of one layer's destinations, ascending, some at a time, activations included."""
        layer, needed, num_tiles = model.ordered_layers()[index], self._needed[index + 1], 0
        plan = self.plan(layer, index, source)
        reads = ListReads(self._topology, plan.lists_at_once, plan.entries_at_once)
        for tile in self._tiles(reads, needed, plan):
            num_tiles += 1
            sums, done = self._summed(layer, needed, source, tile, plan, reads), 0
            for ids, rows in source.rows_of(reads, needed, tile.first, tile.last, plan.rows_at_once):
                with torch.no_grad():  # never across a yield: it holds for a thread
                    degree_D = self._topology.lists(ids)[1] if self._spec.needs_graph else np.zeros_like(ids)
                    degrees_D = self._degrees.take(ids) if self._degrees is not None else None
                    out = model.activate(index, sums.finish(done, _floats(rows), degree_D, degrees_D))
                done += len(ids)
                yield out
            del sums
        _logger.debug(
            "layer %d: %d tiles, edges %s", index, num_tiles, "by the disk" if plan.goes_by_disk else "in memory"
        )

    def plan(self, layer: Layer, index: int, source: RowSource) -> TilePlan:
        """Cut a layer within the budget."""
        width = source.pieces.width
        sizes = LayerSizes.of(
            layer,
            needs_graph=self._spec.needs_graph,
            num_edges=self._num_edges[index + 1],
            num_sources=source.num_rows,
            num_dst=self._needed[index + 1].num_slots,
            source_bytes=source.num_rows * (self._features.row_bytes if source.is_stored else 4 * width),
            width=width,
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

    def _summed(
        self, layer: Layer, needed: RankMap, source: RowSource, tile: _Tile, plan: TilePlan, reads: ListReads
    ) -> Sums:
        """Sums of a tile over all its edges."""
        sums, done = sums_of(layer, tile.last - tile.first), 0
        if begins_with_own_rows(layer):
            for ids, rows in source.rows_of(reads, needed, tile.first, tile.last, plan.rows_at_once):
                sums.begin(done, _floats(rows))
                done += len(ids)
        if not tile.num_edges:
            return sums
        runs = self._runs(source, tile, plan)
        try:
            for sources, targets in reads.edges(needed, tile.first, tile.last):
                if not runs.has_room(len(sources)):  # of one destination, whose list is too long
                    self._add(sums, source, runs)
                    runs.clear()
                runs.add(source.slots(sources), targets)
            self._add(sums, source, runs)
        finally:
            runs.close()
        return sums

    def _runs(self, source: RowSource, tile: _Tile, plan: TilePlan) -> EdgeRuns:
        """What puts a tile's edges in the order of windows."""
        windows = Windows(source.num_rows, plan.shift)
        if plan.goes_by_disk:
            return SpilledRuns(windows, tile.num_edges, plan.buffer_bytes, self._directory, self._features.stats)
        room = (plan.tile_bytes - plan.dst_bytes * (tile.last - tile.first)) // plan.edge_bytes
        return MemoryRuns(windows, min(tile.num_edges, max(plan.entries_at_once, room)), self._topology.id_dtype)

    def _add(self, sums: Sums, source: RowSource, runs: EdgeRuns) -> None:
        """Let the windows of source rows that some edges need pass by."""
        runs.finish()
        windows, pieces = runs.windows, source.pieces
        self._count_features(source, int(windows.edges_W.sum()))
        wanted = pieces.between(*windows.ranges())
        for window, rows in windows_of(pieces, wanted, windows.shift, windows.edges_W > 0):
            first = window << windows.shift
            degrees = source.degrees(self._degrees, first, min(len(rows), windows.num_slots - first))
            for slots, targets in runs.read(window):
                sums.add(slots, targets, rows, degrees)

    def _count_features(self, source: RowSource, num_rows: int) -> None:
        self._feature_bytes += num_rows * self._features.row_bytes if source.is_stored else 0

    def _tiles(self, reads: ListReads, needed: RankMap, plan: TilePlan) -> Iterator[_Tile]:
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
                    yield _Tile(first, at + done, num_edges)
                    first, held, num_edges = at + done, 0, 0
        if first < needed.num_slots:
            yield _Tile(first, needed.num_slots, num_edges)

    def _degrees_of(self, reads: ListReads, needed: RankMap) -> Iterator[tuple[int, I64Array]]:
        """Lengths of the lists that a layer uses."""
        if self._spec.needs_graph:
            return reads.degrees(needed)
        return ((at, np.zeros_like(ids)) for at, ids in reads.nodes(needed, 0, needed.num_slots))


def _floats(rows: Rows) -> Tensor:
    return as_float(torch.from_numpy(rows))
