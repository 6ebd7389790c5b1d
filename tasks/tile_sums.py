"""Sums of a tile of destinations: source rows pass by in windows, all their columns or a strip of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from kernels.nn.gcn import GcnLayer
from kernels.nn.layers import Layer, NodeDegrees, as_float
from kernels.nn.sage import SageLayer
from kernels.nn.streamed import (
    ColumnSums,
    Sums,
    adds_columns_apart,
    begins_with_own_rows,
    finish_columns,
    sums_of,
    sums_width,
)
from kernels.rank_map import RankMap
from storage.blocks.edge_runs import EdgeRuns, MemoryRuns, SpilledRuns, Windows
from storage.blocks.io_stats import IoStats
from storage.blocks.row_file import RowFile, RowLayout, RowsInTurn
from storage.blocks.row_pieces import RowPieces, Rows, windows_of
from tasks.needed_lists import I64Array, ListReads
from tasks.row_source import RowSource
from tasks.tile_plan import TilePlan


@dataclass(frozen=True, slots=True)
class Tile:
    """Consecutive destinations of a layer."""

    first: int
    """Slot of the first one in the set of destinations."""
    last: int
    """Slot after the last one."""
    num_edges: int
    """Lengths of their lists together."""

    def __len__(self) -> int:
        return self.last - self.first


class FinishedSums(Protocol):
    """Sums of a tile; outputs are asked for from the first destination to the last, each once."""

    def finish(self, first: int, own_DP: Tensor, degree_D: I64Array, degrees_D: NodeDegrees | None) -> Tensor:
        """As `kernels.nn.streamed.Sums.finish`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSums:
    """Adds up the tiles of a layer."""

    layer: Layer
    """The layer."""
    needed: RankMap
    """All its destinations."""
    source: RowSource
    """Its rows; a file in strips where the plan has any."""
    plan: TilePlan
    """How it is cut."""
    reads: ListReads
    """Lists of its destinations."""
    degrees: NodeDegrees | None
    """Of all nodes (GCN)."""
    directory: Path
    """Where edges and sums go that wait on disk."""
    stats: IoStats
    """Counts requests."""
    count: Callable[[int], None]
    """Told how many rows edges name."""

    def of(self, tile: Tile, files: list[RowFile]) -> FinishedSums:
        """Sums of a tile; what is appended to `files` is closed when they have served."""
        if self.plan.strip_width:
            assert adds_columns_apart(self.layer), "only then there are strips"
            files.append(self._strips(self.layer, tile))
            return _WaitingSums(self.layer, RowsInTurn(files[-1]))
        sums = self._begun(tile)
        if not tile.num_edges:
            return sums
        runs = self._runs(tile)
        try:
            for sources, targets in self.reads.edges(self.needed, tile.first, tile.last):
                if not runs.has_room(len(sources)):  # of one destination, whose list is too long
                    self._add(sums, runs)
                    runs.clear()
                runs.add(self.source.slots(sources), targets)
            self._add(sums, runs)
        finally:
            runs.close()
        return sums

    def _begun(self, tile: Tile) -> Sums:
        sums, done = sums_of(self.layer, len(tile)), 0
        if begins_with_own_rows(self.layer):
            rows_at_once = self.plan.rows_at_once
            for ids, rows in self.source.rows_of(self.reads, self.needed, tile.first, tile.last, rows_at_once):
                sums.begin(done, floats(rows))
                done += len(ids)
        return sums

    def _add(self, sums: Sums, runs: EdgeRuns) -> None:
        runs.finish()
        self.count(int(runs.windows.edges_W.sum()))
        self._pass(sums, runs, self.source.pieces)

    def _strips(self, layer: SageLayer | GcnLayer, tile: Tile) -> RowFile:
        """Write the sums of all strips to a file, one after the other."""
        width, runs = sums_width(layer), self._runs(tile)
        layout = RowLayout(len(tile), width, self.plan.strip_width, target_bytes=self.plan.piece_bytes)
        file = RowFile(self.directory, layout, self.stats)
        try:
            for sources, targets in self.reads.edges(self.needed, tile.first, tile.last):
                runs.add(self.source.slots(sources), targets)
            runs.finish()
            assert isinstance(self.source.pieces, RowFile), "written in strips"
            for first, strip in zip(range(0, width, self.plan.strip_width), self.source.pieces.strips, strict=False):
                sums = ColumnSums(layer, len(tile), min(self.plan.strip_width, width - first))
                self._pass(sums, runs, strip)
                file.append_strip(sums.sums_DW)
            file.finish()
        except BaseException:
            file.close()
            raise
        finally:
            runs.close()
        return file

    def _pass(self, sums: Sums, runs: EdgeRuns, pieces: RowPieces) -> None:
        """Let the windows of source rows that some edges need pass by."""
        windows = runs.windows
        wanted = pieces.between(*windows.ranges())
        for window, rows in windows_of(pieces, wanted, windows.shift, windows.edges_W > 0):
            first = window << windows.shift
            degrees = self.source.degrees(self.degrees, first, min(len(rows), windows.num_slots - first))
            for slots, targets in runs.read(window):
                sums.add(slots, targets, rows, degrees)

    def _runs(self, tile: Tile) -> EdgeRuns:
        """What puts a tile's edges in the order of windows."""
        plan, windows = self.plan, Windows(self.source.num_rows, self.plan.shift)
        if plan.goes_by_disk:
            return SpilledRuns(windows, tile.num_edges, plan.buffer_bytes, self.directory, self.stats)
        room = (plan.tile_bytes - plan.dst_bytes * len(tile)) // plan.edge_bytes
        capacity = min(tile.num_edges, max(plan.entries_at_once, room))
        return MemoryRuns(windows, capacity, self.reads.topology.id_dtype)


@dataclass(frozen=True, slots=True)
class _WaitingSums:
    """Sums that are read back in the order of the destinations."""

    layer: SageLayer | GcnLayer
    rows: RowsInTurn

    def finish(self, first: int, own_DP: Tensor, degree_D: I64Array, degrees_D: NodeDegrees | None) -> Tensor:
        return finish_columns(self.layer, self.rows.take(len(own_DP)), own_DP, degree_D, degrees_D)


def floats(rows: Rows) -> Tensor:
    """Rows as stored, as float32."""
    return as_float(torch.from_numpy(rows))
