"""What an input file holds, from its header, or from one pass over its edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from storage.formats.array_files import ArrayFile, member_names
from storage.formats.base import EdgeReader
from storage.formats.edge_list import TextEdges
from storage.formats.files import require_file
from storage.formats.matrix_market import open_matrix_market
from storage.formats.names import SeriesReader
from storage.formats.parquet import ParquetEdges
from storage.formats.tables import guard_parquet
from storage.formats.text_dialect import find_dialect

Facts = dict[str, Any]
_DELIMITER_NAMES = {"\t": "tab", " ": "blanks"}


def summarize_input(path: Path) -> Facts:
    """Describe an input file: what it is, its columns or shape, how many rows; of text, the range of its ids.

    Raises
    ------
    InputError
        The file is missing or damaged.
    """
    require_file(path)
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".npy"):
        return {"kind": "NumPy array", **_array(ArrayFile.open(path))}
    if name.endswith(".npz"):
        arrays = {member: _array(ArrayFile.open(path, member)) for member in member_names(path)}
        return {"kind": "NumPy arrays", "arrays": arrays}
    if name.endswith((".parquet", ".pq")):
        return {"kind": "Parquet table", **_parquet(path)}
    if name.endswith(".mtx"):
        source = open_matrix_market(path, edge_weights="drop")
        return {"kind": "Matrix Market matrix", "num_nodes": source.num_nodes, "entries": source.approx_edges}
    return {"kind": "delimited text, read as edges", **_text(path)}


def _array(array: ArrayFile) -> Facts:
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data_bytes": array.nbytes}


def _parquet(path: Path) -> Facts:
    frame = pl.scan_parquet(path, glob=False)
    schema = guard_parquet(path, frame.collect_schema)
    rows = guard_parquet(path, lambda: int(frame.select(pl.len()).collect().item()))
    facts: Facts = {"rows": rows, "columns": {name: str(kind) for name, kind in schema.items()}}
    ends = list(schema.items())[:2]
    if len(ends) < 2 or not all(kind.is_integer() for _, kind in ends):
        return facts
    (source, _), (target, _) = ends
    return facts | {"read_as_edges": _integer_edges(ParquetEdges(path, source, target, names=False))}


def _text(path: Path) -> Facts:
    dialect = find_dialect(path, None, None, None)
    edges = TextEdges(path, dialect)
    facts: Facts = {
        "delimiter": _DELIMITER_NAMES.get(dialect.delimiter, dialect.delimiter),
        "columns": dialect.num_fields,
        "lines_before_data": dialect.lines_before,
        "ids": "strings" if dialect.names else "integers",
    }
    found = {"rows": _count_rows(edges)} if dialect.names else _integer_edges(edges)
    return facts | found if found["rows"] else {"rows": 0, "note": "holds no edges"}


def _count_rows(edges: SeriesReader) -> int:
    return sum(len(src) for src, _ in edges.read_series())


def _integer_edges(edges: EdgeReader) -> Facts:
    rows, ends = 0, []
    for src, dst in edges.chunks():
        rows += len(src)
        if len(src):
            ends += [int(src.min()), int(dst.min()), int(src.max()), int(dst.max())]
            ends = [min(ends), max(ends)]
    return {"rows": rows, "smallest_id": ends[0] if ends else None, "largest_id": ends[-1] if ends else None}
