"""Rows that come in pieces, in ascending order, such as whole rows of a store's feature blocks.

A slot numbers the rows of such a sequence; each slot lies in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from storage.blocks.stored_features import StoredFeatures

I64Array = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]


class RowPieces(Protocol):
    """A sequence of rows."""

    num_pieces: int
    """Number of pieces."""
    width: int
    """Values of a row."""

    def piece_of(self, slots: IdArray) -> I64Array:
        """Piece of each slot."""

    def between(self, first: I64Array, last: I64Array) -> I64Array:
        """Pieces with the slots of some ascending ranges, `last` included; ascending, each once."""

    def read(self, pieces: I64Array) -> Iterator[tuple[int, int, Rows]]:
        """Number, first slot and rows of each of some pieces, ascending; the rows are valid until the next."""


def windows_of(
    source: RowPieces, pieces: I64Array, shift: int, wanted_W: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """Windows of `2**shift` consecutive rows, put together from some pieces, each of which is read once.

    Parameters
    ----------
    source : RowPieces
    pieces : (n,) int64
        Ascending; each wanted window has a part in at least one of them.
    shift : int
    wanted_W : (num_windows,) bool

    Yields
    ------
    int
        Number of a wanted window, ascending.
    (2**shift, width) float32
        Its rows, valid until the next; those in no piece that was asked for hold anything.
    """
    out, size, current = np.empty((1 << shift, source.width), np.float32), 1 << shift, -1
    for _, first, rows in source.read(pieces):
        done = 0
        while done < len(rows):
            window = (first + done) >> shift
            if window != current:
                if current >= 0 and wanted_W[current]:
                    yield current, out
                current = window
            begin = window << shift
            stop = min(len(rows), begin + size - first)
            if wanted_W[window]:
                out[first + done - begin : first + stop - begin] = rows[done:stop]
            done = stop
    if current >= 0 and wanted_W[current]:
        yield current, out


class FeaturePieces:
    """The rows of a store: a piece is a block, with the rows that end in it.

    Parameters
    ----------
    features : StoredFeatures
    """

    def __init__(self, features: StoredFeatures) -> None:
        self._features = features
        self._block_bytes = features.buffer.extent.block_bytes
        self.num_pieces, self.width = features.buffer.extent.num_blocks, features.width

    @staticmethod
    def memory_bytes(row_bytes: int, block_bytes: int) -> int:
        """Most bytes in memory beside the buffer of blocks: a block put together with rows that begin before it."""
        return 0 if not row_bytes or block_bytes % row_bytes == 0 else block_bytes + 2 * row_bytes

    def piece_of(self, slots: IdArray) -> I64Array:
        """As `RowPieces.piece_of`."""
        return ((slots.astype(np.int64, copy=False) + 1) * self._features.row_bytes - 1) // self._block_bytes

    def between(self, first: I64Array, last: I64Array) -> I64Array:
        """As `RowPieces.between`; within a row longer than a block lie blocks in which none ends."""
        pieces = distinct_of_ranges(self.piece_of(first), self.piece_of(last))
        rows_before = (pieces * self._block_bytes) // self._features.row_bytes
        rows_after = ((pieces + 1) * self._block_bytes) // self._features.row_bytes
        ending = np.flatnonzero(rows_after > rows_before)
        return pieces[ending]

    def read(self, pieces: I64Array) -> Iterator[tuple[int, int, Rows]]:
        """As `RowPieces.read`; rows that begin in a block before are put together."""
        features, block_bytes, row_bytes = self._features, self._block_bytes, self._features.row_bytes
        first_slots = -(-(pieces * block_bytes - row_bytes + 1) // row_bytes)  # the first row that ends in the piece
        first_slots = np.maximum(first_slots, 0)
        first_blocks = first_slots * row_bytes // block_bytes
        needed = distinct_of_ranges(first_blocks, pieces)
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


def distinct_of_ranges(first: I64Array, last: I64Array) -> I64Array:
    """Ascending distinct integers of the ranges [first, last], which ascend."""
    if not len(first):
        return np.empty(0, np.int64)
    begin = np.maximum(first, np.concatenate([first[:1], np.maximum.accumulate(last)[:-1] + 1]))
    count = np.maximum(last - begin + 1, 0)
    before = np.cumsum(count) - count
    distinct: I64Array = np.arange(int(count.sum())) + np.repeat(begin - before, count)
    return distinct
