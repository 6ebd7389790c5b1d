"""Delimited edge lists: CSV, TSV, SNAP text with comments; plain or gzip; integer or string ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from storage.formats.base import TEXT_READING_BYTES, EdgeChunk, GraphSource
from storage.formats.edge_data import EdgeWeights, check_edge_data
from storage.formats.files import require_file
from storage.formats.keyed_source import graph_with_tables
from storage.formats.text_dialect import Dialect, find_dialect
from storage.formats.text_table import TextTable


@dataclass(frozen=True)
class TextEdges:
    """Edges of a text file, parsed block by block."""

    path: Path
    """The file, plain or gzip."""
    dialect: Dialect
    """How its lines are written."""

    def chunks(self) -> Iterator[EdgeChunk]:
        """Parse integer edges anew."""
        for src, dst in self.read_series():
            yield src.to_numpy(), dst.to_numpy()

    def read_series(self) -> Iterator[tuple[pl.Series, pl.Series]]:
        """Parse both columns anew: int64, or strings where the ids are names."""
        kind = pl.String if self.dialect.names else pl.Int64
        for columns in self._table.read({self.dialect.source: kind, self.dialect.target: kind}):
            yield columns.to_series(0), columns.to_series(1)

    def locate(self, row: int) -> str:
        """Find the line of an edge; reads the file up to it."""
        return self._table.locate(row)

    @property
    def approx_edges(self) -> int:
        """About how many edges there are."""
        return self._table.approx_rows

    @property
    def _table(self) -> TextTable:
        return TextTable(self.path, self.dialect)


def open_edge_list(
    edges: Path,
    *,
    features: Path | None = None,
    labels: Path | None = None,
    num_nodes: int | None = None,
    id_column: str | None = None,
    source_column: str | None = None,
    target_column: str | None = None,
    delimiter: str | None = None,
    edge_weights: EdgeWeights = "refuse",
) -> GraphSource:
    """Describe a graph given as delimited text.

    Integer ids with gaps become 0..N-1 in ascending order, string ids in the order of their UTF-8 bytes; with
    `num_nodes`, features or labels given, ids must be integers in [0, N); with `id_column`, they may be any.

    Parameters
    ----------
    edges : Path
        One edge a line (source, target); lines that start with `#` (or `%`, if the first one does) are comments.
    features : Path
        `.npy` (N, F) or Parquet, one row a node.
    labels : Path
        `.npy` (N,) or a one-column Parquet file; negative or NaN is unlabelled.
    num_nodes : int
    id_column : str
        Column of features and labels that holds ids as the edges have them: they are CSV, TSV or Parquet then, their
        rows come in any order, every node has a row of features, and one without a label is unlabelled.
    source_column, target_column : str
        Names in the header; default: the first and the second column.
    delimiter : str
        Default: found from the first lines.
    edge_weights : str
        `refuse` raises where there are further columns; `drop` leaves them out and counts them.

    Returns
    -------
    GraphSource

    Raises
    ------
    InputError
        A file is missing, or is not what it should be.
    """
    reader = TextEdges(require_file(edges), find_dialect(edges, delimiter, source_column, target_column))
    further = reader.dialect.num_fields - 2
    check_edge_data(_further_columns(reader.dialect), str(edges), edge_weights)
    source = graph_with_tables(
        where=str(edges),
        reader=reader,
        names=reader if reader.dialect.names else None,
        approx_edges=reader.approx_edges,
        features=features,
        labels=labels,
        num_nodes=num_nodes,
        id_column=id_column,
        notes={"ignored_columns": further},
    )
    return replace(source, chunk_bytes=TEXT_READING_BYTES)


def _further_columns(dialect: Dialect) -> str:
    """What stands beside source and target, by name where there is a header."""
    further = dialect.num_fields - 2
    names = [name for place, name in enumerate(dialect.columns) if place not in (dialect.source, dialect.target)]
    if names:
        return f"further columns ({', '.join(names)})"
    return f"{further} further column{'s' if further > 1 else ''}" if further else ""
