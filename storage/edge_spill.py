"""Edges on disk while they are sorted: one file a range of destinations, each edge appended in the order it came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from storage.csc import id_dtype
from storage.formats.base import IdArray

_jit = numba.njit(nogil=True, cache=True)

_MOST_BUFFER_BYTES = 1 << 20
_LEAST_BUFFER_BYTES = 1 << 14
_READ_BYTES = 1 << 20
NO_RELATIONS = np.empty(0, np.int32)
"""Stands for the relations of edges that have none."""


@dataclass(frozen=True)
class SpilledRange:
    """A file of edges into one range of nodes."""

    path: Path
    """Rows of (destination, source) or (destination, source, relation)."""
    first: int
    """First destination of the range."""
    last: int
    """Destination after the last one."""
    num_edges: int
    """Edges in the file."""
    columns: int
    """2, or 3 with relations."""
    dtype: np.dtype[Any]
    """Type of the ids."""

    def chunks(self) -> Iterator[IdArray]:
        """Read (n, columns) edges at a time, in the order they were added; each array is good until the next."""
        row_bytes = self.columns * self.dtype.itemsize
        rows = np.empty((max(1, min(self.num_edges, _READ_BYTES // row_bytes)), self.columns), self.dtype)
        with self.path.open("rb", buffering=0) as file:
            left = self.num_edges
            while left:
                part = rows[: min(left, len(rows))]
                read_exactly(file.readinto, part)
                left -= len(part)
                yield part


@dataclass
class Found:
    """What was seen among the edges that were added."""

    rows: int = 0
    """Edges added."""
    self_loops: int = 0
    """Those from a node to itself."""
    bad_position: int = -1
    """Position in the last piece of an edge that names no node; -1 where there is none."""


class EdgeSpill:
    """Scatters edges over files, one for each of equally wide ranges of destinations.

    Parameters
    ----------
    folder : Path
        Where the files go.
    first, last : int
        Destinations that occur: `first` to `last`, the latter excluded.
    num_nodes : int
        Sources that occur lie below it.
    columns : int
        2, or 3 with relations.
    parts : int
        Ranges wanted; their width is a power of two, so there may be up to twice as many.
    buffer_bytes : int
        Memory for all write buffers together.
    """

    def __init__(
        self, folder: Path, first: int, last: int, *, num_nodes: int, columns: int, parts: int, buffer_bytes: int
    ) -> None:
        self.found = Found()
        self._first, self._last, self._num_nodes = first, last, num_nodes
        self._shift = max(0, (-(-(last - first) // parts) - 1).bit_length())
        num_parts = -(-(last - first) // (1 << self._shift))
        dtype = id_dtype(num_nodes)
        each = min(_MOST_BUFFER_BYTES, max(_LEAST_BUFFER_BYTES, buffer_bytes // num_parts))
        self._buffers = np.empty((num_parts, each // (columns * dtype.itemsize), columns), dtype)
        self._filled_P = np.zeros(num_parts, np.int64)
        self._written_P = np.zeros(num_parts, np.int64)
        # The width is in the name: where a single range was made, it is split again under the same bounds.
        self._paths = [folder / f"edges-{first}-{last}-{self._shift}-{part}" for part in range(num_parts)]

    def add(
        self,
        src: IdArray,
        dst: IdArray,
        relation: npt.NDArray[np.int32] = NO_RELATIONS,
        *,
        reverse_too: bool = False,
        skip_loops: bool = False,
    ) -> bool:
        """Add edges; False at the first one that names no node, whose position is in `found` then."""
        src, dst = np.ascontiguousarray(src, np.int64), np.ascontiguousarray(dst, np.int64)
        bounds = np.array([self._first, self._last, self._num_nodes, self._shift])
        position, full = 0, -1
        while True:
            position, full, loops = _scatter(
                src, dst, relation, position, bounds, self._buffers, self._filled_P, reverse_too, skip_loops
            )
            self.found.self_loops += loops
            if full < 0:
                break
            self._flush(full)
        self.found.bad_position = position if position < len(src) else -1
        self.found.rows += position
        return position == len(src)

    def finish(self) -> list[SpilledRange]:
        """Write what is left in the buffers; the ranges in ascending order. Nothing can be added any more."""
        for part in range(len(self._paths)):
            self._flush(part)
        columns, dtype = self._buffers.shape[2], self._buffers.dtype
        self._buffers = self._buffers[:0]
        width = 1 << self._shift
        firsts = range(self._first, self._last, width)
        return [
            SpilledRange(path, first, min(first + width, self._last), int(num_edges), columns, dtype)
            for path, first, num_edges in zip(self._paths, firsts, self._written_P, strict=True)
        ]

    def _flush(self, part: int) -> None:
        rows = int(self._filled_P[part])
        # Thousands of files may be there, so none stays open; a buffer is large enough to pay for it.
        with self._paths[part].open("ab", buffering=0) as file:
            write_exactly(file.write, self._buffers[part, :rows])
        self._written_P[part] += rows
        self._filled_P[part] = 0


def write_exactly(write: Any, array: npt.NDArray[Any]) -> None:
    """Write all bytes of a contiguous array, however many calls that takes."""
    data = array.reshape(-1).view(np.uint8).data
    while len(data):
        data = data[write(data) :]


def read_exactly(readinto: Any, array: npt.NDArray[Any]) -> None:
    """Fill a contiguous array, however many calls that takes.

    Raises
    ------
    EOFError
        The file ends before.
    """
    data = array.reshape(-1).view(np.uint8).data
    while len(data):
        count = readinto(data)
        if not count:
            raise EOFError("a scratch file was cut short: something else writes to the state directory")
        data = data[count:]


@_jit
def _scatter(
    src: npt.NDArray[np.int64],
    dst: npt.NDArray[np.int64],
    relation: npt.NDArray[np.int32],
    start: int,
    bounds: npt.NDArray[np.int64],
    buffers: IdArray,
    filled_P: npt.NDArray[np.int64],
    reverse_too: bool,
    skip_loops: bool,
) -> tuple[int, int, int]:
    """Put edges from `start` on into the buffers; (where it stopped, the buffer that is full or -1, self loops seen).

    It stops at the end, at an edge whose ids are out of bounds, or where a buffer has not room for two more.
    """
    first, last, num_nodes, shift = bounds
    room = buffers.shape[1] - 1
    loops = 0
    for i in range(start, len(src)):
        u, v = src[i], dst[i]
        if u < 0 or u >= num_nodes or v < first or v >= last:
            return i, -1, loops
        if u == v and skip_loops:
            loops += 1
            continue
        part = (v - first) >> shift
        if filled_P[part] >= room:
            return i, part, loops
        if reverse_too and u != v:
            back = (u - first) >> shift
            if filled_P[back] >= room:
                return i, back, loops
        loops += u == v
        _put(buffers, filled_P, part, v, u, relation, i)
        if reverse_too and u != v:
            _put(buffers, filled_P, (u - first) >> shift, u, v, relation, i)
    return len(src), -1, loops


@_jit
def _put(
    buffers: IdArray,
    filled_P: npt.NDArray[np.int64],
    part: int,
    row: int,
    other: int,
    relation: npt.NDArray[np.int32],
    i: int,
) -> None:
    place = filled_P[part]
    buffers[part, place, 0] = row
    buffers[part, place, 1] = other
    if buffers.shape[2] == 3:
        buffers[part, place, 2] = relation[i]
    filled_P[part] = place + 1
