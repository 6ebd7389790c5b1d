"""How exact inference from disk cuts a layer: the arithmetic of tiles, windows and edges on their way.

With S bytes of source rows, D destinations, E edges, a bytes of sums a destination and T bytes of memory for a tile, a
layer reads its lists once, the destinations' own rows once (GAT twice), and its sources once a tile:

- edges in memory, e bytes each: ceil((a D + e E) / T) tiles, so S ceil((a D + e E) / T) bytes;
- edges by way of the disk: S ceil(a D / T) + 2 x 6 E bytes, for each is written and read in 6 bytes;
- by way of the disk, in K strips of columns (GraphSAGE, GCN) or heads (GAT) that are added up one after the other:
  S ceil(a D / (K T)) + (1 + K) x 6 E + 2 a D bytes, for the edges are read once a strip and the sums of each strip wait
  on disk. Features are first written in strips: 2 S bytes.

What moves the fewest bytes is taken. Narrow rows of a graph with long lists go by the disk; wide rows stay in memory
or, where that is far too small for them, go in strips.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kernels.nn.layers import Layer
from kernels.nn.streamed import Units, begins_with_own_rows, sums_width, units_of
from storage.blocks.edge_runs import BUFFERS_AT_WORK, MOST_SHIFT, RUN_EDGE_BYTES, SEGMENT_BYTES
from storage.blocks.row_file import LEAST_STRIP_BYTES, PIECE_BYTES, RowLayout

_LEAST_TILE_BYTES = 1 << 20
_LEAST_SHARE = 4  # of the least tile, one part is for a window of the widest rows and what there is for each window
_MOST_PASSES = 64  # with the least memory, if rows went whole; more would take hours, which nobody asked for
MOST_EDGE_BYTES = 8 + 4 + RUN_EDGE_BYTES
"""An edge in memory whose ids take 8 bytes."""
_BUFFER_BYTES = tuple(1 << bits for bits in range(18, 11, -1))
_MOST_LISTS_BYTES, _MOST_FINISHED_BYTES = 32 << 20, 16 << 20
_LIST_BYTES = 96  # a list on its way: node, begin, length, where its entries go, its rows by block
_ENTRY_BYTES = 32  # an entry on its way: id, slot, destination, scratch
_ROW_OVERHEAD = 64  # an own row: id, slot, offsets, degrees
_DEGREE_BYTES = 24  # a row of a window: id, both degrees, weight
_WINDOW_BYTES = 24  # a window: edges, place, marks
_LEAST_EDGES = 1024
_LEFT_OVER_SHARE = 8
"""Buffers that are written before they are full are at most one part of the edges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """What a layer reads and adds up."""

    num_sources: int
    """Rows of its source."""
    num_dst: int
    """Destinations."""
    num_edges: int
    """Lengths of their lists together."""
    source_bytes: int
    """Bytes of the rows that it reads, on disk."""
    width: int
    """Floats of a row."""
    sums_width: int
    """Floats of sums a destination."""
    out_width: int
    """Floats of output."""
    own_passes: int = 1
    """How often the destinations' own rows are read."""
    units: Units | None = None
    """What may be added up in strips, if anything."""
    is_stored: bool = False
    """Whether the rows are a store's features, which are not in strips."""
    id_bytes: int = 4
    """Of an entry of a list."""

    @classmethod
    def of(cls, layer: Layer, *, needs_graph: bool, num_edges: int, is_stored: bool, **counts: int) -> LayerSizes:
        """Those of a layer; `counts` are the fields that it does not say."""
        return cls(
            num_edges=num_edges if needs_graph else 0,
            sums_width=sums_width(layer) if needs_graph else 0,
            out_width=max(layer.out_dim, layer.projected_dim),
            own_passes=2 if begins_with_own_rows(layer) else 1,
            units=units_of(layer) if needs_graph else None,
            is_stored=is_stored,
            **counts,
        )

    def in_strips(self, strip_units: int, piece_bytes: int) -> tuple[RowLayout, RowLayout]:
        """Layouts of the source's rows and of what is left of all destinations' sums, while they wait on disk."""
        units = self.units
        assert units is not None, "asked where there are any"
        source = RowLayout(self.num_sources, self.width, strip_units * units.source, self.itemsize, piece_bytes)
        left = RowLayout(self.num_dst, units.count * units.waiting, strip_units * units.waiting)
        return source, replace(left, target_bytes=piece_bytes)

    @property
    def itemsize(self) -> int:
        """Bytes of a value of the source's rows."""
        return max(1, self.source_bytes // max(1, self.num_sources * self.width))


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePlan:
    """How a layer is cut."""

    shift: int
    """Windows have `2**shift` rows."""
    buffer_bytes: int
    """Of a window's buffer of edges on their way to the disk; 0 keeps edges in memory."""
    strip_units: int
    """Units that are added up at a time, one strip; 0 takes whole rows."""
    strip_width: int
    """Columns of such a strip of the source's rows; 0 takes whole rows."""
    piece_bytes: int
    """About how large pieces of rows in strips are."""
    tile_bytes: int
    """Memory for sums and, where they stay in memory, edges."""
    dst_bytes: int
    """A destination's share of it."""
    edge_bytes: int
    """An edge's; 0 where they go by the disk."""
    lists_at_once: int
    """Lists whose offsets are in memory."""
    entries_at_once: int
    """Entries of lists on their way."""
    rows_at_once: int
    """Destinations that are finished together."""
    num_tiles: int
    """About how many tiles there are."""
    moved_bytes: int
    """What the layer reads and writes, its output left out, if every piece of the sources is needed."""

    @property
    def goes_by_disk(self) -> bool:
        """Whether edges do."""
        return self.buffer_bytes > 0

    @property
    def most_edges(self) -> int:
        """Edges of one destination that are in memory at once."""
        room = (self.tile_bytes - self.dst_bytes) // max(1, self.edge_bytes)
        return max(_LEAST_EDGES, self.entries_at_once, room)


def least_tile_bytes(num_sources: int, width: int) -> int:
    """The least memory for tiles.

    Half of it holds sums, however many windows its sources have; and it is not less than one part in 64 of all sums, so
    that the sources do not pass by hundreds of times.

    Parameters
    ----------
    num_sources : int
        Rows of the layer that has the most.
    width : int
        Floats of the widest rows.
    """
    sources = LayerSizes(
        num_sources=num_sources, num_dst=0, num_edges=0, source_bytes=0, width=width, sums_width=0, out_width=0
    )
    return max(_LEAST_TILE_BYTES, _LEAST_SHARE * _passing(sources, 0)[0], 4 * width * num_sources // _MOST_PASSES)


def plan_tiles(sizes: LayerSizes, budget_bytes: int, disk_bytes: int) -> TilePlan:
    """Cut a layer so that it moves the fewest bytes within a budget, its edges in memory or in so much disk."""
    plans = [_plan(sizes, budget_bytes, 0)]
    if most_spilled_bytes(sizes.num_edges) <= disk_bytes:
        plans += _by_disk(sizes, budget_bytes)
    for strip_units in _strips(sizes, budget_bytes):
        if strips_disk_bytes(sizes, strip_units, budget_bytes) <= disk_bytes:
            plans += _by_disk(sizes, budget_bytes, strip_units)
    return min(plans, key=lambda plan: plan.moved_bytes)


def _strips(sizes: LayerSizes, budget_bytes: int) -> list[int]:
    """Units of a strip that are worth a look: a half of all, a quarter, and so on."""
    if sizes.units is None:
        return []
    count, most = sizes.units.count, strip_piece_bytes(budget_bytes) // LEAST_STRIP_BYTES
    return sorted({-(-count >> bits) for bits in range(1, min(count, most).bit_length())})


def strip_piece_bytes(budget_bytes: int) -> int:
    """Bytes of pieces in strips, so that the few that are in memory at once leave room for sums."""
    return min(PIECE_BYTES, max(16 * LEAST_STRIP_BYTES, 1 << (budget_bytes // 32).bit_length() - 1))


def strips_disk_bytes(sizes: LayerSizes, strip_units: int, budget_bytes: int) -> int:
    """Most disk that a layer in strips takes beside its output and, where its source is a file of ours, that file."""
    striped, sums = sizes.in_strips(strip_units, strip_piece_bytes(budget_bytes))
    before = 0 if sizes.is_stored else RowLayout(sizes.num_sources, sizes.width).nbytes
    return most_spilled_bytes(sizes.num_edges) + sums.nbytes + striped.nbytes - before


def most_spilled_bytes(num_edges: int) -> int:
    """Most disk that a tile's edges take, if all are in one tile."""
    return RUN_EDGE_BYTES * num_edges * (_LEFT_OVER_SHARE + 2) // _LEFT_OVER_SHARE


def _by_disk(sizes: LayerSizes, budget_bytes: int, strip_units: int = 0) -> Iterator[TilePlan]:
    """Edges by the disk, with the largest buffers that fit beside the rest, if any do."""
    for buffer_bytes in _BUFFER_BYTES:
        passing, shift = _passing(sizes, buffer_bytes, strip_units)
        left_over = -(-sizes.num_sources // (1 << shift)) * buffer_bytes  # buffers that are not full at the end
        most_passing = budget_bytes // (3 if strip_units else 4)
        if passing <= most_passing and left_over * _LEFT_OVER_SHARE <= RUN_EDGE_BYTES * sizes.num_edges:
            plan = _plan(sizes, budget_bytes, buffer_bytes, strip_units)
            pieces = _strips_memory_bytes(sizes, strip_units, budget_bytes)[1] if strip_units else 0
            if pieces <= plan.tile_bytes:
                yield plan
            return


def _plan(sizes: LayerSizes, budget_bytes: int, buffer_bytes: int, strip_units: int = 0) -> TilePlan:
    lists, finished = min(_MOST_LISTS_BYTES, budget_bytes // 8), min(_MOST_FINISHED_BYTES, budget_bytes // 8)
    passing, shift = _passing(sizes, buffer_bytes, strip_units)
    units = sizes.units or Units(0)
    dst_bytes = 4 * max(1, strip_units * units.sums or sizes.sums_width)
    edge_bytes = 0 if buffer_bytes else sizes.id_bytes + 4 + RUN_EDGE_BYTES
    index = _strips_memory_bytes(sizes, strip_units, budget_bytes)[0] if strip_units else 0
    tile_bytes = max(dst_bytes, budget_bytes - lists - finished - passing - index)
    num_tiles = max(1, -(-(dst_bytes * sizes.num_dst + edge_bytes * sizes.num_edges) // tile_bytes))
    return TilePlan(
        shift=shift,
        buffer_bytes=buffer_bytes,
        strip_units=strip_units,
        strip_width=strip_units * units.source,
        piece_bytes=strip_piece_bytes(budget_bytes) if strip_units else PIECE_BYTES,
        tile_bytes=tile_bytes,
        dst_bytes=dst_bytes,
        edge_bytes=edge_bytes,
        lists_at_once=max(64, min(1 << 16, lists // 2 // _LIST_BYTES)),
        entries_at_once=max(_LEAST_EDGES, min(1 << 20, lists // 2 // _ENTRY_BYTES)),
        rows_at_once=max(
            1, finished // (4 * (2 * sizes.width + 2 * sizes.sums_width + 3 * sizes.out_width) + _ROW_OVERHEAD)
        ),
        num_tiles=num_tiles,
        moved_bytes=_moved_bytes(sizes, num_tiles, buffer_bytes > 0, strip_units, strip_piece_bytes(budget_bytes)),
    )


def _strips_memory_bytes(sizes: LayerSizes, strip_units: int, budget_bytes: int) -> tuple[int, int]:
    """Memory that rows in strips take beside tiles, and for whole pieces of them, when no tile is in memory."""
    source, sums = sizes.in_strips(strip_units, strip_piece_bytes(budget_bytes))
    beside = source.index_bytes + sums.index_bytes + source.strip_memory_bytes + sums.strip_memory_bytes
    return beside, sums.memory_bytes + (source.memory_bytes if sizes.is_stored else 0)


def _moved_bytes(sizes: LayerSizes, num_tiles: int, goes_by_disk: bool, strip_units: int, piece_bytes: int) -> int:
    own = sizes.own_passes * sizes.source_bytes * min(1.0, sizes.num_dst / max(1, sizes.num_sources))
    moved = int(own) + sizes.id_bytes * sizes.num_edges
    if not sizes.num_edges:
        return moved
    if not strip_units:
        runs = 2 * RUN_EDGE_BYTES * sizes.num_edges if goes_by_disk else 0
        return moved + num_tiles * sizes.source_bytes + runs
    striped, sums = sizes.in_strips(strip_units, piece_bytes)
    runs = (1 + sums.num_strips) * RUN_EDGE_BYTES * sizes.num_edges
    passed = num_tiles * striped.nbytes * sums.num_strips // striped.num_strips
    written = sizes.source_bytes + striped.nbytes if sizes.is_stored else 0
    return moved + passed + runs + 2 * sums.nbytes + written


def _passing(sizes: LayerSizes, buffer_bytes: int, strip_units: int = 0) -> tuple[int, int]:
    """Bytes of a window's rows and of what there is for each window, at the shift where they are fewest; the shift."""
    row_bytes = 4 * (strip_units * sizes.units.source if sizes.units and strip_units else sizes.width) + _DEGREE_BYTES
    written = sizes.num_edges // (buffer_bytes // RUN_EDGE_BYTES) if buffer_bytes else 0

    def taken(shift: int) -> int:
        num_windows = -(-sizes.num_sources // (1 << shift))
        each = _WINDOW_BYTES + buffer_bytes + (SEGMENT_BYTES if buffer_bytes else 0)
        return (row_bytes << shift) + each * num_windows + BUFFERS_AT_WORK * buffer_bytes + SEGMENT_BYTES * written

    return min((taken(shift), shift) for shift in range(MOST_SHIFT + 1))
