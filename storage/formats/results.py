"""Writes tables of results, one row a node: Parquet, CSV, or a bare `.npy`; they appear whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from storage.atomic import publishing
from storage.errors import MachineError


def write_parquet(path: Path, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write columns of equal length; a two-dimensional one becomes a column of fixed-size lists.

    Parameters
    ----------
    path : Path
    columns : mapping of names to (N,) or (N, D) arrays

    Raises
    ------
    MachineError
        The disk is full, or the directory cannot be written to.
    """
    series = [
        pl.Series(name, values) if values.ndim == 1 else pl.Series(name, values, pl.Array(pl.Float32, values.shape[1]))
        for name, values in columns.items()
    ]
    with _publishing(path) as partial:
        try:
            pl.DataFrame(series).write_parquet(partial)
        except pl.exceptions.PolarsError as error:  # which wraps the system's error and keeps only its text
            raise OSError(str(error)) from error


def write_table(path: Path, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write columns as Parquet or, by the suffix, as CSV, where a two-dimensional one becomes e0, e1 and so on.

    Raises
    ------
    MachineError
        The disk is full, or the directory cannot be written to.
    """
    if path.suffix != ".csv":
        write_parquet(path, columns)
        return
    flat = {name: values for name, values in columns.items() if values.ndim == 1}
    for values in columns.values():
        if values.ndim == 2:
            flat |= {f"e{place}": values[:, place] for place in range(values.shape[1])}
    with _publishing(path) as partial:
        try:
            pl.DataFrame(flat).write_csv(partial)
        except pl.exceptions.PolarsError as error:
            raise OSError(str(error)) from error


def write_npy(path: Path, rows_ND: npt.NDArray[Any]) -> None:
    """Write one array.

    Raises
    ------
    MachineError
        The disk is full, or the directory cannot be written to.
    """
    with _publishing(path) as partial, partial.open("wb") as file:
        rows_ND = np.ascontiguousarray(rows_ND)
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(rows_ND))
        file.write(rows_ND.data)  # NumPy's own writer does not say that the disk is full


@contextlib.contextmanager
def _publishing(path: Path) -> Iterator[Path]:
    try:
        with publishing(path) as partial:
            yield partial
    except OSError as error:
        raise MachineError(f"{path} cannot be written ({error}): choose another output") from error
