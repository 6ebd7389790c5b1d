"""Wide rows: of so many draws for so many blocks that drawing them anew for each block would be quadratic.

Their positions are drawn once and held, of some rows at a time, in the order in which blocks hold them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.cpu.draw import new_shuffle
from kernels.cpu.stored_lists import draw_entries, fill_entries
from kernels.mfg import IdArray
from storage.blocks.list_request import ListRequest

I64Array = npt.NDArray[np.int64]

_WIDE_FANOUT = 1 << 14
"""Each thread that draws so much anew takes 512 KiB."""
_WIDE_DRAWS = 1 << 18
"""Draws of a row for all its blocks together: drawing them takes about as long as reading these blocks."""
_DRAWN_AT_ONCE = 1 << 18
"""Draws that are held, of one row at least: 4 MiB."""

DRAW_BYTES = 24
"""A draw of a wide row while it is drawn: its position, and what finds it."""
_ANEW_BYTES = 88  # a draw: itself, its position and block, a hash of swaps


def draw_bytes(fanout: int, threads: int) -> int:
    """Most bytes while so many neighbors are drawn of each list: scratch of threads, of what sorts rows, wide rows."""
    wide = DRAW_BYTES * max(fanout, _DRAWN_AT_ONCE) if fanout * fanout > _WIDE_DRAWS else 0
    return (threads + 1) * _ANEW_BYTES * min(fanout, _WIDE_FANOUT) + wide


def wide_rows(request: ListRequest, block_entries: int) -> I64Array:
    """(n,) rows of a request that are wide where a block holds so many entries, ascending."""
    fanout = request.fanout
    if fanout * fanout <= _WIDE_DRAWS:  # no row has more blocks than draws
        return np.empty(0, np.int64)
    drawn = np.flatnonzero((request.begin_U >= 0) & (request.degree_U > request.limit))
    begin, end = request.begin_U[drawn], request.begin_U[drawn] + request.degree_U[drawn]
    num_blocks = np.minimum((end - 1) // block_entries - begin // block_entries + 1, fanout)
    is_wide: npt.NDArray[np.bool_] = (fanout > _WIDE_FANOUT) | (num_blocks * fanout > _WIDE_DRAWS)
    return drawn[is_wide]


def wide_groups(rows: I64Array, fanout: int) -> Iterator[I64Array]:
    """Cut wide rows into groups to be drawn for together."""
    step = max(1, _DRAWN_AT_ONCE // fanout)
    for first in range(0, len(rows), step):
        yield rows[first : first + step]


@dataclass(frozen=True, slots=True)
class WideRows:
    """What was drawn of a group of wide rows: 16 bytes a draw, `DRAW_BYTES` while drawing; numbering takes as much."""

    rows: I64Array
    """(n,) rows of the request."""
    fanout: int
    """Draws a row."""
    block_entries: int
    """Entries a block."""
    entries: I64Array
    """(n * fanout,) positions in the dataset, row after row."""
    order: I64Array
    """(n * fanout,) numbers of the entries, ascending by position."""
    first_block: int
    """The first block that holds one."""
    block_ptr: I64Array
    """Where in `order` the entries of each block begin, from the first block on."""

    @classmethod
    def drawn(cls, request: ListRequest, rows: I64Array, block_entries: int) -> WideRows:
        """Draw for some wide rows, at least one."""
        entries = np.empty(len(rows) * request.fanout, np.int64)
        draw_entries(
            rows, request.uniq, request.uniq_ptr, request.begin_U, request.degree_U, request.fanout,
            request.stream_keys, request.replace, new_shuffle(0), entries,
        )  # fmt: skip
        order = np.argsort(entries)
        first, last = (int(entries[number]) // block_entries for number in (order[0], order[-1]))
        block_ptr = np.searchsorted(entries, np.arange(first, last + 2) * block_entries, sorter=order)
        return cls(rows, request.fanout, block_entries, entries, order, first, block_ptr)

    @property
    def blocks(self) -> I64Array:
        """Blocks that hold what was drawn, ascending."""
        return self.first_block + np.flatnonzero(np.diff(self.block_ptr))

    def fill(
        self, block: int, data: IdArray, row_ptr: I64Array, allowed: tuple[int, int], out: IdArray, ids: I64Array
    ) -> int:
        """Fill what one block holds.

        Parameters
        ----------
        block : int
        data : (m,) ids
            The block's entries.
        row_ptr : (U + 1,) int64
            Where each row of the request goes in `out`.
        allowed : pair of int
            Every value that is used must lie in [first, second).
        out : (row_ptr[-1],) ids
            Output.
        ids : (row_ptr[-1],) int64, or empty
            Output: positions of the neighbors in the dataset.

        Returns
        -------
        int
            Position of a value that is not allowed, or -1.
        """
        own = self.order[self.block_ptr[block - self.first_block] : self.block_ptr[block - self.first_block + 1]]
        return int(
            fill_entries(
                own, self.entries, data, block * self.block_entries, self.rows, self.fanout, row_ptr, *allowed, out, ids
            )
        )
