"""Rows that come in pieces, in ascending order: whole rows of a store's feature blocks, or of a file of our own.

A slot numbers the rows of such a sequence; each slot lies in one piece.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from storage.blocks.extent import aligned_empty
from storage.blocks.io_stats import IoStats
from storage.blocks.spill import SpillFile, padded
from storage.blocks.stored_features import StoredFeatures

I64Array = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]
PIECE_BYTES = 1 << 20
_AHEAD = 3


class RowPieces(Protocol):
    """A sequence of rows."""

    num_pieces: int
    """Number of pieces."""

    def piece_of(self, slots: I64Array) -> I64Array:
        """Piece of each slot."""

    def read(self, pieces: I64Array) -> Iterator[tuple[int, int, Rows]]:
        """Number, first slot and rows of each of some pieces, ascending; the rows are valid until the next."""


def take_rows(source: RowPieces, slots: I64Array, width: int) -> npt.NDArray[np.float32]:
    """(n, width) float32 rows of ascending slots, each piece that holds one read once."""
    out = np.empty((len(slots), width), np.float32)
    piece_n = source.piece_of(slots)
    for piece, first_slot, rows in source.read(np.unique(piece_n)):
        begin, end = np.searchsorted(piece_n, [piece, piece + 1])
        out[begin:end] = rows[slots[begin:end] - first_slot]
    return out


class FeaturePieces:
    """The rows of a store: a piece is a block, with the rows that end in it.

    Parameters
    ----------
    features : StoredFeatures
    """

    def __init__(self, features: StoredFeatures) -> None:
        self._features = features
        self._block_bytes = features.buffer.extent.block_bytes
        self.num_pieces = features.buffer.extent.num_blocks

    def piece_of(self, slots: I64Array) -> I64Array:
        """As `RowPieces.piece_of`."""
        return ((slots + 1) * self._features.row_bytes - 1) // self._block_bytes

    def read(self, pieces: I64Array) -> Iterator[tuple[int, int, Rows]]:
        """As `RowPieces.read`; rows that begin in a block before are put together."""
        features, block_bytes, row_bytes = self._features, self._block_bytes, self._features.row_bytes
        first_slots = -(-(pieces * block_bytes - row_bytes + 1) // row_bytes)  # the first row that ends in the piece
        first_slots = np.maximum(first_slots, 0)
        first_blocks = first_slots * row_bytes // block_bytes
        needed = _ranges(first_blocks, pieces)
        at, parts = 0, []
        for lease in features.buffer.serve(needed, ascending=True):
            with lease:
                begin = int(first_slots[at]) * row_bytes - lease.block * block_bytes
                if lease.block < pieces[at]:
                    parts.append(lease.data[max(begin, 0) :].copy())
                    continue
                data = lease.data
                count = (lease.block * block_bytes + len(data)) // row_bytes - int(first_slots[at])
                if begin < 0:
                    data = np.concatenate([*parts, data[: count * row_bytes + begin]])
                else:
                    data = data[begin : begin + count * row_bytes]
                rows: Rows = data.view(features.dtype).reshape(count, features.width)
                yield lease.block, int(first_slots[at]), rows
                at += 1
                # The rest is the beginning of the row that the next block ends, if that one is asked for.
                goes_on = at < len(pieces) and first_blocks[at] <= lease.block
                parts = (
                    [lease.data[int(first_slots[at]) * row_bytes - lease.block * block_bytes :].copy()]
                    if goes_on
                    else []
                )


def _ranges(first: I64Array, last: I64Array) -> I64Array:
    """Ascending distinct integers of the ranges [first, last], which ascend."""
    longest = int((last - first).max(initial=0))
    every = [np.minimum(first + shift, last) for shift in range(longest + 1)]
    return np.unique(np.concatenate([np.empty(0, np.int64), *every]))


def row_file_bytes(num_rows: int, width: int) -> int:
    """Bytes on disk of a `RowFile`."""
    return sum(map(padded, _piece_sizes(num_rows, width)))


def _piece_rows(width: int) -> int:
    return max(1, PIECE_BYTES // (4 * width))


def _piece_sizes(num_rows: int, width: int) -> list[int]:
    step = _piece_rows(width)
    return [4 * width * min(step, num_rows - first) for first in range(0, num_rows, step)]


class RowFile:
    """Float32 rows in a nameless file on disk, written from front to back, then read in pieces; close it.

    Parameters
    ----------
    directory : Path
    num_rows, width : int
    stats : IoStats
    """

    def __init__(self, directory: Path, num_rows: int, width: int, stats: IoStats) -> None:
        self._width, self._piece_rows = width, _piece_rows(width)
        sizes = _piece_sizes(num_rows, width)
        self.num_pieces = len(sizes)
        self._piece_bytes = padded(4 * width * self._piece_rows)
        self._file = SpillFile(directory, sizes, self._piece_bytes, stats)
        self._filling, self._filled, self._next = aligned_empty(self._piece_bytes), 0, 0
        self._writing: deque[Future[None]] = deque()

    def append(self, rows_nW: npt.NDArray[np.float32]) -> None:
        """Write rows behind those written before."""
        data, done = np.ascontiguousarray(rows_nW).reshape(-1).view(np.uint8), 0
        while done < len(data):
            size = self._file.sizes[self._next]
            count = min(size - self._filled, len(data) - done)
            self._filling[self._filled : self._filled + count] = data[done : done + count]
            done, self._filled = done + count, self._filled + count
            if self._filled == size:
                self._writing.append(self._file.write(self._next, self._filling, size))
                self._filling, self._filled, self._next = aligned_empty(self._piece_bytes), 0, self._next + 1
                while len(self._writing) > _AHEAD:
                    self._writing.popleft().result()

    def finish(self) -> None:
        """Wait until all is written."""
        while self._writing:
            self._writing.popleft().result()
        assert self._next == self.num_pieces, "fewer rows were written than announced"
        self._filling = self._filling[:0]

    def close(self) -> None:
        """Give its space back."""
        self._file.close()

    def piece_of(self, slots: I64Array) -> I64Array:
        """As `RowPieces.piece_of`."""
        return slots // self._piece_rows

    def read(self, pieces: I64Array) -> Iterator[tuple[int, int, Rows]]:
        """As `RowPieces.read`."""
        submit: Callable[[int], Future[npt.NDArray[np.uint8]]] = self._file.read_ahead
        flying: deque[tuple[int, Future[npt.NDArray[np.uint8]]]] = deque()
        for piece in pieces.tolist():
            flying.append((piece, submit(piece)))
            if len(flying) > _AHEAD:
                yield self._arrived(*flying.popleft())
        while flying:
            yield self._arrived(*flying.popleft())

    def _arrived(self, piece: int, future: Future[npt.NDArray[np.uint8]]) -> tuple[int, int, Rows]:
        rows: Rows = future.result().view(np.float32).reshape(-1, self._width)
        return piece, piece * self._piece_rows, rows
