"""Rows that come in any order, each with its node: one for every node, and brought into node order on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from storage.edge_spill import read_exactly, write_exactly
from storage.errors import InputError
from storage.formats.base import IdArray

KeyedChunks = Iterable[tuple[IdArray, npt.NDArray[Any]]]
"""Nodes and their rows, some at a time."""

_jit = numba.njit(nogil=True, cache=True)

_LEAST_WINDOW_BYTES = 16 << 20
_LEAST_WRITE_BYTES = 16 << 10
_ID_BYTES = 8
_WINDOWS = 3
LEAST_SPILL_BYTES = 12 << 20
"""Least memory to bring rows into the order of their nodes."""


class OneRowEach:
    """Checks that every node has one row.

    Parameters
    ----------
    num_nodes : int
    where : str
        How errors name the table.
    name_of : callable
        Gives the id of a node as the files have it.
    """

    def __init__(self, num_nodes: int, where: str, name_of: Callable[[int], object]) -> None:
        self._seen_N = np.zeros(num_nodes, np.bool_)
        self._where, self._name_of = where, name_of
        self._rows = 0
        self.in_order = True
        """Whether the rows so far were those of nodes 0, 1, 2 and so on."""

    def add(self, nodes: IdArray) -> None:
        """Note the nodes of further rows.

        Raises
        ------
        InputError
            A node has a row already, or a row is that of no node.
        """
        self.in_order = self.in_order and bool(
            np.array_equal(nodes, np.arange(self._rows, self._rows + len(nodes), dtype=nodes.dtype))
        )
        bad = mark_once(self._seen_N, nodes)
        if bad >= 0 and nodes[bad] < 0:
            raise InputError(f"{self._where} changed while it was read: run again when nothing writes to it")
        if bad >= 0:
            raise InputError(
                f"{self._where}: row {self._rows + bad} is the second of node {self._name_of(int(nodes[bad]))}: give "
                "every node one row"
            )
        self._rows += len(nodes)

    def finish(self) -> None:
        """Check that no node is left.

        Raises
        ------
        InputError
            Some are; it counts them and names the first.
        """
        if self._rows < len(self._seen_N):
            first = self._name_of(int(np.argmin(self._seen_N)))
            raise InputError(
                f"{self._where} has no row for {len(self._seen_N) - self._rows:,} of {len(self._seen_N):,} nodes, the "
                f"first of them {first}: give every id that occurs in the edges a row"
            )

    def watch(self, chunks: KeyedChunks) -> Iterator[npt.NDArray[Any]]:
        """Pass rows on, checking their nodes."""
        for nodes, rows in chunks:
            self.add(nodes)
            yield rows
        self.finish()


def in_node_order(
    chunks: KeyedChunks, num_nodes: int, scratch: Path, work_bytes: int | None = None
) -> Iterator[npt.NDArray[Any]]:
    """Give rows in the order of their nodes, of which each has one.

    They are scattered over files of equally many nodes, and each file is put in order in memory.

    Parameters
    ----------
    chunks : iterable of (nodes, rows)
    num_nodes : int
    scratch : Path
        Directory for `spill_disk_bytes`.
    work_bytes : int, optional
        Memory, at least `LEAST_SPILL_BYTES`; default: what is best for the disk, `spill_memory_bytes`.
    """
    spill: _RowSpill | None = None
    for nodes, rows in chunks:
        if spill is None:
            spill = _RowSpill(num_nodes, rows.shape[1:], rows.dtype, scratch, work_bytes)
        spill.add(nodes, rows)
    if spill is not None:
        yield from spill.ordered()


def spill_memory_bytes(num_rows: int, row_bytes: int) -> int:
    """Most memory that `in_node_order` takes: rows waiting, twice while they are sorted, and one file's in order."""
    return _WINDOWS * _window_bytes(num_rows, row_bytes)


def spill_disk_bytes(num_rows: int, row_bytes: int) -> int:
    """Bytes of the scratch files."""
    return num_rows * (row_bytes + _ID_BYTES)


def _window_bytes(num_rows: int, row_bytes: int) -> int:
    """Bytes of rows in one file, and of rows that wait: enough that a file gets no small pieces."""
    total = spill_disk_bytes(num_rows, row_bytes)
    return max(_LEAST_WINDOW_BYTES, int((total * _LEAST_WRITE_BYTES) ** 0.5))


class _RowSpill:
    """Scatters rows over files by ranges of nodes."""

    def __init__(
        self, num_nodes: int, shape: tuple[int, ...], dtype: np.dtype[Any], scratch: Path, work_bytes: int | None
    ) -> None:
        self._row = np.dtype((dtype, shape))
        best = _window_bytes(num_nodes, self._row.itemsize)
        self._window_bytes = best if work_bytes is None else min(best, max(1, work_bytes // _WINDOWS))
        self._num_nodes, self._scratch = num_nodes, scratch
        self._width = max(1, self._window_bytes // (self._row.itemsize + _ID_BYTES))
        self._waiting: list[tuple[IdArray, npt.NDArray[Any]]] = []
        self._waiting_bytes = 0
        self._rows_P = np.zeros(-(-num_nodes // self._width), np.int64)

    def add(self, nodes: IdArray, rows: npt.NDArray[Any]) -> None:
        """Take rows; those that wait are written once they are many."""
        self._waiting.append((nodes, rows))
        self._waiting_bytes += rows.nbytes + _ID_BYTES * len(nodes)
        if self._waiting_bytes >= self._window_bytes:
            self._write()

    def ordered(self) -> Iterator[npt.NDArray[Any]]:
        """Give all rows in the order of their nodes."""
        self._write()
        for part in range(len(self._rows_P)):
            first = part * self._width
            out = np.empty((min(self._width, self._num_nodes - first), *self._row.shape), self._row.base)
            self._place(part, first, out)
            yield out

    def _write(self) -> None:
        if not self._waiting:
            return
        nodes = np.concatenate([nodes for nodes, _ in self._waiting]).astype(np.int64, copy=False)
        rows = np.concatenate([rows for _, rows in self._waiting])
        self._waiting, self._waiting_bytes = [], 0
        order = np.argsort(nodes // self._width, kind="stable")
        ends = np.cumsum(np.bincount(nodes // self._width, minlength=len(self._rows_P)))
        start = 0
        for part, end in enumerate(ends.tolist()):
            if end > start:
                here = order[start:end]
                self._append(part, nodes[here], rows[here])
            start = end

    def _append(self, part: int, nodes: npt.NDArray[np.int64], rows: npt.NDArray[Any]) -> None:
        for kind, values in (("ids", nodes), ("rows", rows)):
            with (self._scratch / f"{kind}-{part}").open("ab", buffering=0) as file:
                write_exactly(file.write, np.ascontiguousarray(values))
        self._rows_P[part] += len(nodes)

    def _place(self, part: int, first: int, out: npt.NDArray[Any]) -> None:
        """Put the rows of one file where they belong, and remove it."""
        left = int(self._rows_P[part])
        step = max(1, self._width // 4)
        paths = [self._scratch / f"{kind}-{part}" for kind in ("ids", "rows")]
        if not left:
            return
        with paths[0].open("rb", buffering=0) as ids, paths[1].open("rb", buffering=0) as file:
            while left:
                nodes = np.empty(min(step, left), np.int64)
                rows = np.empty((len(nodes), *self._row.shape), self._row.base)
                read_exactly(ids.readinto, nodes)
                read_exactly(file.readinto, rows)
                out[nodes - first] = rows
                left -= len(nodes)
        for path in paths:
            path.unlink()


@_jit
def mark_once(seen_N: npt.NDArray[np.bool_], nodes: IdArray) -> int:
    """Mark nodes; stops at the first that is negative or marked already, and returns its position, else -1."""
    for i in range(len(nodes)):
        node = nodes[i]
        if node < 0 or seen_N[node]:
            return i
        seen_N[node] = True
    return -1
