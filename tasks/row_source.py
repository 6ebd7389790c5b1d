"""Rows that a layer of exact inference reads from disk: which node each slot is of, and rows of some nodes in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from kernels.nn.layers import NodeDegrees
from kernels.rank_map import RankMap
from storage.blocks.row_pieces import RowPieces, Rows
from tasks.needed_lists import ListReads, ids_between

I64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows of all nodes by id, as a store has them, or of a set of nodes by rank, as a file of ours has them."""

    pieces: RowPieces
    """The rows."""
    num_rows: int
    """How many there are."""
    needed: RankMap | None = None
    """The nodes they are of; None: all, each its own slot."""

    @property
    def is_stored(self) -> bool:
        """Whether they are the store's features."""
        return self.needed is None

    def slots(self, ids: IdArray) -> IdArray:
        """Where the rows of nodes lie."""
        return ids if self.needed is None else self.needed.slots(ids)

    def degrees(self, degrees: NodeDegrees | None, first_slot: int, count: int) -> NodeDegrees | None:
        """Whole-graph degrees of the nodes of consecutive slots."""
        if degrees is None:
            return None
        if self.needed is None:
            return degrees.take(np.arange(first_slot, first_slot + count))
        return degrees.take(ids_between(self.needed, first_slot, count))

    def rows_of(
        self, reads: ListReads, nodes: RankMap, first: int, last: int, rows_at_once: int
    ) -> Iterator[tuple[I64Array, Rows]]:
        """Ids and rows, as stored, of the slots `first` to `last` of a set, some at a time; each piece is read once."""
        is_needed = np.zeros(self.pieces.num_pieces, np.bool_)
        for _, some in reads.nodes(nodes, first, last):
            is_needed[self.pieces.piece_of(self.slots(some))] = True
        chunks = reads.nodes(nodes, first, last)
        ids: I64Array = np.empty(0, np.int64)
        slots: IdArray = ids
        for _, begin, rows in self.pieces.read(np.flatnonzero(is_needed)):
            while True:
                if not len(ids) and (chunk := next(chunks, None)) is not None:
                    ids, slots = chunk[1], self.slots(chunk[1])
                count = min(rows_at_once, int(np.searchsorted(slots, begin + len(rows))))
                if not count:
                    break
                yield ids[:count], rows[slots[:count] - begin]
                ids, slots = ids[count:], slots[count:]
