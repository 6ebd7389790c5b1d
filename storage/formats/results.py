"""Writes tables of results, one row a node: Parquet, CSV, or a bare `.npy`; they appear whole or not at all.

Rows come some at a time, so a table may be larger than memory.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from polars.io.plugins import register_io_source

from storage.atomic import publishing
from storage.errors import MachineError

Columns = Mapping[str, npt.NDArray[Any]]
"""Some rows of a table: columns of equal length, (n,) or (n, D)."""
PART_BYTES = 1 << 20
"""What one piece of rows should take."""
_GROUP_BYTES = 4 << 20
_WRITING_BYTES = {".parquet": 40 << 20, ".csv": 10 << 20, ".npy": 4 << 20}  # measured


def writing_bytes(path: Path) -> int:
    """Bound the memory in which rows that come in pieces of a MiB become a file of that suffix."""
    return _WRITING_BYTES[path.suffix]


def write_table(path: Path, chunks: Iterable[Columns]) -> None:
    """Write rows as Parquet or, by the suffix, as CSV.

    Parameters
    ----------
    path : Path
    chunks : iterable of mappings
        At least one, which may have no rows. A two-dimensional column becomes one of fixed-size lists in Parquet, and
        e0, e1 and so on in CSV.

    Raises
    ------
    MachineError
        The disk is full, or the directory cannot be written to.
    """
    write = _write_csv if path.suffix == ".csv" else _write_parquet
    with _publishing(path) as partial:
        try:
            write(partial, iter(chunks))
        except pl.exceptions.PolarsError as error:  # which wraps the system's error and keeps only its text
            raise OSError(str(error)) from error


def write_npy(path: Path, shape: tuple[int, int], chunks: Iterable[npt.NDArray[np.float32]]) -> None:
    """Write one float32 array of which some rows come at a time.

    Raises
    ------
    MachineError
        The disk is full, or the directory cannot be written to.
    """
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": shape}
    with _publishing(path) as partial, partial.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks:
            # NumPy's own writer does not say that the disk is full.
            file.write(np.ascontiguousarray(chunk, np.float32).data)


def _write_csv(path: Path, chunks: Iterator[Columns]) -> None:
    with path.open("wb") as file:
        for number, chunk in enumerate(chunks):
            pl.DataFrame(_flat(chunk)).write_csv(file, include_header=not number)


def _flat(chunk: Columns) -> dict[str, npt.NDArray[Any]]:
    flat = {name: values for name, values in chunk.items() if values.ndim == 1}
    for values in chunk.values():
        if values.ndim == 2:
            flat |= {f"e{place}": values[:, place] for place in range(values.shape[1])}
    return flat


def _write_parquet(path: Path, chunks: Iterator[Columns]) -> None:
    first = _frame(next(chunks))
    failures: list[BaseException] = []

    def frames(*_: object) -> Iterator[pl.DataFrame]:
        try:
            yield from itertools.chain([first], map(_frame, chunks))
        except BaseException as failure:
            failures.append(failure)
            raise

    rows = max(1, _GROUP_BYTES // max(1, int(first.estimated_size()) // max(1, len(first))))
    source = register_io_source(frames, schema=first.schema)
    try:
        source.sink_parquet(path, row_group_size=rows, maintain_order=True)
    except pl.exceptions.PolarsError:
        if failures:  # what reading the rows raised, which Polars keeps the text of
            raise failures[0] from None
        raise


def _frame(chunk: Columns) -> pl.DataFrame:
    return pl.DataFrame(
        [
            pl.Series(name, values)
            if values.ndim == 1
            else pl.Series(name, values, pl.Array(pl.Float32, values.shape[1]))
            for name, values in chunk.items()
        ]
    )


@contextlib.contextmanager
def _publishing(path: Path) -> Iterator[Path]:
    try:
        with publishing(path) as partial:
            yield partial
    except OSError as error:
        raise MachineError(f"{path} cannot be written ({error}): choose another output") from error
