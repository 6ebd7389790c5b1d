"""The search for the line of a text table that breaks the rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from storage.formats.text_dialect import INTEGER, Dialect, lines_of


@dataclass(frozen=True)
class Fault:
    """The first line of a block that cannot be a row."""

    line: int
    """Its number within the block, from 1."""
    problem: str
    """What is wrong, and what to do."""


def find_fault(block: bytes, dialect: Dialect, kinds: Mapping[int, type[pl.DataType]]) -> Fault | None:
    """Look for the first line of a block that does not hold what `kinds` says of its fields; None where each does."""
    for number, line in enumerate(lines_of(block), 1):
        if dialect.is_skipped(line):
            continue
        if not _is_utf8(line):
            return Fault(number, f"{line[:40]!r} is not in UTF-8: save the file as UTF-8")
        fields = dialect.fields(line)
        if len(fields) != dialect.num_fields:
            problem = f"{len(fields)} fields where {dialect.num_fields} are expected (delimiter {dialect.delimiter!r})"
            return Fault(number, f"{problem}: correct the line, or set delimiter")
        for place, kind in kinds.items():
            problem_or_none = _field_problem(fields[place].strip(), kind)
            if problem_or_none:
                return Fault(number, problem_or_none)
    return None


def _field_problem(field: str, kind: type[pl.DataType]) -> str | None:
    if not field:
        return "an id is empty: correct the line" if kind in (pl.Int64, pl.String) else None
    if kind == pl.Int64 and not INTEGER.fullmatch(field):
        return f"{field!r} is no integer, but most ids of the first lines are: correct the line"
    if kind == pl.Int64 and not -(2**63) <= int(field) < 2**63:
        return f"id {field} does not fit 64 bits: correct the line"
    if kind in (pl.Float32, pl.Float64) and not _is_number(field):
        return f"{field!r} is no number: correct the line"
    return None


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
