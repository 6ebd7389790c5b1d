"""Feature and label tables whose rows name their node in an id column, in any order: CSV, TSV (gzip too), Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from storage.errors import InputError
from storage.formats.base import FeatureTable, LabelColumn, rows_per_chunk
from storage.formats.files import require_file
from storage.formats.labels import to_labels
from storage.formats.tables import guard_parquet, parquet_slices
from storage.formats.text_dialect import table_dialect
from storage.formats.text_table import TextTable
from storage.keyed_rows import mark_once

FindNodes = Callable[[pl.Series], Any]
"""Gives the node of each id, -1 for one that is none."""

_ARRAYS = (".npy", ".npz")
_LABEL_ROWS = 1 << 18


@dataclass(frozen=True)
class KeyedTable:
    """A table with an id column."""

    path: Path
    """The file."""
    id_column: str
    """Name of the column of ids."""
    columns: tuple[str, ...]
    """Names of the others."""
    approx_rows: int
    """About how many rows there are."""
    text: TextTable | None
    """Reads the file where it is text."""
    text_columns: tuple[str, ...]
    """All columns of a text file, in order."""
    names: bool
    """Whether the ids are strings, as those of the edges are."""

    @classmethod
    def open(cls, path: Path, id_column: str, *, names: bool) -> KeyedTable:
        """Read the names of the columns.

        Raises
        ------
        InputError
            The file is missing or no table, or has no such column or no other.
        """
        require_file(path)
        if path.suffix in _ARRAYS:
            raise InputError(
                f"{path} holds bare rows, which name no node: give CSV or Parquet with a column {id_column!r}, or no "
                "id column (--id-column, data.id_column)"
            )
        text, rows = None, 0
        if is_parquet(path):
            frame = pl.scan_parquet(path, glob=False)
            columns = tuple(guard_parquet(path, frame.collect_schema).names())
            rows = guard_parquet(path, lambda: int(frame.select(pl.len()).collect().item()))
        else:
            dialect, columns = table_dialect(path)
            text = TextTable(path, dialect)
            rows = text.approx_rows
        if id_column not in columns:
            raise InputError(f"{path} has no column {id_column!r}: it has {', '.join(columns)}")
        others = tuple(name for name in columns if name != id_column)
        if not others:
            raise InputError(f"{path} has the column {id_column!r} alone: give it further ones")
        return cls(path, id_column, others, rows, text, columns, names)

    def ids(self) -> Iterator[pl.Series]:
        """Read the ids anew: strings, or int64 none of which is negative."""
        return (ids for ids, _ in self.read((), pl.Float32, _LABEL_ROWS))

    def read(
        self, columns: tuple[str, ...], kind: type[pl.DataType] | None, rows: int
    ) -> Iterator[tuple[pl.Series, pl.DataFrame]]:
        """Read ids and some of the columns anew.

        Parameters
        ----------
        columns : tuple of str
        kind : polars type
            What the columns are to become; None: text stays text, and Parquet what it is.
        rows : int
            About how many rows at a time, where the format lets us choose.

        Raises
        ------
        InputError
            An id is missing or of the wrong kind, or a value is; the message names the line or the row.
        """
        row = 0
        for frame in self._text_frames(columns, kind) if self.text else self._parquet_frames(columns, kind, rows):
            yield self._checked(frame.to_series(0), row), frame.drop(self.id_column)
            row += frame.height

    def locate(self, row: int) -> str:
        """Say where a row stands."""
        return self.text.locate(row) if self.text else f"{self.path}, row {row}"

    def _text_frames(self, columns: tuple[str, ...], kind: type[pl.DataType] | None) -> Iterator[pl.DataFrame]:
        assert self.text is not None
        places = [self.text_columns.index(name) for name in (self.id_column, *columns)]
        # An empty text is a missing value of a category, but a missing id of a string.
        kinds: dict[int, type[pl.DataType]] = dict.fromkeys(places[1:], kind or pl.Categorical)
        kinds = {places[0]: pl.String} | kinds
        for frame in self.text.read(kinds):
            frame.columns = [self.id_column, *columns]
            yield frame

    def _parquet_frames(
        self, columns: tuple[str, ...], kind: type[pl.DataType] | None, rows: int
    ) -> Iterator[pl.DataFrame]:
        values = [pl.col(name) if kind is None else pl.col(name).cast(kind) for name in columns]
        frame = pl.scan_parquet(self.path, glob=False).select(pl.col(self.id_column), *values)
        yield from parquet_slices(self.path, frame, rows)

    def _checked(self, ids: pl.Series, first_row: int) -> pl.Series:
        """Ids of the kind that the edges' are."""
        is_text = ids.dtype == pl.String or isinstance(ids.dtype, pl.Categorical | pl.Enum)
        if not (is_text or ids.dtype.is_integer()):
            raise InputError(f"{self.path}: column {self.id_column!r} holds {ids.dtype}: ids are integers or strings")
        found = ids.cast(pl.String).str.strip_chars() if is_text or self.names else ids
        found = found if self.names else found.cast(pl.Int64, strict=False)
        wrong = found.is_null() if self.names else found.is_null() | (found < 0)
        if wrong.any():
            place = int(wrong.arg_max() or 0)
            what = "is missing" if ids[place] is None else f"{ids[place]!r} is none of the integers that edges name"
            raise InputError(f"{self.locate(first_row + place)}: the id {what}: correct column {self.id_column!r}")
        return found


def is_parquet(path: Path) -> bool:
    """Whether a table is Parquet, by its name."""
    return path.suffix.lower() in (".parquet", ".pq")


def keyed_features(table: KeyedTable) -> FeatureTable:
    """Describe features; which node a row belongs to is not known yet.

    Raises
    ------
    InputError
        A column holds no numbers.
    """
    if table.text is None:
        schema = guard_parquet(table.path, pl.scan_parquet(table.path, glob=False).collect_schema)
        for name in table.columns:
            if not (schema[name].is_numeric() or schema[name] == pl.Boolean):
                raise InputError(
                    f"{table.path}: column {name!r} holds {schema[name]}, which is no number: drop it or convert it"
                )

    def chunks() -> Iterator[npt.NDArray[Any]]:
        return (rows for _, rows in _feature_rows(table))

    return FeatureTable(table.approx_rows, len(table.columns), np.dtype(np.float32), chunks, str(table.path))


def feature_rows_of(table: KeyedTable, find: FindNodes) -> Iterator[tuple[Any, npt.NDArray[Any]]]:
    """Read nodes and their features anew."""
    return ((find(ids), rows) for ids, rows in _feature_rows(table))


def _feature_rows(table: KeyedTable) -> Iterator[tuple[pl.Series, npt.NDArray[np.float32]]]:
    rows = rows_per_chunk(4 * len(table.columns))
    for ids, frame in table.read(table.columns, pl.Float32, rows):
        yield ids, frame.to_numpy().astype(np.float32, copy=False)  # a null has become NaN


def check_label_table(table: KeyedTable) -> None:
    """Refuse a table of labels with more than one column of them.

    Raises
    ------
    InputError
        It has more.
    """
    if len(table.columns) > 1:
        raise InputError(
            f"{table.path} has {len(table.columns)} columns beside {table.id_column!r} ({', '.join(table.columns)}): "
            "give one column of labels"
        )


def read_keyed_labels(table: KeyedTable, find: FindNodes, num_nodes: int) -> LabelColumn:
    """Read labels; a node without a row has none, and rows of ids that are no node are counted.

    Memory: 5 bytes a node, and the distinct labels.

    Returns
    -------
    LabelColumn

    Raises
    ------
    InputError
        Values are no labels, a node has two rows, or no row is that of a node.
    """
    code_N = np.full(num_nodes, -1, np.int32)
    seen_N = np.zeros(num_nodes, np.bool_)
    codes: dict[Any, int] = {}
    first_rows: list[int] = []
    row = strangers = 0
    for ids, frame in table.read(table.columns, None, _LABEL_ROWS):
        nodes, values = np.asarray(find(ids)), _label_values(table, frame.to_series(0))
        known = nodes >= 0
        place = mark_once(seen_N, nodes[known])
        if place >= 0:
            at = int(np.flatnonzero(known)[place])
            raise InputError(f"{table.locate(row + at)}: {ids[at]!r} has a label already: give every node one")
        for at, value in _new_values(values, known, codes):
            codes[value] = len(codes)
            first_rows.append(row + at)
        code_N[nodes[known]] = values.replace_strict(codes, default=-1, return_dtype=pl.Int32).to_numpy()[known]
        strangers += int(len(nodes) - np.count_nonzero(known))
        row += len(nodes)
    if strangers == row:
        raise InputError(
            f"{table.path}: none of its {row:,} ids is that of a node: check the column {table.id_column!r}"
        )
    del seen_N
    return replace(_as_classes(table, code_N, list(codes), first_rows), of_no_node=strangers)


def _label_values(table: KeyedTable, column: pl.Series) -> pl.Series:
    if column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Object):
        raise InputError(f"{table.path}: column {column.name!r} holds {column.dtype}: give integers or strings")
    if column.dtype.is_float():
        return column.fill_nan(None)
    if column.dtype == pl.String or isinstance(column.dtype, pl.Categorical | pl.Enum):
        return column.cast(pl.String).str.strip_chars().replace("", None)
    return column


def _new_values(values: pl.Series, known: npt.NDArray[np.bool_], codes: dict[Any, int]) -> list[tuple[int, Any]]:
    """Labels of nodes that have not occurred yet, each with the position where it occurs first."""
    frame = pl.DataFrame({"value": values}).with_row_index("at").filter(known).drop_nulls()
    found = frame.unique("value", keep="first").sort("at").rows()
    return [(at, value) for at, value in found if value not in codes]


def _as_classes(
    table: KeyedTable, code_N: npt.NDArray[np.int32], values: list[Any], first_rows: list[int]
) -> LabelColumn:
    """Classes as in a file of bare labels: numbers where all are numbers, else strings; codes become them in place."""
    column = pl.Series("label", values)
    numbers = column.cast(pl.Float64, strict=False) if column.dtype == pl.String else column
    if column.dtype == pl.String and not numbers.has_nulls():
        whole = column.cast(pl.Int64, strict=False)
        column = numbers if whole.has_nulls() else whole
    raw = column.to_numpy() if len(column) else np.empty(0, np.int64)
    labels = to_labels(raw, str(table.path), lambda at: f"{table.locate(first_rows[at])}: the label")
    class_C = np.append(labels.labels_N, -1).astype(np.int32)  # the last stands for no label
    for start in range(0, len(code_N), _LABEL_ROWS):
        piece = code_N[start : start + _LABEL_ROWS]
        piece[:] = class_C[piece]
    return LabelColumn(code_N, labels.names)
