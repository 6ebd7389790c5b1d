"""Several graphs as one without edges between them: node ids that start anew in each become ids of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.errors import InputError
from storage.formats.base import EdgeChunk, EdgeReader, IdArray


@dataclass(frozen=True)
class UnionEdges:
    """Edges of several graphs, graph by graph."""

    reader: EdgeReader
    """Reads them with ids that start at 0 in each graph."""
    num_nodes_G: npt.NDArray[np.int64]
    """Nodes of each graph."""
    num_edges_G: npt.NDArray[np.int64]
    """Edges of each graph."""

    def chunks(self) -> Iterator[EdgeChunk]:
        """Read the edges anew, with ids of the whole."""
        node_ptr, edge_ptr = starts(self.num_nodes_G), starts(self.num_edges_G)
        row = 0
        for src, dst in self.reader.chunks():
            last = row + len(src)
            if last > edge_ptr[-1]:
                raise InputError(f"{self.locate(int(edge_ptr[-1]))}: an edge beyond the {edge_ptr[-1]} of the graphs")
            graph = rows_of(edge_ptr, row, last)
            self._check(src, dst, graph, row)
            yield src + node_ptr[graph], dst + node_ptr[graph]
            row = last
        if row != edge_ptr[-1]:
            raise InputError(f"{self.locate(0)} and on: there are {row} edges, but the graphs have {edge_ptr[-1]}")

    def locate(self, row: int) -> str:
        """Say where an edge stands."""
        return self.reader.locate(row)

    def _check(self, src: IdArray, dst: IdArray, graph: npt.NDArray[np.int64], row: int) -> None:
        """Refuse an edge that leaves its graph."""
        outside = np.flatnonzero((np.minimum(src, dst) < 0) | (np.maximum(src, dst) >= self.num_nodes_G[graph]))
        if len(outside):
            first = int(outside[0])
            raise InputError(
                f"{self.locate(row + first)}: edge ({src[first]}, {dst[first]}) names a node outside its graph, number "
                f"{graph[first]}, whose ids are 0 to {self.num_nodes_G[graph[first]] - 1}"
            )


def starts(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(n + 1,) where each of consecutive runs begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def rows_of(indptr: npt.NDArray[np.int64], first: int, last: int) -> npt.NDArray[np.int64]:
    """Row that each entry from `first` to `last` belongs to, where those of row r begin at `indptr[r]`."""
    if first == last:
        return np.empty(0, np.int64)
    low, high = np.searchsorted(indptr, first, side="right") - 1, np.searchsorted(indptr, last)
    bounds = np.clip(indptr[low : high + 1], first, last)
    return np.repeat(np.arange(low, high), bounds[1:] - bounds[:-1])
