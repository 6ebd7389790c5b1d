"""What goes with an edge file: feature and label tables (`.npy` or Parquet), and the graph they make together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt
import polars as pl

from storage.errors import InputError
from storage.formats.array_files import ArrayFile, array_features
from storage.formats.base import (
    PARQUET_READING_BYTES,
    READING_BYTES,
    TEXT_READING_BYTES,
    EdgeReader,
    FeatureTable,
    GraphSource,
    LabelColumn,
    rows_per_chunk,
)
from storage.formats.files import require_file
from storage.formats.labels import array_label_bytes, array_labels, to_labels
from storage.formats.names import SeriesReader, number_names

T = TypeVar("T")
_COLUMNS = 16
PARQUET_FAULTS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""What polars raises over a file that is damaged."""


_TEXT_SUFFIXES = {".csv", ".tsv", ".txt"}


def tabular_source(
    *,
    where: str,
    reader: EdgeReader,
    approx_edges: int,
    names: SeriesReader | None = None,
    features: Path | None,
    labels: Path | None,
    num_nodes: int | None,
    notes: Mapping[str, int],
) -> GraphSource:
    """Join an edge file with its tables; their rows fix the number of nodes where `num_nodes` does not.

    `names` reads the ids where they are strings.
    """
    feature_table = None if features is None else open_features(features)
    label_column = None if labels is None else read_labels(labels)
    if num_nodes is None:
        check_lengths(features, labels)
    if num_nodes is None and feature_table is not None:
        num_nodes = feature_table.num_rows
    if num_nodes is None and label_column is not None:
        num_nodes = len(label_column.labels_N)
    if names is not None and num_nodes is not None:
        raise InputError(
            f"{where} has string ids, which are no row numbers of features, labels or num_nodes: give features and "
            "labels as CSV or Parquet with a column of these ids, and name it with --id-column (data.id_column)"
        )
    return GraphSource(
        where=where,
        edges=reader,
        approx_edges=approx_edges,
        num_nodes=num_nodes,
        number_nodes=partial(number_names, names) if names is not None else None,
        features=feature_table,
        labels=label_column,
        notes={name: count for name, count in notes.items() if count},
        chunk_bytes=max(READING_BYTES, table_bytes(features)),
    )


def table_bytes(path: Path | None) -> int:
    """Memory of the chunks of a table while they are read."""
    if path is None or path.suffix == ".npy":
        return 0
    is_text = {suffix.lower() for suffix in path.suffixes[-2:]} & _TEXT_SUFFIXES
    return TEXT_READING_BYTES if is_text else PARQUET_READING_BYTES


def check_lengths(features: Path | None, labels: Path | None) -> None:
    """Compare the rows that the headers of features and labels declare.

    Raises
    ------
    InputError
        A file is missing or damaged, or they differ.
    """
    rows = [None if path is None else _declared_rows(path) for path in (features, labels)]
    if None not in rows and rows[0] != rows[1]:
        raise InputError(f"{features} has {rows[0]:,} rows, {labels} {rows[1]:,}: they must agree, one row a node")


def _declared_rows(path: Path) -> int:
    require_file(path)
    _refuse_text(path)
    if path.suffix == ".npy":
        shape = ArrayFile.open(path).shape
        return shape[0] if shape else 0
    return guard_parquet(path, lambda: int(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item()))


def open_features(path: Path) -> FeatureTable:
    """Describe a feature file; its rows are read when they are asked for.

    Raises
    ------
    InputError
        The file is missing or damaged, or holds no numeric table.
    """
    require_file(path)
    _refuse_text(path)
    return array_features(ArrayFile.open(path)) if path.suffix == ".npy" else _parquet_features(path)


def read_labels(path: Path) -> LabelColumn:
    """Read a label file.

    Raises
    ------
    InputError
        The file is missing or damaged, or its values are no labels.
    """
    require_file(path)
    _refuse_text(path)
    if path.suffix == ".npy":
        return array_labels(ArrayFile.open(path))
    frame = guard_parquet(path, lambda: pl.read_parquet(path, glob=False))
    if frame.width != 1:
        raise InputError(f"{path} has {frame.width} columns ({', '.join(frame.columns)}): give one column of labels")
    column = frame.to_series()
    if column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Object):
        raise InputError(f"{path}: column {column.name!r} holds {column.dtype}: give integers or strings")
    if column.dtype == pl.String or isinstance(column.dtype, pl.Categorical | pl.Enum):
        return to_labels(column.cast(pl.String).to_numpy(), str(path))
    return to_labels(column.to_numpy(), str(path))


def label_reading_bytes(path: Path) -> int:
    """Memory that `read_labels` takes of an array of classes; of another file its size, the least that it takes.

    Raises
    ------
    InputError
        The file is missing or damaged.
    """
    if path.suffix != ".npy":
        return require_file(path).stat().st_size
    return array_label_bytes(ArrayFile.open(path))


def _refuse_text(path: Path) -> None:
    if {suffix.lower() for suffix in path.suffixes[-2:]} & _TEXT_SUFFIXES:
        raise InputError(
            f"{path} is a text table, whose rows go by an id column: name it with --id-column (data.id_column), or "
            "give .npy or Parquet, one row a node"
        )


def _parquet_features(path: Path) -> FeatureTable:
    frame = pl.scan_parquet(path, glob=False)
    schema = guard_parquet(path, frame.collect_schema)
    for name, kind in schema.items():
        if not (kind.is_numeric() or kind == pl.Boolean):
            raise InputError(f"{path}: column {name!r} holds {kind}, which is no number: drop it or convert it")
    num_rows = guard_parquet(path, lambda: int(frame.select(pl.len()).collect().item()))
    dtype = frame.head(0).collect().to_numpy().dtype
    rows = rows_per_chunk(len(schema) * dtype.itemsize)

    def chunks() -> Iterator[npt.NDArray[Any]]:
        for batch in parquet_slices(path, frame, rows):
            # Nulls become NaN, which only a floating type holds.
            yield batch.to_numpy() if batch.to_numpy().dtype == dtype else batch.cast(pl.Float64).to_numpy()

    return FeatureTable(num_rows, len(schema), dtype, chunks, str(path))


def parquet_slices(path: Path, frame: pl.LazyFrame, rows: int) -> Iterator[pl.DataFrame]:
    """Read so many rows of a Parquet file at a time.

    Slices rather than batches, and some of the columns at a time: what is unpacked of a row group stays small where one
    holds the whole file, or where columns are many.
    """
    row = 0
    with _reading_parquet(path):
        names = frame.collect_schema().names()
        groups = [names[first : first + _COLUMNS] for first in range(0, len(names), _COLUMNS)]
        while (slice_ := frame.select(groups[0]).slice(row, rows).collect()).height:
            others = [frame.select(group).slice(row, rows).collect() for group in groups[1:]]
            row += slice_.height
            yield pl.concat([slice_, *others], how="horizontal") if others else slice_


def guard_parquet(path: Path, read: Callable[[], T]) -> T:
    """Run a read; what polars raises becomes an `InputError`."""
    with _reading_parquet(path):
        return read()


@contextlib.contextmanager
def _reading_parquet(path: Path) -> Iterator[None]:
    """Turn what polars raises, be it in panic, into an `InputError`."""
    try:
        yield
    except PARQUET_FAULTS as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path} is no readable Parquet file ({reason}): write it anew") from error
