"""Exact inference out of core: layer by layer, a tile of destinations at a time, source rows streamed in order.

Each tile's partial sums stay in memory while the pieces of source rows that it needs pass by once; a layer's output
goes to a file. So a layer costs as many passes over its sources as there are tiles, whatever the edges do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.cpu.rank_map import rank_words
from kernels.cpu.streamed import mark_bits, sort_by_piece, take_ids
from kernels.mfg import IdArray, TierReads
from kernels.nn.layers import Layer, NodeDegrees, as_float
from kernels.nn.model import GnnModel, ModelSpec, build_model
from kernels.nn.streamed import sums_of, sums_width
from kernels.rank_map import RankMap
from storage.blocks.row_pieces import FeaturePieces, RowFile, RowPieces, take_rows
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from storage.errors import BudgetError
from tasks.inference import Predictions

I64Array = npt.NDArray[np.int64]
_logger = logging.getLogger(__name__)

EDGE_BYTES = 40
"""An edge of a tile: its source as read and as a slot, its destination, both in order of the sources' pieces."""
NODE_BYTES = 64
"""A destination of a tile: id, offset, degree, slots."""
LEAST_TILE_BYTES = 1 << 20
"""Below this no tile is worth reading anything for."""
_PIECES_BYTES = 12 << 20
_IDS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class _Tile:
    """Consecutive destinations of a layer."""

    ids: I64Array
    begin: I64Array
    degree: I64Array


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
        Where the layers' outputs go.

    Raises
    ------
    ValueError
        If a node is out of range.
    BudgetError
        If the budget is below a MiB.
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
    ) -> None:
        if nodes is not None and len(nodes) and (int(nodes.min()) < 0 or int(nodes.max()) >= topology.num_nodes):
            raise ValueError(f"nodes must lie in [0, {topology.num_nodes}) (got {nodes.min()}..{nodes.max()})")
        if budget_bytes < LEAST_TILE_BYTES:
            raise BudgetError(
                f"exact evaluation from disk is left {budget_bytes} bytes and needs {LEAST_TILE_BYTES}: set "
                f"host_budget higher by at least {LEAST_TILE_BYTES - budget_bytes}"
            )
        self._topology, self._features, self._spec, self._degrees = topology, features, spec, degrees
        self._nodes = None if nodes is None else nodes.astype(np.int64, copy=False)
        self._are_ascending = nodes is not None and bool(np.all(nodes[1:] > nodes[:-1]))
        self._directory, self._tile_bytes = directory, budget_bytes
        if nodes is None:
            self._needed = [RankMap.of_all(topology.num_nodes)] * (spec.num_layers + 1)
        else:
            self._needed = self._needed_sets(np.unique(nodes).astype(np.int64))

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
        """Outputs of the distinct nodes, ascending, tile after tile: for more of them than memory holds."""
        if model.spec != self._spec:
            raise ValueError(f"this inference is for {self._spec}, the model has {model.spec}")
        self._feature_bytes, self._lists_read, self._edges_read = 0, 0, 0
        layers, files = model.ordered_layers(), list[RowFile]()
        source: RowPieces = FeaturePieces(self._features)
        try:
            for index, layer in enumerate(layers):
                if layer.transform_first:
                    files.append(self._projected(layer, index, source))
                    source = files[-1]
                    self._drop(files, 1)
                if index == len(layers) - 1:
                    yield from self._combined(model, index, source, projected=layer.transform_first)
                    return
                out = RowFile(self._directory, self._needed[index + 1].num_slots, layer.out_dim, self._features.stats)
                files.append(out)
                for rows in self._combined(model, index, source, projected=layer.transform_first):
                    out.append(rows.numpy())
                out.finish()
                source = out
                self._drop(files, 1)
        finally:
            self._drop(files, 0)

    @staticmethod
    def _drop(files: list[RowFile], keep: int) -> None:
        while len(files) > keep:
            files.pop(0).close()

    @torch.no_grad()
    def _projected(self, layer: Layer, index: int, source: RowPieces) -> RowFile:
        """Project the rows of all needed sources, each once."""
        needed = self._needed[index]
        out = RowFile(self._directory, needed.num_slots, layer.projected_dim, self._features.stats)
        try:
            for ids in _ids_of(needed):
                slots = ids if index == 0 else needed.slots(ids)
                piece_n = source.piece_of(slots)
                for piece, first_slot, rows in source.read(np.unique(piece_n)):
                    begin, end = np.searchsorted(piece_n, [piece, piece + 1])
                    self._count_features(index, end - begin)
                    chosen = rows[slots[begin:end] - first_slot]
                    out.append(as_float(layer.project(torch.from_numpy(chosen))).numpy())
            out.finish()
        except BaseException:
            out.close()
            raise
        return out

    def _combined(self, model: GnnModel, index: int, source: RowPieces, *, projected: bool) -> Iterator[Tensor]:
        """Output of one layer's destinations, ascending, tile by tile, activations included."""
        layer = model.ordered_layers()[index]
        in_files = projected or index > 0
        width = layer.projected_dim if projected else layer.in_dim
        tile_rows = 4 * (width + 2 * sums_width(layer) + 3 * layer.out_dim) + NODE_BYTES
        num_tiles = 0
        for tile in self._tiles(index + 1, tile_rows):
            num_tiles += 1
            with torch.no_grad():  # never across a yield: it holds for a thread
                own = take_rows(source, self._slots(tile.ids, index, in_files), width)
                degrees_D = self._degrees.take(tile.ids) if self._degrees is not None else None
                sums = sums_of(layer, torch.from_numpy(own), tile.degree, degrees_D)
                if self._spec.needs_graph:
                    for edges in self._edges_of(tile):
                        self._add(sums, source, index, in_files, *edges)
                rows = model.activate(index, sums.finish())
                del own, sums
            yield rows
            del rows
        _logger.debug("layer %d: %d tiles", index, num_tiles)

    def _add(
        self, sums: Any, source: RowPieces, index: int, in_files: bool, ids: IdArray, targets: npt.NDArray[np.int32]
    ) -> None:
        """Let the pieces of source rows that some edges need pass by."""
        slots = self._slots(ids, index, in_files)
        piece_e = source.piece_of(slots).astype(np.int32)
        piece_ptr = np.zeros(source.num_pieces + 1, np.int64)
        by_piece, target_e = np.empty_like(slots), np.empty_like(targets)
        sort_by_piece(slots, targets, piece_e, piece_ptr, by_piece, target_e)
        del slots, piece_e
        for piece, first_slot, rows in source.read(np.flatnonzero(np.diff(piece_ptr))):
            begin, end = piece_ptr[piece], piece_ptr[piece + 1]
            self._count_features(0 if not in_files else 1, end - begin)
            degrees = self._degrees_of_piece(index, in_files, first_slot, len(rows))
            plain = np.ascontiguousarray(rows, np.float32)
            sums.add(by_piece[begin:end], target_e[begin:end], first_slot, plain, degrees)

    def _count_features(self, index: int, num_rows: int) -> None:
        if index == 0:
            self._feature_bytes += int(num_rows) * self._features.row_bytes

    def _degrees_of_piece(self, index: int, in_files: bool, first_slot: int, count: int) -> NodeDegrees | None:
        if self._degrees is None:
            return None
        if not in_files:
            return self._degrees.take(np.arange(first_slot, first_slot + count))
        return self._degrees.take(_ids_between(self._needed[index], first_slot, count))

    def _slots(self, ids: IdArray, index: int, in_files: bool) -> I64Array:
        """Where rows of nodes lie in a layer's source: by id in the store, by rank in a file of ours."""
        return self._needed[index].slots(ids) if in_files else ids.astype(np.int64, copy=False)

    def _tiles(self, level: int, row_bytes: int) -> Iterator[_Tile]:
        """Cut the destinations into tiles whose rows and edges fit; one destination is the least."""
        pending: list[_Tile] = []
        held = 0
        for ids in _ids_of(self._needed[level]):
            begin, degree = self._topology.lists(ids) if self._spec.needs_graph else (ids, np.zeros_like(ids))
            self._lists_read += len(ids)
            self._edges_read += int(degree.sum())
            bytes_n = row_bytes + np.minimum(degree, self._most_edges) * EDGE_BYTES
            at = 0
            while at < len(ids):
                total = np.cumsum(bytes_n[at:])
                count = int(np.searchsorted(total, self._tile_bytes - held, side="right"))
                if not count and not pending:
                    count = 1
                if count:
                    pending.append(_Tile(ids[at : at + count], begin[at : at + count], degree[at : at + count]))
                    held += int(total[count - 1])
                    at += count
                if at < len(ids):
                    yield _joined(pending)
                    pending, held = [], 0
        if pending:
            yield _joined(pending)

    @property
    def _most_edges(self) -> int:
        """Edges of a tile that are in memory at once."""
        return max(1024, self._tile_bytes // 2 // EDGE_BYTES)

    def _edges_of(self, tile: _Tile) -> Iterator[tuple[IdArray, npt.NDArray[np.int32]]]:
        """Sources and destinations of a tile's edges, all at once where they fit."""
        end = np.cumsum(tile.degree)
        num_edges = int(end[-1]) if len(end) else 0
        for first in range(0, num_edges, self._most_edges):
            last = min(first + self._most_edges, num_edges)
            # What of each list lies in [first, last) of the tile's edges.
            start = end - tile.degree
            length = np.clip(np.minimum(end, last) - np.maximum(start, first), 0, None)
            begin = tile.begin + np.maximum(first - start, 0)
            yield self._topology.read_lists(begin, length), np.repeat(np.arange(len(end), dtype=np.int32), length)

    def _needed_sets(self, nodes: I64Array) -> list[RankMap]:
        """Nodes whose rows each layer reads, from the input to the output."""
        sets = [RankMap.from_sorted_ids(nodes, self._topology.num_nodes)]
        for _ in range(self._spec.num_layers):
            if not self._spec.needs_graph:
                sets.append(sets[0])
                continue
            bits = sets[-1].bits.copy()
            for ids in _ids_of(sets[-1]):
                begin, degree = self._topology.lists(ids)
                for edges in self._edges_of(_Tile(ids, begin, degree)):
                    mark_bits(bits, edges[0])
            rank = np.empty(len(bits), np.uint32)
            rank_words(bits, rank)
            sets.append(RankMap(bits, rank, self._topology.num_nodes, int(np.bitwise_count(bits).sum())))
        return sets[::-1]


def sets_bytes(spec: ModelSpec, num_nodes: int, *, prepared: int = 1) -> int:
    """Bytes of the sets of needed nodes of so many inferences, and of one more while it is made."""
    return (prepared * (spec.num_layers + 1) + 1) * RankMap.nbytes_for(num_nodes)


def pieces_bytes(spec: ModelSpec, num_nodes: int) -> int:
    """Bytes of the pieces of the layers' files on their way to the disk and back, beside tiles."""
    layers = build_model(spec, seed=0).ordered_layers()
    return min(_PIECES_BYTES, 4 * num_nodes * max(layer.projected_dim + layer.out_dim for layer in layers))


def _ids_of(needed: RankMap) -> Iterator[I64Array]:
    """Ids of a set, ascending, some at a time."""
    buffer, at, end = np.empty(_IDS_AT_ONCE, np.int64), 0, 64 * len(needed.bits)
    while at < end:
        count, at = take_ids(needed.bits, at, buffer)
        if count:
            yield buffer[:count].copy()


def _ids_between(needed: RankMap, first_slot: int, count: int) -> I64Array:
    """Ids of the slots [first_slot, first_slot + count) of a set."""
    word = int(np.searchsorted(needed.rank, first_slot, side="right")) - 1
    out = np.empty(first_slot - int(needed.rank[word]) + count, np.int64)
    take_ids(needed.bits, 64 * word, out)
    return out[first_slot - int(needed.rank[word]) :]


def _joined(tiles: list[_Tile]) -> _Tile:
    return _Tile(
        np.concatenate([tile.ids for tile in tiles]),
        np.concatenate([tile.begin for tile in tiles]),
        np.concatenate([tile.degree for tile in tiles]),
    )
