"""One hop of many mini-batches, drawn window by window of nodes: each block of lists is served once for all of them.

What was drawn waits on disk, a few bytes an edge, until its mini-batch is numbered; expanding as many mini-batches as
memory holds, again and again, would read most blocks each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu.windows import place_rows, window_ends
from kernels.mfg import IdArray, TierReads
from storage.blocks.array_file import ArrayFile, SavedArrays
from storage.blocks.extent import DIRECT_ALIGNMENT

I64Array = npt.NDArray[np.int64]
_COUNT_BYTES = 4
_PADDING_BYTES = DIRECT_ALIGNMENT + 16  # of a group of two arrays
Draw = Callable[[IdArray, I64Array], tuple[I64Array, IdArray, I64Array, list[TierReads]]]
"""Of nodes, batch after batch, and where each batch begins: row pointers, neighbors, edge ids, what was read."""


def most_waiting_bytes(num_nodes: int, num_batches: int, most_nodes: int, fanout: int, id_bytes: int) -> int:
    """Most bytes on disk that `DrawnHop` takes.

    Parameters
    ----------
    num_nodes : int
        Of all frontiers together.
    num_batches, most_nodes, fanout : int
        Mini-batches, nodes to expand at once, neighbors of each at most.
    id_bytes : int
        Of a neighbor's id.
    """
    # What two windows hold that follow each other would not have fit one.
    groups = min(num_nodes, num_batches * (1 + 2 * num_nodes // max(1, most_nodes)))
    return num_nodes * (_COUNT_BYTES + fanout * id_bytes) + groups * _PADDING_BYTES


class DrawnHop:
    """Neighbors that one hop drew for each mini-batch, on disk.

    Parameters
    ----------
    file : ArrayFile
        Where to.
    frontiers : H arrays of ids
        Nodes to expand of each mini-batch, each id once.
    most_nodes : int
        Nodes to expand at once.
    draw : callable
    """

    def __init__(self, file: ArrayFile, frontiers: Sequence[IdArray], most_nodes: int, draw: Draw) -> None:
        self._file = file
        self._saved: list[list[SavedArrays]] = [[] for _ in frontiers]
        self._reads = [TierReads() for _ in frontiers]
        ids: IdArray = np.concatenate([np.sort(frontier) for frontier in frontiers])
        ptr = np.cumsum([0, *map(len, frontiers)], dtype=np.int64)
        for uniq, uniq_ptr in windows(ids, ptr, most_nodes):
            self._draw(uniq, uniq_ptr, draw)

    def _draw(self, uniq: IdArray, ptr: I64Array, draw: Draw) -> None:
        """Draw for the nodes of one window, and save what each mini-batch gets."""
        row_ptr, neighbors, _, reads = draw(uniq, ptr)
        count_U = np.diff(row_ptr).astype(np.int32)
        some = np.flatnonzero(np.diff(ptr)).tolist()
        saved = self._file.save(
            [(count_U[ptr[h] : ptr[h + 1]], neighbors[row_ptr[ptr[h]] : row_ptr[ptr[h + 1]]]) for h in some]
        )
        for h, group in zip(some, saved, strict=True):
            self._saved[h].append(group)
            self._reads[h].add(reads[h])

    def of(self, number: int, frontier: IdArray) -> tuple[I64Array, IdArray, TierReads]:
        """What one mini-batch drew, in the order of its frontier.

        Returns
        -------
        indptr : (U + 1,) int64
        neighbors : (n,) ids
        TierReads

        Raises
        ------
        ChecksumMismatchError, MachineError
            If it does not come back as it was written.
        """
        groups = self._file.load_small(self._saved[number])
        count_U = np.concatenate([np.empty(0, np.int32), *(count for count, _ in groups)])
        drawn: Any = np.concatenate([np.empty(0, frontier.dtype), *(neighbors for _, neighbors in groups)])
        del groups
        order, indptr = np.argsort(frontier, kind="stable"), np.zeros(len(frontier) + 1, np.int64)
        indptr[1:][order] = count_U
        np.cumsum(indptr, out=indptr)
        neighbors: Any = np.empty_like(drawn)
        place_rows(drawn, count_U, order, indptr, neighbors)
        return indptr, neighbors, self._reads[number]


def windows(ids: IdArray, ptr: I64Array, most_nodes: int) -> Iterator[tuple[IdArray, I64Array]]:
    """Frontiers window by window of ids: of each of them in turn those nodes that lie in the window.

    Parameters
    ----------
    ids : (n,) integer
        Frontiers, each in ascending order, one after the other.
    ptr : (H + 1,) int64
        Where each begins.
    most_nodes : int
        Nodes of a window, or one node of each frontier.

    Yields
    ------
    uniq : (U,) ids
    uniq_ptr : (H + 1,) int64
        Where each frontier begins in `uniq`.
    """
    cursor_H, end_H, next_H = ptr[:-1].copy(), ptr[1:], ptr[:-1].copy()
    while (cursor_H < end_H).any():
        window_ends(ids, cursor_H, end_H, most_nodes, next_H)
        uniq: IdArray = np.concatenate([ids[begin:end] for begin, end in zip(cursor_H, next_H, strict=True)])
        yield uniq, np.concatenate([[0], np.cumsum(next_H - cursor_H)])
        cursor_H[:] = next_H
