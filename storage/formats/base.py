"""What every format hands to ingest: edges as re-iterable chunks, and the tables that go with the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from storage.progress import OpenProgress, no_progress

if TYPE_CHECKING:
    from storage.scratch_array import ScratchArray

T = TypeVar("T")
IdArray = npt.NDArray[np.int32] | npt.NDArray[np.int64]
EdgeChunk = tuple[IdArray, IdArray]
TypedChunk = tuple[IdArray, IdArray, npt.NDArray[np.int32]]

CHUNK_EDGES = 1 << 18
"""Edges a chunk that readers aim for: large enough to amortise Python, small beside any graph worth chunking."""
CHUNK_BYTES = 4 << 20
"""Bytes a chunk of feature rows that readers aim for."""
READING_BYTES = 14 << 20
"""Memory of chunks while they are read, checked and converted (measured)."""
TEXT_READING_BYTES, PARQUET_READING_BYTES = 48 << 20, 36 << 20
"""The same where polars parses text, or unpacks Parquet; its allocator keeps some of what is freed (measured)."""


class EdgeReader(Protocol):
    """Edges of a graph, in file order, as often as asked for."""

    def chunks(self) -> Iterator[EdgeChunk]:
        """Read the edges anew: pairs of equally long arrays (source ids, destination ids)."""
        ...

    def locate(self, row: int) -> str:
        """Say where edge number `row` (from 0) stands, for an error message."""
        ...


@dataclass(frozen=True)
class EdgeArrays:
    """Edges that are in memory already."""

    src: IdArray
    """(E,) source ids."""
    dst: IdArray
    """(E,) destination ids."""
    where: str = "the edges"
    """How an error message names them."""

    def chunks(self) -> Iterator[EdgeChunk]:
        """Give the edges in pieces."""
        for start in range(0, len(self.src), CHUNK_EDGES):
            yield self.src[start : start + CHUNK_EDGES], self.dst[start : start + CHUNK_EDGES]

    def locate(self, row: int) -> str:
        """Say where edge number `row` stands."""
        return f"{self.where}, row {row}"


@dataclass(frozen=True)
class Relations:
    """The relation that each edge of a knowledge graph stands for."""

    names: tuple[str, ...]
    """Name of each relation."""
    chunks: Callable[[], Iterator[TypedChunk]]
    """Reads the edges anew, in the same order: pairs as `EdgeReader.chunks`, and the relation of each."""


@dataclass(frozen=True)
class Links:
    """Edges held out for link prediction."""

    edges: npt.NDArray[np.int64]
    """(L, 2) source and target of each."""
    relations: npt.NDArray[np.int32] | None = None
    """(L,) relation of each, in a knowledge graph."""
    negatives: npt.NDArray[np.int64] | None = None
    """(M, 2) pairs without an edge to rank them against, where the data set brings such."""
    candidates: npt.NDArray[np.int64] | None = None
    """(L, K) false targets to rank the target of each link against, where the data set brings such."""

    def nodes(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return the parts that hold ids of nodes, by name, where they are there."""
        parts = {"edges": self.edges, "negatives": self.negatives, "candidates": self.candidates}
        return {name: part for name, part in parts.items() if part is not None}

    def renumbered(self, new_ids: IdArray) -> Links:
        """Replace each id by its entry in `new_ids`."""
        parts: dict[str, Any] = {
            name: new_ids[part].astype(np.int64, copy=False) for name, part in self.nodes().items()
        }
        return replace(self, **parts)


@dataclass(frozen=True)
class Numbering:
    """What numbering the nodes of a source may use."""

    folder: Path
    """Directory for files, empty; it must stay as long as the source is used."""
    work_bytes: int | None = None
    """Memory, beside what is read at a time; None: a few times the ids."""
    most_disk_bytes: int | None = None
    """Scratch files may take so much."""
    held_disk_bytes: int = 0
    """What counts in `disk_budget` already, for the error."""
    approx_edges: int = 0
    """About how many edges there are, to show how far it is."""
    progress: OpenProgress = no_progress
    """Opens a display."""

    @property
    def limits(self) -> tuple[int | None, int | None, int]:
        """Memory, disk, and what is held of the latter."""
        return self.work_bytes, self.most_disk_bytes, self.held_disk_bytes


@dataclass(frozen=True)
class NumberedEdges:
    """Edges whose ids have become 0..num_nodes-1."""

    edges: EdgeReader
    """The edges, in the same order."""
    num_nodes: int
    """Number of nodes."""
    original_ids: ScratchArray | None
    """(num_nodes,) ids that the files use (int64 or UTF-8), None where they are 0..num_nodes-1."""
    relations: Relations | None = None
    """Relations of the edges, in a knowledge graph."""
    links: Mapping[str, Links] | None = None
    """Held-out edges under the new ids, by split, in a knowledge graph."""
    features: FeatureTable | None = None
    """Features whose rows name their node, once the ids have numbers."""
    read_labels: Callable[[], LabelColumn] | None = None
    """Reads labels whose rows name their node, likewise."""


@dataclass(frozen=True)
class FeatureTable:
    """Node features as re-iterable chunks of rows, in node order unless `keyed` says otherwise."""

    num_rows: int
    """Rows there are."""
    dim: int
    """Features a row."""
    dtype: np.dtype[Any]
    """Type of the chunks: bool, integer or floating."""
    chunks: Callable[[], Iterator[npt.NDArray[Any]]]
    """Reads the rows anew: (n, dim) arrays."""
    where: str
    """How an error message names the table."""
    keyed: Callable[[], Iterator[tuple[IdArray, npt.NDArray[Any]]]] | None = None
    """Reads the rows anew in any order, each with its node; None: row i is that of node i."""

    @classmethod
    def from_array(cls, feat_ND: npt.NDArray[Any], where: str = "the features") -> FeatureTable:
        """Wrap an array."""
        rows = rows_per_chunk(feat_ND.shape[1] * feat_ND.itemsize)

        def chunks() -> Iterator[npt.NDArray[Any]]:
            for start in range(0, len(feat_ND), rows):
                yield feat_ND[start : start + rows]

        return cls(feat_ND.shape[0], feat_ND.shape[1], feat_ND.dtype, chunks, where)


@dataclass(frozen=True)
class LabelColumn:
    """Labels of the nodes."""

    labels_N: IdArray
    """(N,) class of each node in [0, len(names)), -1 where there is none."""
    names: tuple[str, ...]
    """Name of each class."""
    rows_NC: npt.NDArray[np.int8] | None = None
    """(N, C) labels where they came as rows: 1, 0, or -1 where unknown."""
    one_class: bool = True
    """Whether each node has one class at most; if not, `labels_N` is 0 where a node has any known label."""
    of_no_node: int = 0
    """Labels of ids that are no node, which were left out."""


@dataclass(frozen=True)
class GraphSource:
    """A graph as its files tell it, before ingest checks and changes anything.

    An edge (u, v) goes from u to v: v aggregates from u.
    """

    where: str
    """How error messages and logs name the graph."""
    edges: EdgeReader
    """The edges."""
    approx_edges: int
    """About how many edges there are (for the estimate of memory and disk)."""
    num_nodes: int | None = None
    """Number of nodes, ids being 0..num_nodes-1; None: ingest finds the nodes with `number_nodes`."""
    number_nodes: Callable[[Numbering], NumberedEdges] | None = None
    """Finds the nodes by reading the edges once; None: ingest takes the integers that occur, in ascending order."""
    features: FeatureTable | None = None
    """Features, if any."""
    labels: LabelColumn | None = None
    """Labels, if any."""
    labelled_later: bool = False
    """Whether there are labels by id, which are read once the nodes are numbered."""
    read_labels: Callable[[], LabelColumn] | None = None
    """Reads them then."""
    needs_edges: bool = False
    """Whether a file without edges is taken for a mistake."""
    ids_are_rows: bool = False
    """Whether ids are the numbers of rows, where an id column might stand instead."""
    splits: Mapping[str, IdArray] | None = None
    """The data set's own `train`, `valid` and `test` nodes, if any."""
    original_ids: ScratchArray | None = None
    """(num_nodes,) ids that the files use (int64 or UTF-8), None where they are 0..num_nodes-1."""
    relations: Relations | None = None
    """Relations of the edges, in a knowledge graph."""
    links: Mapping[str, Links] | None = None
    """Edges held out for link prediction, by split; such a data set has no split of its nodes."""
    graph_ids: npt.NDArray[np.int32] | None = None
    """(num_nodes,) graph of each node, where the nodes are those of several graphs."""
    graph_labels: npt.NDArray[np.float32] | None = None
    """(G, tasks) labels of these graphs, NaN where there is none."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """Counts of what the reader found, for the report."""
    held_bytes: int = 0
    """Memory that reading edges and features takes beside the arrays here, chunks left out."""
    chunk_bytes: int = READING_BYTES
    """Memory of chunks while they are read, checked and converted, the next one too."""

    def edge_chunks(self) -> Iterator[EdgeChunk]:
        """Read the edges anew."""
        return self.edges.chunks()

    def name_of(self, node: int) -> int | str:
        """Id of a node as the files have it."""
        if self.original_ids is None:
            return node
        name = self.original_ids[node]
        return name.decode() if isinstance(name, bytes) else int(name)


def read_ahead(chunks: Iterable[T]) -> Iterator[T]:
    """Read the next chunk in a thread of its own while the present one is worked on.

    Two chunks are in memory, if who takes them forgets each before asking for the next: that one is there by then, and
    the one after it is begun at once.
    """
    reader = iter(chunks)
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        coming = pool.submit(next, reader, None)
        while (chunk := coming.result()) is not None:
            coming = pool.submit(next, reader, None)
            yield chunk
            del chunk


def rows_per_chunk(row_bytes: int) -> int:
    """Rows of `row_bytes` that make a chunk of about `CHUNK_BYTES`."""
    return max(1, CHUNK_BYTES // max(1, row_bytes))
