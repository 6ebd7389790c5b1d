"""Rows that change places by way of files: one for each part of the new order that memory holds, written in the old."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.edge_spill import read_exactly, write_exactly
from storage.formats.base import CHUNK_BYTES, IdArray

_NODES = 1 << 18


def permute_by_files(
    chunks: Iterable[npt.NDArray[Any]],
    old_to_new: IdArray,
    folder: Path,
    *,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    rows_at_once: int,
) -> Iterator[npt.NDArray[Any]]:
    """Give rows in a new order; they are read once, written to files, and read again.

    Parameters
    ----------
    chunks : iterable of arrays
        All rows in the old order.
    old_to_new : (N,) int32 or int64
        New place of each row; a permutation.
    folder : Path
        Where the files go: as many bytes as the rows have. Each file is gone once its rows are given.
    shape : tuple of int
        Of all rows.
    dtype : numpy.dtype
    rows_at_once : int
        Rows in memory, which is what a piece of the result holds.

    Yields
    ------
    array
        The next rows in the new order, good until the next piece.
    """
    num_parts = -(-shape[0] // rows_at_once)
    paths = [folder / f"rows-{part}" for part in range(num_parts)]
    _scatter(chunks, old_to_new, paths, rows_at_once)
    room = np.empty((min(rows_at_once, shape[0]), *shape[1:]), dtype)
    for part, path in enumerate(paths):
        first = part * rows_at_once
        out = room[: shape[0] - first]
        _gather(path, old_to_new, first, out)
        path.unlink()
        yield out


def _scatter(chunks: Iterable[npt.NDArray[Any]], old_to_new: IdArray, paths: list[Path], rows_at_once: int) -> None:
    """Append each row to the file of the part that it belongs to."""
    old = 0
    for path in paths:
        path.touch()
    for chunk in chunks:
        part = old_to_new[old : old + len(chunk)] // rows_at_once
        order = np.argsort(part, kind="stable")
        ends = np.cumsum(np.bincount(part, minlength=len(paths)))
        for place in np.flatnonzero(np.diff(ends, prepend=0)):
            start = ends[place - 1] if place else 0
            # Files are many, so none stays open.
            with paths[place].open("ab", buffering=0) as file:
                write_exactly(file.write, chunk[order[start : ends[place]]])
        old += len(chunk)


def _gather(path: Path, old_to_new: IdArray, first: int, out: npt.NDArray[Any]) -> None:
    """Read the rows of one part, which stand in the old order, and put each where it belongs."""
    step = max(1, CHUNK_BYTES // max(1, out[:1].nbytes))
    with path.open("rb", buffering=0) as file:
        for start in range(0, len(old_to_new), _NODES):
            slot = old_to_new[start : start + _NODES] - first
            slot = slot[(slot >= 0) & (slot < len(out))]
            for begin in range(0, len(slot), step):
                rows = np.empty((len(slot[begin : begin + step]), *out.shape[1:]), out.dtype)
                read_exactly(file.readinto, rows)
                out[slot[begin : begin + step]] = rows
