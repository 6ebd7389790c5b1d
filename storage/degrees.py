"""How many nodes have each degree, from a store's datasets read piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.graph_store import INDPTR, OUT_DEGREE, GraphStore, row_chunks

_NODES = 1 << 16
CountArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DegreeCounts:
    """Degrees that occur, and how many nodes have each."""

    degree_D: CountArray
    """(D,) ascending."""
    nodes_D: CountArray
    """(D,) nodes that have it."""

    @property
    def largest(self) -> int:
        """Largest degree; 0 where there is no node."""
        return int(self.degree_D.max(initial=0))


def degree_dtype(num_edges: int) -> np.dtype[Any]:
    """Type of a degree: int32 where no list is longer, else int64."""
    return np.dtype(np.int32 if num_edges < 2**31 else np.int64)


def count_degrees(pieces: Iterable[CountArray]) -> DegreeCounts:
    """Count the degrees of nodes, some nodes at a time; memory is for the degrees that occur."""
    degrees, nodes = np.empty(0, np.int64), np.empty(0, np.int64)
    for piece in pieces:
        found, counts = np.unique(piece, return_counts=True)
        degrees, place = np.unique(np.concatenate([degrees, found]), return_inverse=True)
        nodes = np.bincount(place, np.concatenate([nodes, counts]), len(degrees)).astype(np.int64)
    return DegreeCounts(degrees, nodes)


def count_in_degrees(store: GraphStore) -> DegreeCounts:
    """Count the lengths of adjacency lists."""

    def pieces() -> Iterator[CountArray]:
        for first in range(0, store.info.num_nodes, _NODES):
            last = min(first + _NODES, store.info.num_nodes)
            yield np.diff(store.reader(INDPTR).read_rows(first, last + 1))

    return count_degrees(pieces())


def in_degrees(store: GraphStore) -> npt.NDArray[np.integer]:
    """(N,) lengths of adjacency lists: int32 where E < 2**31; offsets are read piece by piece."""
    degree_N: npt.NDArray[np.integer] = np.empty(store.info.num_nodes, degree_dtype(store.info.num_edges))
    reader = store.reader(INDPTR)
    for first in range(0, store.info.num_nodes, _NODES):
        last = min(first + _NODES, store.info.num_nodes)
        degree_N[first:last] = np.diff(reader.read_rows(first, last + 1))
    return degree_N


def count_out_degrees(store: GraphStore) -> DegreeCounts:
    """Count how often adjacency lists name a node."""
    return count_degrees(row_chunks(store, OUT_DEGREE))
