"""Delimited edge lists: CSV, TSV, SNAP text with comments; plain or gzip; integer or string ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from storage.errors import InputError
from storage.formats.base import EdgeChunk, GraphSource
from storage.formats.files import is_gzip, line_blocks, open_text, require_file
from storage.formats.tables import tabular_source
from storage.formats.text_dialect import Dialect, find_dialect, find_fault

_BLOCK_BYTES = 8 << 20
_GZIP_RATIO = 4


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
        lines_before = self.dialect.lines_before
        with open_text(self.path) as file:
            file.seek(self.dialect.data_start)
            for block in line_blocks(file, _BLOCK_BYTES):
                yield self._parse(block, lines_before)
                lines_before += block.count(b"\n")

    def locate(self, row: int) -> str:
        """Find the line of an edge; reads the file up to it."""
        with open_text(self.path) as file:
            file.seek(self.dialect.data_start)
            for number, line in enumerate(file, self.dialect.lines_before + 1):
                row -= not self.dialect.is_skipped(line)
                if row < 0:
                    return f"{self.path}, line {number}"
        raise IndexError("no such edge")

    @property
    def approx_edges(self) -> int:
        """About how many edges there are."""
        ratio = _GZIP_RATIO if is_gzip(self.path) else 1
        return int(self.path.stat().st_size * ratio / self.dialect.bytes_per_line) + 1

    def _parse(self, block: bytes, lines_before: int) -> tuple[pl.Series, pl.Series]:
        """Parse whole lines; where polars stumbles, or finds a field missing, look for the line at fault."""
        kind = pl.String if self.dialect.names else pl.Int64
        try:
            columns = self._read_columns(block, kind)
        except pl.exceptions.PolarsError:
            columns = None
        if columns is None or any(column.null_count() for column in columns):
            fault = find_fault(block, self.dialect)
            if fault is not None:
                raise InputError(f"{self.path}, line {lines_before + fault.line}: {fault.problem}")
            # No line is at fault: there are blank ones, or blanks around the ids.
            columns = self._read_columns(self.dialect.edge_lines(block), pl.String).cast(kind)
        return columns.to_series(0), columns.to_series(1)

    def _read_columns(self, block: bytes, kind: type[pl.DataType]) -> pl.DataFrame:
        dialect = self.dialect
        wanted = [dialect.source, dialect.target]
        frame = pl.read_csv(
            dialect.squeezed(block),
            has_header=False,
            separator=dialect.delimiter,
            comment_prefix=dialect.comment,
            schema={str(i): kind if i in wanted else pl.String for i in range(dialect.num_fields)},
            raise_if_empty=False,
        )
        columns = frame.select(str(i) for i in wanted)
        return columns.select(pl.all().str.strip_chars().replace("", None)) if kind == pl.String else columns


def open_edge_list(
    edges: Path,
    *,
    features: Path | None = None,
    labels: Path | None = None,
    num_nodes: int | None = None,
    source_column: str | None = None,
    target_column: str | None = None,
    delimiter: str | None = None,
) -> GraphSource:
    """Describe a graph given as delimited text.

    Integer ids with gaps become 0..N-1 in ascending order, string ids in the order of their UTF-8 bytes; with
    `num_nodes`, features or labels given, ids must be integers in [0, N). Further columns are ignored and counted.

    Parameters
    ----------
    edges : Path
        One edge a line (source, target); lines that start with `#` (or `%`, if the first one does) are comments.
    features : Path
        `.npy` (N, F) or Parquet, one row a node.
    labels : Path
        `.npy` (N,) or a one-column Parquet file; negative or NaN is unlabelled.
    num_nodes : int
    source_column, target_column : str
        Names in the header; default: the first and the second column.
    delimiter : str
        Default: found from the first lines.

    Returns
    -------
    GraphSource

    Raises
    ------
    InputError
        A file is missing, or is not what it should be.
    """
    reader = TextEdges(require_file(edges), find_dialect(edges, delimiter, source_column, target_column))
    return tabular_source(
        where=str(edges),
        reader=reader,
        names=reader.dialect.names,
        approx_edges=reader.approx_edges,
        features=features,
        labels=labels,
        num_nodes=num_nodes,
        notes={"ignored_columns": reader.dialect.num_fields - 2},
    )
