"""How a text table is written: found from its first lines."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from pathlib import Path

from storage.errors import InputError
from storage.formats.files import open_text

_SAMPLE_BYTES = 1 << 16
_SAMPLE_LINES = 200
_DELIMITERS = ("\t", ",", ";", "|", " ")
INTEGER = re.compile(r" *[+-]?[0-9]+ *")
"""An id that is a number."""
_HEADER_WORDS = frozenset(
    ("source", "target", "src", "dst", "from", "to", "fromnodeid", "tonodeid", "head", "tail", "u", "v", "id_1", "id_2")
)


@dataclass(frozen=True)
class Dialect:
    """The way the lines of a table are written."""

    comment: str | None
    """Lines that start with it are skipped, as are blank ones."""
    delimiter: str
    """Character between fields."""
    runs: bool
    """Whether any run of blanks and tabs counts as one delimiter."""
    num_fields: int
    """Fields a line."""
    source: int
    """Field that holds the source."""
    target: int
    """Field that holds the target."""
    names: bool
    """Whether ids are strings, as most of the first lines' are."""
    data_start: int
    """Byte (of the plain text) after the header."""
    lines_before: int
    """Lines before `data_start`."""
    bytes_per_line: float
    """Mean length of the lines sampled."""
    quote: str | None = '"'
    """Character that a field with delimiters in it stands between."""
    columns: tuple[str, ...] = ()
    """Names of the columns, where a header has them."""

    def is_skipped(self, line: bytes) -> bool:
        """Whether a line holds no row; a blank one is a missing value where there is one field."""
        is_blank = self.num_fields > 1 and not line.strip()
        return is_blank or (self.comment is not None and line.startswith(self.comment.encode()))

    def fields(self, line: bytes) -> list[str]:
        """Split a line."""
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        return _split(text, self.delimiter, self.runs, self.quote)

    def data_lines(self, block: bytes) -> bytes:
        """Leave out the lines that hold no row."""
        return b"\n".join(line for line in lines_of(block) if not self.is_skipped(line))

    def squeezed(self, block: bytes) -> bytes:
        """Rewrite runs of blanks as one, where the dialect has them."""
        return b"\n".join(b" ".join(line.split()) for line in lines_of(block)) if self.runs else block


def find_dialect(
    path: Path,
    delimiter: str | None,
    source_column: str | None,
    target_column: str | None,
    *,
    skip_bytes: int = 0,
    skip_lines: int = 0,
) -> Dialect:
    """Find out how a text edge list is written.

    A first line is taken as header where columns are named, where it is no pair of integers and the next line is one,
    or where it holds words such as `source` and `target`.

    Parameters
    ----------
    path : Path
    delimiter : str
        None: found.
    source_column, target_column : str
        Names in the header; None: the first and the second column.
    skip_bytes, skip_lines : int
        What the file holds before the edge list begins.

    Returns
    -------
    Dialect

    Raises
    ------
    InputError
        No delimiter fits, the lines have one field, or a named column is not there.
    """
    with open_text(path) as file:
        file.seek(skip_bytes)
        sample = file.read(_SAMPLE_BYTES)
    _check_text(path, sample)
    lines = sample.split(b"\n")
    if len(sample) == _SAMPLE_BYTES:
        lines.pop()
    comment = "%" if sample.startswith(b"%") else "#"
    data = [
        (number, line) for number, line in enumerate(lines) if line.strip() and not line.startswith(comment.encode())
    ]
    data = data[:_SAMPLE_LINES]
    texts = [line.decode("utf-8", "replace").rstrip("\r") for _, line in data]
    found, runs = _find_delimiter(path, texts, skip_lines + (data[0][0] + 1 if data else 1), delimiter)
    rows = [_split(text, found, runs) for text in texts]
    named = source_column is not None or target_column is not None
    header = rows[0] if rows and (named or _is_header(rows)) else None
    source = _column(path, header, source_column, 0)
    target = _column(path, header, target_column, 1)
    if source == target:
        raise InputError(f"{path}: source and target are the same column: set source_column and target_column")
    rows = rows[1:] if header else rows
    lines_before = data[0][0] + 1 if header else 0
    return Dialect(
        comment=comment,
        delimiter=found,
        runs=runs,
        num_fields=max(len(rows[0]) if rows else 2, source + 1, target + 1),
        source=source,
        target=target,
        names=_are_names([row[i] for row in rows for i in (source, target) if i < len(row)]),
        data_start=skip_bytes + sum(len(line) + 1 for line in lines[:lines_before]),
        lines_before=skip_lines + lines_before,
        bytes_per_line=sum(map(len, texts)) / max(1, len(texts)) + 1,
        columns=tuple(word.strip() for word in header or ()),
    )


def plain_dialect(path: Path, delimiter: str, *, num_fields: int | None = None, quote: str | None = None) -> Dialect:
    """Describe a table without header and comments.

    Parameters
    ----------
    path : Path
    delimiter : str
    num_fields : int
        Default: as many as the first line has.
    quote : str
        Character that a field with delimiters in it stands between.

    Returns
    -------
    Dialect
    """
    with open_text(path) as file:
        sample = file.read(_SAMPLE_BYTES)
    _check_text(path, sample)
    lines = sample.splitlines()[:_SAMPLE_LINES]
    first = lines[0].decode("utf-8", "replace") if lines else ""
    return Dialect(
        comment=None,
        delimiter=delimiter,
        runs=False,
        num_fields=num_fields or len(_split(first, delimiter, False, quote)),
        source=0,
        target=1,
        names=False,
        data_start=0,
        lines_before=0,
        bytes_per_line=sum(map(len, lines)) / max(1, len(lines)) + 1,
        quote=quote,
    )


def table_dialect(path: Path) -> tuple[Dialect, tuple[str, ...]]:
    """Find out how a table is written whose first line names its columns.

    Returns
    -------
    Dialect
    tuple of str
        Names of the columns.

    Raises
    ------
    InputError
        The first line holds one column, or names one twice.
    """
    with open_text(path) as file:
        sample = file.read(_SAMPLE_BYTES)
    _check_text(path, sample)
    lines = sample.splitlines(keepends=True)
    before = next((number for number, line in enumerate(lines) if line.strip()), 0)
    header = lines[before].decode("utf-8-sig", "replace").strip() if lines else ""
    delimiter = next((other for other in _DELIMITERS if len(_split(header, other, False)) > 1), None)
    if delimiter is None:
        raise InputError(
            f"{path}: the first line of a table names its columns, an id column and others, delimited by commas or "
            f"tabs (got {header[:60]!r})"
        )
    columns = tuple(word.strip() for word in _split(header, delimiter, False))
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: its first line names column {twice!r} twice: rename one")
    start, dialect = before + 1, plain_dialect(path, delimiter, num_fields=len(columns), quote='"')
    return replace(dialect, data_start=sum(map(len, lines[:start])), lines_before=start), columns


def _check_text(path: Path, sample: bytes) -> None:
    """Refuse what is no text of lines, by its first bytes."""
    if b"\0" in sample:
        raise InputError(f"{path} is no text, or not in UTF-8: give the format it has, or save it as UTF-8")
    if b"\n" not in sample and b"\r" in sample.rstrip(b"\r"):
        raise InputError(
            f"{path}: its lines end with carriage returns alone, as those of old Macs: write it with line feeds "
            "(tr '\\r' '\\n' < OLD > NEW)"
        )


def lines_of(block: bytes) -> list[bytes]:
    """Lines of a block, without their ends."""
    return block.removesuffix(b"\n").split(b"\n")


def _find_delimiter(path: Path, texts: list[str], first_line: int, given: str | None) -> tuple[str, bool]:
    """The delimiter, and whether runs of blanks count as one."""
    if not texts:
        return given or "\t", False
    for delimiter in (given,) if given else _DELIMITERS:
        rows = [_split(text, delimiter, False) for text in texts]
        if len(rows[0]) >= 2:
            ragged = delimiter in " \t" and any(field != field.strip() or not field for row in rows for field in row)
            runs = ragged and len({len(_split(text, " ", True)) for text in texts}) == 1
            return (" ", True) if runs else (delimiter, False)
    looks_like = next((other for other in _DELIMITERS if len(texts[0].split(other)) > 1), None)
    hint = f": it looks delimited by {looks_like!r}, leave delimiter empty" if given and looks_like else ""
    raise InputError(f"{path}, line {first_line}: one field where an edge has two{hint or ': set delimiter'}")


def _split(text: str, delimiter: str, runs: bool, quote: str | None = '"') -> list[str]:
    if runs:
        return text.split()
    if quote is None or quote not in text:
        return text.split(delimiter)
    try:
        return next(csv.reader([text], delimiter=delimiter), [""])
    except csv.Error:  # a carriage return within the line, say
        return text.split(delimiter)


def _is_edge(row: list[str], source: int, target: int) -> bool:
    """Whether a row's ids are integers; a row too short is left for the parser to report."""
    return len(row) <= max(source, target) or all(INTEGER.fullmatch(row[i]) for i in (source, target))


def _are_names(ids: list[str]) -> bool:
    """Whether ids are strings: most of them are no integers (a stray one among integers is left to be reported)."""
    return 2 * sum(not INTEGER.fullmatch(word) for word in ids) > len(ids)


def _is_header(rows: list[list[str]]) -> bool:
    words = [word.strip().lower() for word in rows[0][:2]]
    if all(word in _HEADER_WORDS for word in words):
        return True
    return len(rows) > 1 and not any(INTEGER.fullmatch(word) for word in words) and _is_edge(rows[1], 0, 1)


def _column(path: Path, header: list[str] | None, name: str | None, default: int) -> int:
    if name is None:
        return default
    columns = [word.strip() for word in header or []]
    if name not in columns:
        raise InputError(f"{path} has no column {name!r}; its first line reads {', '.join(columns)}")
    return columns.index(name)
