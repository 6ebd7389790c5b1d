"""Sums of a tile of destinations: source rows pass by in windows, all their columns or a strip of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.nn.layers import Layer, NodeDegrees, as_float
from kernels.nn.streamed import (
    StripSums,
    Sums,
    begins_with_own_rows,
    finish_strips,
    strip_sums_of,
    sums_of,
    units_of,
)
from kernels.rank_map import RankMap
from storage.blocks.edge_runs import EdgeRuns, MemoryRuns, SpilledRuns, Windows
from storage.blocks.io_stats import IoStats
from storage.blocks.row_file import RowFile, RowLayout, RowsInTurn
from storage.blocks.row_pieces import RowPieces, Rows, windows_of
from storage.heap import return_freed_memory
from tasks.needed_lists import I64Array, ListReads
from tasks.row_source import RowSource
from tasks.tile_plan import TilePlan

F32Array = npt.NDArray[np.float32]


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
        return_freed_memory()  # of the tile before, and of training: its steps leave a heap that serves our arrays too
        if self.plan.strip_units:
            files.append(self._strips(tile))
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
        sums = sums_of(self.layer, len(tile))
        self._begin(sums, tile, self.source)
        return sums

    def _begin(self, sums: Sums, tile: Tile, source: RowSource) -> None:
        if not begins_with_own_rows(self.layer):
            return
        done = 0
        for ids, rows in source.rows_of(self.reads, self.needed, tile.first, tile.last, self.plan.rows_at_once):
            sums.begin(done, floats(rows))
            done += len(ids)

    def _add(self, sums: Sums, runs: EdgeRuns) -> None:
        runs.finish()
        self.count(int(runs.windows.edges_W.sum()))
        self._pass(sums, runs, self.source.pieces)

    def _strips(self, tile: Tile) -> RowFile:
        """Write what is left of the sums of all units to a file, strip after strip."""
        units, some, runs = units_of(self.layer), self.plan.strip_units, self._runs(tile)
        assert units is not None, "the plan has strips"
        assert isinstance(self.source.pieces, RowFile), "written in strips"
        layout = RowLayout(len(tile), units.count * units.waiting, some * units.waiting)
        file = RowFile(self.directory, replace(layout, target_bytes=self.plan.piece_bytes), self.stats)
        try:
            for sources, targets in self.reads.edges(self.needed, tile.first, tile.last):
                runs.add(self.source.slots(sources), targets)
            runs.finish()
            for first, strip in zip(range(0, units.count, some), self.source.pieces.strips, strict=False):
                sums = strip_sums_of(self.layer, len(tile), min(some, units.count - first))
                file.append_strip(self._summed_strip(sums, tile, runs, strip))
                del sums  # before the next one's
                return_freed_memory()
            file.finish()
        except BaseException:
            file.close()
            raise
        finally:
            runs.close()
        return file

    def _summed_strip(self, sums: StripSums, tile: Tile, runs: EdgeRuns, strip: RowPieces) -> F32Array:
        self._begin(sums, tile, replace(self.source, pieces=strip))
        self._pass(sums, runs, strip)
        return sums.left()

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

    layer: Layer
    rows: RowsInTurn

    def finish(self, first: int, own_DP: Tensor, degree_D: I64Array, degrees_D: NodeDegrees | None) -> Tensor:
        return finish_strips(self.layer, self.rows.take(len(own_DP)), own_DP, degree_D, degrees_D)


def floats(rows: Rows) -> Tensor:
    """Rows as stored, as float32."""
    return as_float(torch.from_numpy(rows))
