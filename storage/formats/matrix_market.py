"""Matrix Market files (`.mtx`, gzip too): entry (i, j) is an edge from i to j, counted from 1 in the file.

Boisvert, Pozo and Remington, "The Matrix Market Exchange Formats: Initial Design", NISTIR 5935, 1996.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from storage.errors import InputError
from storage.formats.base import TEXT_READING_BYTES, EdgeChunk, GraphSource
from storage.formats.edge_data import EdgeWeights, check_edge_data
from storage.formats.files import open_text, require_file
from storage.formats.tables import tabular_source
from storage.formats.text_dialect import find_dialect
from storage.formats.text_table import ColumnKinds, TextTable

_VALUE_FIELDS = {"pattern": 0, "real": 1, "integer": 1, "double": 1, "complex": 2}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")


@dataclass(frozen=True)
class _Header:
    """What the first lines say."""

    field: str
    symmetry: str
    num_nodes: int
    num_entries: int
    data_start: int
    lines_before: int


@dataclass(frozen=True)
class MatrixMarketEdges:
    """Entries of a sparse matrix as text."""

    table: TextTable
    """The lines of entries."""
    num_nodes: int
    """Rows, and columns."""
    num_entries: int
    """Entries that the header declares."""
    mirrored: bool
    """Whether each entry off the diagonal stands for two."""
    weighted: bool
    """Whether values are to be compared with 1."""

    def chunks(self) -> Iterator[EdgeChunk]:
        """Parse the edges anew."""
        kinds: ColumnKinds = {0: pl.Int64, 1: pl.Int64} | ({2: pl.Float64} if self.weighted else {})
        row = 0
        for columns in self.table.read(kinds):
            src, dst = columns.to_series(0).to_numpy() - 1, columns.to_series(1).to_numpy() - 1
            self._check(src, dst, row)
            if self.weighted:
                self._refuse_weights(columns.to_series(2), row)
            row += len(src)
            yield _with_mirrored(src, dst) if self.mirrored else (src, dst)
        if row != self.num_entries:
            raise InputError(f"{self.table.path} declares {self.num_entries} entries and holds {row}: fetch it again")

    def locate(self, row: int) -> str:
        """Say where an edge stands."""
        return f"{self.table.path}, edge {row}"

    def _check(self, src: npt.NDArray[np.int64], dst: npt.NDArray[np.int64], row: int) -> None:
        """Refuse an entry outside the matrix."""
        outside = np.flatnonzero((np.minimum(src, dst) < 0) | (np.maximum(src, dst) >= self.num_nodes))
        if len(outside):
            place, first = self.table.locate(row + int(outside[0])), outside[0]
            raise InputError(
                f"{place}: entry ({src[first] + 1}, {dst[first] + 1}) lies outside the matrix, whose indices are 1 to "
                f"{self.num_nodes}: correct the line"
            )

    def _refuse_weights(self, values: pl.Series, row: int) -> None:
        others = np.flatnonzero(values.fill_null(np.nan).to_numpy() != 1)
        if len(others):
            place = self.table.locate(row + int(others[0]))
            check_edge_data(f"weights ({values[int(others[0])]} at first)", place, "refuse")


def open_matrix_market(
    edges: Path,
    *,
    features: Path | None = None,
    labels: Path | None = None,
    edge_weights: EdgeWeights = "refuse",
) -> GraphSource:
    """Describe a graph whose adjacency matrix is in Matrix Market form.

    Each stored entry is an edge. Symmetric (skew-symmetric, Hermitian) files store one triangle; both directions are
    read.

    Parameters
    ----------
    edges : Path
        A square matrix in coordinate form: pattern, integer, real or complex.
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
    header = _read_header(require_file(edges))
    values = _VALUE_FIELDS[header.field]
    signed = "complex or signed weights" if values == 2 or header.symmetry.startswith("skew") else ""
    check_edge_data(signed, str(edges), edge_weights)
    dialect = find_dialect(edges, None, None, None, skip_bytes=header.data_start, skip_lines=header.lines_before)
    table = TextTable(edges, dialect)
    mirrored = header.symmetry != "general"
    weighted = values == 1 and edge_weights == "refuse"
    if header.num_entries and dialect.num_fields != 2 + values:
        raise InputError(
            f"{edges}, line {header.lines_before + 1}: {dialect.num_fields} fields where a {header.field} matrix has "
            f"{2 + values}: correct the header"
        )
    source = tabular_source(
        where=str(edges),
        reader=MatrixMarketEdges(table, header.num_nodes, header.num_entries, mirrored, weighted),
        approx_edges=header.num_entries * (1 + mirrored),
        features=features,
        labels=labels,
        num_nodes=header.num_nodes,
        notes={"entries": header.num_entries},
    )
    return replace(source, chunk_bytes=TEXT_READING_BYTES)


def _read_header(path: Path) -> _Header:
    with open_text(path) as file:
        field, symmetry = _parse_banner(path, file.readline())
        lines, start = 1, file.tell()
        while (line := file.readline()).startswith(b"%") or (line and not line.strip()):
            lines, start = lines + 1, file.tell()
        sizes = line.split()
        lines, start = lines + 1, file.tell()
    if len(sizes) != 3 or not all(size.isdigit() for size in sizes):
        raise InputError(
            f"{path}, line {lines}: {line.decode(errors='replace').strip()!r} is no line of rows, columns, entries"
        )
    rows, columns, entries = map(int, sizes)
    if rows != columns:
        raise InputError(
            f"{path} has {rows} rows and {columns} columns: an adjacency matrix is square (give both sides of a "
            "bipartite graph ids of one range)"
        )
    return _Header(field, symmetry, rows, entries, start, lines)


def _parse_banner(path: Path, line: bytes) -> tuple[str, str]:
    """Field and symmetry."""
    words = line.decode("utf-8", "replace").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise InputError(f"{path}, line 1: no Matrix Market file, which begins with '%%MatrixMarket matrix coordinate'")
    layout, field, symmetry = words[2:]
    if layout != "coordinate":
        raise InputError(f"{path} is a dense matrix ({layout}): an adjacency matrix is in coordinate form")
    if field not in _VALUE_FIELDS or symmetry not in _SYMMETRIES:
        raise InputError(f"{path}, line 1: {field} {symmetry} is no kind of matrix: correct the header")
    return field, symmetry


def _with_mirrored(src: npt.NDArray[np.int64], dst: npt.NDArray[np.int64]) -> EdgeChunk:
    """Each edge, and right after it its reverse; a self loop once."""
    both_src, both_dst = np.stack([src, dst], axis=1).ravel(), np.stack([dst, src], axis=1).ravel()
    once = np.ones(2 * len(src), np.bool_)
    once[1::2] = src != dst
    return both_src[once], both_dst[once]
