"""Small HDF5 files: what was written comes back, and damage is named."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from storage.cache.files import read_arrays, write_arrays
from storage.errors import ChecksumMismatchError, FormatVersionError, StorageError

ARRAYS = {"ids": np.arange(5), "empty": np.empty(0, np.int64), "rates": np.array([0.5, 1.0])}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_arrays(tmp_path / "x.h5", kind="thing", version=3, arrays=ARRAYS.items(), scalars={"n": 7, "share": 0.25})
    return tmp_path / "x.h5"


def read(
    file: Path, *, kind: str = "thing", version: int = 3, names: tuple[str, ...] = tuple(ARRAYS)
) -> tuple[dict[str, Any], dict[str, Any]]:
    return read_arrays(file, kind=kind, version=version, arrays=names, scalars=("n", "share"))


def test_round_trip(file: Path) -> None:
    arrays, scalars = read(file)
    assert scalars == {"n": 7, "share": 0.25}
    assert type(scalars["n"]) is int
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def test_an_old_file_is_replaced(file: Path) -> None:
    write_arrays(
        file, kind="thing", version=3, arrays=(ARRAYS | {"ids": np.arange(2)}).items(), scalars={"n": 1, "share": 0.0}
    )
    assert len(read(file)[0]["ids"]) == 2


def test_a_missing_file_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.h5")


def test_another_kind(file: Path) -> None:
    with pytest.raises(
        StorageError,
        match=r"x\.h5: expected a file of kind 'other' \(got 'thing'\): give the path of a file that is one",
    ):
        read(file, kind="other")


def test_another_version(file: Path) -> None:
    with pytest.raises(FormatVersionError, match="format version 3, this program reads 4"):
        read(file, version=4)


def test_a_flipped_bit_names_the_dataset(file: Path) -> None:
    with h5py.File(file, "r+") as opened:
        opened["ids"][2] ^= 1
    with pytest.raises(ChecksumMismatchError, match="'ids' does not match"):
        read(file)


def test_a_missing_dataset(file: Path) -> None:
    with pytest.raises(StorageError, match="not a readable thing"):
        read(file, names=("ids", "more"))


@pytest.mark.parametrize("keep", [0, 100, 0.5, -1])
def test_a_file_cut_short(file: Path, keep: float) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: int(keep * len(data)) if 0 < keep < 1 else int(keep)])
    with pytest.raises(StorageError, match=r"x\.h5"):
        read(file)


def test_noise_is_no_file(file: Path) -> None:
    file.write_bytes(bytes(range(256)) * 20)
    with pytest.raises(StorageError, match="not a readable thing"):
        read(file)


def test_an_array_is_gone_before_the_next_one_is_made(tmp_path: Path) -> None:
    made: list[weakref.ref[object]] = []

    def arrays() -> Iterator[tuple[str, np.ndarray]]:
        for name in "abc":
            assert not any(before() is not None for before in made)
            array = np.arange(1000)
            made.append(weakref.ref(array))
            waiting = [array]
            del array
            yield name, waiting.pop()

    write_arrays(tmp_path / "x.h5", kind="thing", version=1, arrays=arrays(), scalars={})
    assert len(made) == 3
