"""Columns of a delimited text file, parsed block by block; a line that breaks the rule is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from storage.errors import InputError
from storage.formats.files import is_gzip, line_blocks, open_text
from storage.formats.text_dialect import Dialect, lines_of
from storage.formats.text_faults import find_fault

_BLOCK_BYTES = 4 << 20
_GZIP_RATIO = 4
_IDS = (pl.Int64, pl.String)
_FAULTS = (pl.exceptions.PolarsError, OSError)  # bytes that look compressed are an OSError

ColumnKinds = Mapping[int, type[pl.DataType]]
"""Type of each field that is wanted: Int64 (ids), String (names), Float32 or Float64 (an empty field is null)."""


@dataclass(frozen=True)
class TextTable:
    """A delimited text file."""

    path: Path
    """The file, plain or gzip."""
    dialect: Dialect
    """How its lines are written."""

    def read(self, kinds: ColumnKinds) -> Iterator[pl.DataFrame]:
        """Parse some of the columns anew, in the order of `kinds`.

        Raises
        ------
        InputError
            A line has another number of fields, or a field is not of its kind; the message names the line.
        """
        lines_before = self.dialect.lines_before
        with open_text(self.path) as file:
            file.seek(self.dialect.data_start)
            for block in line_blocks(file, _BLOCK_BYTES):
                yield self._parse(block, lines_before, kinds)
                lines_before += block.count(b"\n")

    def locate(self, row: int) -> str:
        """Find the line of a row; reads the file up to it."""
        with open_text(self.path) as file:
            file.seek(self.dialect.data_start)
            for number, line in enumerate(file, self.dialect.lines_before + 1):
                row -= not self.dialect.is_skipped(line)
                if row < 0:
                    return f"{self.path}, line {number}"
        return f"{self.path}, after its last line"

    @property
    def approx_rows(self) -> int:
        """About how many rows there are."""
        ratio = _GZIP_RATIO if is_gzip(self.path) else 1
        return int(self.path.stat().st_size * ratio / self.dialect.bytes_per_line) + 1

    def _parse(self, block: bytes, lines_before: int, kinds: ColumnKinds) -> pl.DataFrame:
        """Parse whole lines; where polars stumbles, or finds a field missing, look for the line at fault."""
        if b"\0" in block:
            line = lines_before + block.count(b"\n", 0, block.index(b"\0")) + 1
            raise InputError(f"{self.path}, line {line}: a zero byte, which no text holds: write the file anew")
        try:
            columns = self._read_columns(block, kinds)
        except _FAULTS:
            columns = None
        if columns is None or any(column.null_count() for column in columns):
            fault = find_fault(block, self.dialect, kinds)
            if fault is not None:
                raise InputError(f"{self.path}, line {lines_before + fault.line}: {fault.problem}")
            # No line is at fault: there are blank ones, or blanks around the fields.
            columns = self._read_stripped(block, kinds, lines_before)
        return columns

    def _read_stripped(self, block: bytes, kinds: ColumnKinds, lines_before: int) -> pl.DataFrame:
        """Parse what no single line makes wrong; a quote that spans lines is found only here."""
        columns, reason = None, "an id is missing"
        try:
            texts = self._read_columns(self.dialect.data_lines(block), dict.fromkeys(kinds, pl.String))
            columns = texts.cast({str(place): kind for place, kind in kinds.items()})
        except _FAULTS as error:
            reason = str(error).partition("\n")[0]
        ids = [str(place) for place, kind in kinds.items() if kind in _IDS]
        if columns is None or any(columns[name].null_count() for name in ids):
            where = f"{self.path}, lines {lines_before + 1} to {lines_before + len(lines_of(block))}"
            raise InputError(f"{where}: no table ({reason}): look for stray quotes")
        return columns

    def _read_columns(self, block: bytes, kinds: ColumnKinds) -> pl.DataFrame:
        frame = pl.read_csv(
            self.dialect.squeezed(block),
            has_header=False,
            separator=self.dialect.delimiter,
            comment_prefix=self.dialect.comment,
            quote_char=self.dialect.quote,
            schema={str(place): kinds.get(place, pl.String) for place in range(self.dialect.num_fields)},
            raise_if_empty=False,
        )
        texts = pl.col(pl.String).str.strip_chars().replace("", None)
        return frame.select(str(place) for place in kinds).with_columns(texts)
