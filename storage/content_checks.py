"""What a store's checksums cannot tell: whether its ids lie where code that checks nothing may use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from storage.errors import StorageError

_jit = numba.njit(nogil=True, cache=True)


def check_adjacency(path: Path, indptr: npt.NDArray[Any], indices: npt.NDArray[Any]) -> None:
    """Refuse adjacency lists that would lead outside their arrays; one pass over both.

    Parameters
    ----------
    path : Path
        Store, for the error.
    indptr : (N + 1,) array
    indices : (E,) array

    Raises
    ------
    StorageError
        Offsets do not ascend from 0 to E, an id is outside [0, N), or the types are not those of a store.
    """
    check_offsets(path, indptr, len(indices))
    if indices.dtype not in (np.int32, np.int64):
        raise damaged(path, f"adjacency lists of {indices.dtype}")
    check_range(path, "the adjacency lists", indices, 0, len(indptr) - 1)


def check_offsets(path: Path, indptr: npt.NDArray[Any], num_edges: int) -> None:
    """Refuse offsets that do not ascend from 0 to `num_edges`.

    Raises
    ------
    StorageError
        They do not, or are no int64.
    """
    check_offset_type(path, indptr.dtype)
    check_offset_ends(path, int(indptr[0]), int(indptr[-1]), num_edges)
    check_offset_piece(path, indptr, 0)


def check_offset_type(path: Path, dtype: np.dtype[Any]) -> None:
    """Refuse offsets that are no int64.

    Raises
    ------
    StorageError
        They are not.
    """
    if dtype != np.int64:
        raise damaged(path, f"offsets of {dtype}")


def check_offset_ends(path: Path, first: int, last: int, num_edges: int) -> None:
    """Refuse offsets that do not begin at 0 and end at `num_edges`.

    Raises
    ------
    StorageError
        They do not.
    """
    if first != 0 or last != num_edges:
        raise damaged(path, f"offsets run from {first} to {last}, but there are {num_edges} edges")


def check_offset_piece(path: Path, offsets: npt.NDArray[np.int64], node: int) -> None:
    """Refuse offsets of the lists of `node` and following that do not ascend.

    Raises
    ------
    StorageError
        Names the first list that ends before it starts.
    """
    if (place := _first_descent(offsets)) >= 0:
        start, end = offsets[place], offsets[place + 1]
        raise damaged(path, f"the list of node {node + place} ends at {end}, before its start {start}")


def check_range(path: Path, what: str, ids: npt.NDArray[np.integer], lowest: int, end: int, *, first: int = 0) -> None:
    """Refuse numbers outside [lowest, end); `ids` begin at position `first`.

    Raises
    ------
    StorageError
        Names the first one.
    """
    if (place := _first_outside(ids, lowest, end)) >= 0:
        raise damaged(path, f"{what} hold {ids[place]} at position {first + place}, outside [{lowest}, {end})")


def damaged(path: Path, problem: str) -> StorageError:
    """Return the error of a store whose content cannot be right, though its checksums are."""
    return StorageError(f"{path} is damaged or crafted: {problem}; delete it and run again")


@_jit
def _first_descent(indptr: npt.NDArray[np.int64]) -> int:
    for v in range(len(indptr) - 1):
        if indptr[v + 1] < indptr[v]:
            return v
    return -1


@_jit
def _first_outside(ids: npt.NDArray[np.integer], lowest: int, end: int) -> int:
    for i in range(len(ids)):
        if ids[i] < lowest or ids[i] >= end:
            return i
    return -1
