"""Parquet edge lists, read in batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from storage.errors import InputError
from storage.formats.base import CHUNK_EDGES, PARQUET_READING_BYTES, EdgeChunk, GraphSource
from storage.formats.edge_data import EdgeWeights, check_edge_data
from storage.formats.files import require_file
from storage.formats.keyed_source import graph_with_tables
from storage.formats.tables import PARQUET_FAULTS, guard_parquet, table_bytes

_CHUNK_NAMES = 1 << 16  # which take eight times the bytes of a number, with all that is made of them


@dataclass(frozen=True)
class ParquetEdges:
    """Edges of a Parquet file, read batch by batch."""

    path: Path
    """The file."""
    source: str
    """Column of sources."""
    target: str
    """Column of targets."""
    names: bool
    """Whether ids are strings."""

    def chunks(self) -> Iterator[EdgeChunk]:
        """Read integer edges anew."""
        for src, dst in self.read_series():
            yield src.to_numpy(), dst.to_numpy()

    def read_series(self) -> Iterator[tuple[pl.Series, pl.Series]]:
        """Read both columns anew: int64, or strings where the ids are names."""
        kind = pl.String if self.names else pl.Int64
        frame = pl.scan_parquet(self.path, glob=False).select(pl.col(self.source, self.target).cast(kind))
        row, rows = 0, _CHUNK_NAMES if self.names else CHUNK_EDGES
        try:
            # Slices rather than batches: they stay small where one row group holds the whole file.
            while (batch := frame.slice(row, rows).collect()).height:
                self._refuse_nulls(batch, row)
                row += batch.height
                yield batch.to_series(0), batch.to_series(1)
        except PARQUET_FAULTS as error:
            reason = str(error).partition("\n")[0]
            raise InputError(f"{self.path} cannot be read after row {row} ({reason}): write it anew") from error

    def locate(self, row: int) -> str:
        """Say where an edge stands."""
        return f"{self.path}, row {row}"

    def _refuse_nulls(self, batch: pl.DataFrame, row: int) -> None:
        for column in batch:
            if column.null_count():
                place = int(column.is_null().arg_max() or 0)
                raise InputError(
                    f"{self.path}, row {row + place}: column {column.name!r} is null: give every edge two ids"
                )


def open_parquet(
    edges: Path,
    *,
    features: Path | None = None,
    labels: Path | None = None,
    num_nodes: int | None = None,
    id_column: str | None = None,
    source_column: str | None = None,
    target_column: str | None = None,
    edge_weights: EdgeWeights = "refuse",
) -> GraphSource:
    """Describe a graph whose edges are rows of a Parquet file.

    Ids, features and labels are as for `open_edge_list`.

    Parameters
    ----------
    edges : Path
        Parquet file with a column of sources and one of targets, integers or strings.
    features, labels : Path
    num_nodes : int
    id_column : str
    source_column, target_column : str
        Default: the first and the second column.
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
    frame = pl.scan_parquet(require_file(edges), glob=False)
    schema = guard_parquet(edges, frame.collect_schema)
    columns = [_column(edges, schema, name, place) for place, name in enumerate((source_column, target_column))]
    if columns[0] == columns[1]:
        raise InputError(f"{edges}: source and target are the same column: set source_column and target_column")
    kinds = [schema[column] for column in columns]
    names = all(kind == pl.String or isinstance(kind, pl.Categorical | pl.Enum) for kind in kinds)
    if not names and not all(kind.is_integer() for kind in kinds):
        raise InputError(f"{edges}: columns {columns} hold {kinds[0]} and {kinds[1]}: ids are integers or strings")
    further = [name for name in schema.names() if name not in columns]
    check_edge_data(f"further columns ({', '.join(further)})" if further else "", str(edges), edge_weights)
    reader = ParquetEdges(edges, columns[0], columns[1], names)
    source = graph_with_tables(
        where=str(edges),
        reader=reader,
        names=reader if names else None,
        approx_edges=guard_parquet(edges, lambda: int(frame.select(pl.len()).collect().item())),
        features=features,
        labels=labels,
        num_nodes=num_nodes,
        id_column=id_column,
        notes={"ignored_columns": len(further)},
    )
    return replace(source, chunk_bytes=max(PARQUET_READING_BYTES, table_bytes(features), table_bytes(labels)))


def _column(path: Path, schema: pl.Schema, name: str | None, place: int) -> str:
    """Name of a column given by name or place."""
    columns = schema.names()
    if name is None and place >= len(columns):
        raise InputError(f"{path} has one column: an edge needs two")
    column = columns[place] if name is None else name
    if column not in columns:
        raise InputError(f"{path} has no column {column!r}: it has {', '.join(columns)}")
    return column
