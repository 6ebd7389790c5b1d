"""Rows in a file of our own, which are read whole or a strip of columns at a time.

A piece holds consecutive rows, strip after strip; a strip's part of a piece is one request. With one strip, a piece is
its rows, one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from storage.blocks.extent import DIRECT_ALIGNMENT, aligned_empty
from storage.blocks.io_stats import IoStats
from storage.blocks.row_pieces import I64Array, RowPieces, Rows, distinct_of_ranges
from storage.blocks.spill import SpillFile, padded

PIECE_BYTES = 1 << 20
LEAST_STRIP_BYTES = 8192
"""A piece's part of a strip is not smaller, for each is a request."""
_AHEAD = 3
_STRIPS_AHEAD_SHARE = 4
"""Of a piece's bytes, one part is on its way while a strip is read."""
_INDEX_BYTES, _SUM_BYTES = 200, 8


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Where rows lie in a file."""

    num_rows: int
    """Number of rows."""
    width: int
    """Values of a row."""
    strip_width: int = 0
    """Columns of a strip; 0: there is one strip."""
    itemsize: int = 4
    """Bytes of a value."""
    target_bytes: int = PIECE_BYTES
    """About how large pieces are."""

    @property
    def columns(self) -> int:
        """Columns of a strip."""
        return self.strip_width or self.width

    @property
    def num_strips(self) -> int:
        """Strips of a row; the last one may be narrower."""
        return max(1, -(-self.width // max(1, self.columns)))

    @property
    def piece_rows(self) -> int:
        """Rows of a piece."""
        target = max(DIRECT_ALIGNMENT, self.target_bytes // self.num_strips // DIRECT_ALIGNMENT * DIRECT_ALIGNMENT)
        return max(1, min(self.num_rows, target // max(1, self.itemsize * self.columns)))

    @property
    def strip_bytes(self) -> int:
        """Bytes of a piece's part of a strip."""
        return padded(self.itemsize * self.columns * self.piece_rows)

    @property
    def piece_bytes(self) -> int:
        """Bytes of a piece."""
        return self.num_strips * self.strip_bytes

    @property
    def num_pieces(self) -> int:
        """Number of pieces."""
        return -(-self.num_rows // self.piece_rows)

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return self.num_pieces * self.piece_bytes

    @property
    def memory_bytes(self) -> int:
        """Most bytes of pieces in memory while it is written or read, one that is put together included."""
        if self.num_strips == 1:
            return min((self.ahead + 2) * self.piece_bytes, self.nbytes)
        return min((self.ahead + 3) * self.piece_bytes, 2 * self.nbytes)

    @property
    def strip_memory_bytes(self) -> int:
        """Most bytes of one strip's parts of pieces in memory, while it is written or read."""
        return (self.strips_ahead + 2) * self.strip_bytes

    @property
    def strips_ahead(self) -> int:
        """Parts of pieces that are on their way while a strip is read."""
        return max(1, self.target_bytes // _STRIPS_AHEAD_SHARE // max(1, self.strip_bytes))

    @property
    def ahead(self) -> int:
        """Pieces that are on their way while one is used."""
        return _AHEAD if self.num_strips == 1 else 1

    @property
    def index_bytes(self) -> int:
        """Bytes in memory of what is known of each piece."""
        return self.num_pieces * (_INDEX_BYTES + _SUM_BYTES * self.num_strips)


class RowFile:
    """Rows in a nameless file on disk, written from front to back, then read in pieces; close it.

    Parameters
    ----------
    directory : Path
    layout : RowLayout
    stats : IoStats
    dtype : numpy.dtype, optional
        Of its values; float32 without it.

    Raises
    ------
    MachineError
        If the disk is full.
    """

    def __init__(self, directory: Path, layout: RowLayout, stats: IoStats, dtype: npt.DTypeLike = np.float32) -> None:
        self.layout, self.width, self.num_pieces = layout, layout.width, layout.num_pieces
        self._dtype = np.dtype(dtype)
        sizes = [layout.piece_bytes] * layout.num_pieces
        self._file = SpillFile(directory, sizes, max(DIRECT_ALIGNMENT, layout.strip_bytes), stats)
        self._filling, self._filled, self._next = aligned_empty(layout.piece_bytes), 0, 0
        self._writing: deque[Future[None]] = deque()

    @property
    def strips(self) -> list[RowPieces]:
        """Its strips, from the first column on."""
        return [_Strip(self, number) for number in range(self.layout.num_strips)]

    def append(self, rows_nW: Rows) -> None:
        """Write whole rows behind those written before."""
        done = 0
        while done < len(rows_nW):
            some = rows_nW[done : done + self.layout.piece_rows - self._filled]
            for number, part in enumerate(self._parts(self._filling)):
                first = number * self.layout.columns
                columns = some[:, first : first + self.layout.columns]
                part[self._filled : self._filled + len(some), : columns.shape[1]] = columns
            done, self._filled = done + len(some), self._filled + len(some)
            if self._filled == self._rows_of(self._next):
                self._write(self._next, self._filling)
                self._filling, self._filled, self._next = aligned_empty(self.layout.piece_bytes), 0, self._next + 1

    def append_strip(self, rows_Nw: Rows) -> None:
        """Write the next strip of all rows, for a file that is written strip by strip."""
        self._filling = self._filling[:0]
        for piece in range(self.num_pieces):
            some = rows_Nw[piece * self.layout.piece_rows :][: self.layout.piece_rows]
            memory = aligned_empty(self.layout.strip_bytes)
            self._parts(memory)[0][: len(some), : some.shape[1]] = some
            self._write(piece, memory)
        self._next = self.num_pieces

    def finish(self) -> None:
        """Wait until all is written."""
        while self._writing:
            self._writing.popleft().result()
        assert self._next == self.num_pieces, "fewer rows were written than announced"
        self._filling = self._filling[:0]

    def close(self) -> None:
        """Give its space back."""
        self._file.close()

    def piece_of(self, slots: IdArray) -> I64Array:
        """As `RowPieces.piece_of`."""
        return slots.astype(np.int64, copy=False) // self.layout.piece_rows

    def between(self, first: I64Array, last: I64Array) -> I64Array:
        """As `RowPieces.between`."""
        return distinct_of_ranges(self.piece_of(first), self.piece_of(last))

    def read(self, pieces: I64Array) -> Iterator[tuple[int, int, Rows]]:
        """As `RowPieces.read`."""
        for piece, memory in _ahead(pieces, self._file.read_ahead, self.layout.ahead):
            parts = self._parts(memory)
            rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)[:, : self.width]
            yield piece, piece * self.layout.piece_rows, rows[: self._rows_of(piece)]

    def read_strip(self, number: int, pieces: I64Array) -> Iterator[tuple[int, int, Rows]]:
        """As `RowPieces.read`, one strip."""
        submit = partial(self._file.read_ahead, piece=number)
        for piece, memory in _ahead(pieces, submit, self.layout.strips_ahead):
            yield piece, piece * self.layout.piece_rows, self._parts(memory)[0][: self._rows_of(piece)]

    def _rows_of(self, piece: int) -> int:
        return min(self.layout.piece_rows, self.layout.num_rows - piece * self.layout.piece_rows)

    def _parts(self, memory: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
        """The (piece_rows, columns) values of each strip that lies in some memory."""
        layout = self.layout
        nbytes = layout.itemsize * layout.columns * layout.piece_rows
        begins = range(0, len(memory), layout.strip_bytes) if layout.strip_bytes else ()
        return [memory[at : at + nbytes].view(self._dtype).reshape(layout.piece_rows, layout.columns) for at in begins]

    def _write(self, piece: int, memory: npt.NDArray[np.uint8]) -> None:
        self._writing.append(self._file.write(piece, memory, len(memory)))
        while len(self._writing) > self.layout.ahead:
            self._writing.popleft().result()


class _Strip:
    """Some columns of a file's rows."""

    def __init__(self, file: RowFile, number: int) -> None:
        self._file, self._number = file, number
        self.num_pieces, self.width = file.num_pieces, file.layout.columns

    def piece_of(self, slots: IdArray) -> I64Array:
        return self._file.piece_of(slots)

    def between(self, first: I64Array, last: I64Array) -> I64Array:
        return self._file.between(first, last)

    def read(self, pieces: I64Array) -> Iterator[tuple[int, int, Rows]]:
        return self._file.read_strip(self._number, pieces)


class RowsInTurn:
    """Rows of all pieces from the first on, as many at a time as are asked for.

    Parameters
    ----------
    pieces : RowPieces
    """

    def __init__(self, pieces: RowPieces) -> None:
        self._read = pieces.read(np.arange(pieces.num_pieces))
        self._rows: Rows = np.empty((0, pieces.width), np.float32)

    def take(self, count: int) -> Rows:
        """The next `count` rows."""
        parts = [self._rows[:count]]
        self._rows = self._rows[count:]
        while (missing := count - sum(map(len, parts))) > 0:
            rows = next(self._read)[2]
            parts.append(rows[:missing])
            self._rows = rows[missing:]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _ahead(
    pieces: I64Array, submit: Callable[[int], Future[npt.NDArray[np.uint8]]], ahead: int
) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Pieces in turn, some of which are on their way."""
    flying: deque[tuple[int, Future[npt.NDArray[np.uint8]]]] = deque()
    for piece in pieces.tolist():
        flying.append((piece, submit(piece)))
        if len(flying) > ahead:
            first, future = flying.popleft()
            yield first, future.result()
    while flying:
        first, future = flying.popleft()
        yield first, future.result()
