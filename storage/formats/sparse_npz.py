"""Sparse matrices that `scipy.sparse.save_npz` wrote: entry (i, j) is an edge from i to j."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.errors import InputError
from storage.formats.array_files import ArrayFile, as_ids, member_names
from storage.formats.base import CHUNK_EDGES, EdgeChunk, GraphSource
from storage.formats.edge_data import EdgeWeights, check_edge_data
from storage.formats.graph_union import rows_of
from storage.formats.tables import tabular_source

_INDEX_ARRAYS = {"csr": ("indptr", "indices"), "csc": ("indptr", "indices"), "coo": ("row", "col")}


@dataclass(frozen=True)
class SparseEdges:
    """Stored entries of a sparse matrix, in file order."""

    path: Path
    """The `.npz` file."""
    kind: str
    """`csr`, `csc` or `coo`."""
    outer: ArrayFile
    """Offsets of the rows (csr) or columns (csc); rows of the entries (coo)."""
    inner: ArrayFile
    """Columns of the entries (csr, coo), or their rows (csc)."""
    values: ArrayFile | None
    """Values of the entries, each of which must be 1; None: they do not matter."""

    def chunks(self) -> Iterator[EdgeChunk]:
        """Read the edges anew."""
        values = self._value_chunks()
        inner = self.inner.flat_chunks(0, self.inner.size, CHUNK_EDGES)
        first = 0
        for one, other, weights in zip(self._outer_chunks(), inner, values, strict=True):
            if weights is not None:
                _check_ones(weights, first, self.path)
            first += len(one)
            yield (as_ids(other), as_ids(one)) if self.kind == "csc" else (as_ids(one), as_ids(other))

    def locate(self, row: int) -> str:
        """Say where an edge stands."""
        return f"{self.path}, entry {row}"

    def _value_chunks(self) -> Iterator[npt.NDArray[Any] | None]:
        if self.values is None:
            yield from (None for _ in range(0, self.inner.size, CHUNK_EDGES))
        else:
            yield from self.values.flat_chunks(0, self.values.size, CHUNK_EDGES)

    def _outer_chunks(self) -> Iterator[npt.NDArray[Any]]:
        """Row (csr, coo) or column (csc) of each entry."""
        if self.kind == "coo":
            yield from self.outer.flat_chunks(0, self.outer.size, CHUNK_EDGES)
            return
        indptr = self.outer.load().astype(np.int64)
        num_entries = self.inner.size
        if indptr[0] != 0 or indptr[-1] != num_entries or np.any(np.diff(indptr) < 0):
            raise InputError(f"{self.outer.where} does not rise from 0 to {num_entries}: the file is damaged")
        for first in range(0, num_entries, CHUNK_EDGES):
            yield rows_of(indptr, first, min(first + CHUNK_EDGES, num_entries))


def open_sparse_npz(
    edges: Path,
    *,
    features: Path | None = None,
    labels: Path | None = None,
    edge_weights: EdgeWeights = "refuse",
) -> GraphSource:
    """Describe a graph whose adjacency matrix is in an `.npz` file; each stored entry is an edge, even a stored zero.

    Parameters
    ----------
    edges : Path
        File of `scipy.sparse.save_npz`: a square matrix in csr, csc or coo form.
    features, labels : Path
        As for `open_edge_list`.
    edge_weights : str
        `refuse` raises where an entry is not 1; `drop` reads the places of the entries alone.

    Returns
    -------
    GraphSource

    Raises
    ------
    InputError
        A file is missing, or is not what it should be.
    """
    kind, num_nodes = _read_kind(edges)
    outer, inner = (ArrayFile.open(edges, name) for name in _INDEX_ARRAYS[kind])
    for array in (outer, inner):
        if array.dtype.kind not in "iu" or len(array.shape) != 1:
            raise InputError(f"{array.where} holds {array.dtype} of shape {array.shape}: indices are rows of integers")
    expected = inner.size if kind == "coo" else num_nodes + 1
    values = ArrayFile.open(edges, "data") if edge_weights == "refuse" else None
    if outer.size != expected or (values is not None and values.size != inner.size):
        raise InputError(f"{edges}: its arrays do not fit together in length: the file is damaged")
    return tabular_source(
        where=str(edges),
        reader=SparseEdges(edges, kind, outer, inner, values),
        approx_edges=inner.size,
        features=features,
        labels=labels,
        num_nodes=num_nodes,
        notes={},
    )


def _read_kind(path: Path) -> tuple[str, int]:
    """The form of the matrix and the number of its rows, which are as many as its columns."""
    names = member_names(path)
    if not {"format", "shape", "data"} <= set(names):
        raise InputError(f"{path} is no file of scipy.sparse.save_npz: it holds {', '.join(names) or 'no arrays'}")
    kind = ArrayFile.open(path, "format").load().astype(str).item()
    if kind not in _INDEX_ARRAYS:
        raise InputError(f"{path} holds a matrix in {kind!r} form: convert it with .tocsr() and save it again")
    shape = tuple(int(length) for length in ArrayFile.open(path, "shape").load())
    if len(shape) != 2 or shape[0] != shape[1]:
        raise InputError(
            f"{path} has shape {shape}: an adjacency matrix is square (give both sides of a bipartite graph ids of "
            "one range)"
        )
    return kind, shape[0]


def _check_ones(values: npt.NDArray[Any], first: int, path: Path) -> None:
    """Refuse weights: values other than 1."""
    others = np.flatnonzero(values != 1)
    if len(others):
        check_edge_data(f"weights (entry {first + others[0]} is {values[others[0]]})", str(path), "refuse")
