"""Small HDF5 files of named arrays with a kind, a format version and a CRC-32 for each array."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Self

import h5py
import numpy as np
import numpy.typing as npt

from storage.errors import ChecksumMismatchError, FormatVersionError, StorageError
from storage.hdf5_checks import check_stored

Array = npt.NDArray[Any]
Scalar = int | float


def write_arrays(
    path: Path, *, kind: str, version: int, arrays: Iterable[tuple[str, Array]], scalars: Mapping[str, Scalar]
) -> None:
    """Write `arrays` as datasets and `scalars` as attributes of a new file; an old file at `path` is replaced.

    An array is written before the next one is asked for.

    Parameters
    ----------
    path
        File to write; publishing it atomically is the caller's part.
    kind, version
        What the file is and the version of its format; `read_arrays` asks for both.
    """
    with h5py.File(path, "w") as file:
        file.attrs["kind"], file.attrs["format_version"] = kind, version
        for name, scalar in scalars.items():
            file.attrs[name] = scalar
        for name, array in arrays:
            file.create_dataset(name, data=array).attrs["crc32"] = _crc32(array)
            del array  # the next one is made while this one would be held


def read_arrays(
    path: Path, *, kind: str, version: int, arrays: Iterable[str], scalars: Iterable[str]
) -> tuple[dict[str, Array], dict[str, Scalar]]:
    """Read what `write_arrays` wrote.

    Raises
    ------
    FileNotFoundError
        If there is no file at `path`.
    FormatVersionError
        If the file was written by another version of the format.
    ChecksumMismatchError
        If an array's bytes are not those that were written.
    StorageError
        If the file is not one of this kind, is cut short or lacks an array.
    """
    try:
        with h5py.File(path, "r") as file:
            _check_header(file, path, kind, version)
            return {name: _read_checked(file, name, path) for name in arrays}, {
                name: file.attrs[name].item() for name in scalars
            }
    except FileNotFoundError:
        raise
    except (KeyError, OSError, RuntimeError, AttributeError) as error:
        raise StorageError(f"{path}: not a readable {kind} ({error}); delete it and build it again") from error


class ArrayRecord:
    """Base of a frozen dataclass whose fields are arrays and numbers, and which is kept in one such file."""

    __slots__ = ()
    KIND: ClassVar[str]
    VERSION: ClassVar[int]

    @classmethod
    def _field_names(cls) -> tuple[list[str], list[str]]:
        """Names of the arrays and of the numbers."""
        scalars = [field.name for field in fields(cls) if field.type in ("int", "float")]  # type: ignore[arg-type]
        return [field.name for field in fields(cls) if field.name not in scalars], scalars  # type: ignore[arg-type]

    def save(self, path: Path) -> None:
        """Write all fields to a new HDF5 file."""
        arrays, scalars = ({name: getattr(self, name) for name in names} for names in self._field_names())
        write_arrays(path, kind=self.KIND, version=self.VERSION, arrays=arrays.items(), scalars=scalars)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises
        ------
        StorageError
            If the file is damaged, of another kind or of another format version.
        """
        arrays, scalars = cls._field_names()
        found = read_arrays(path, kind=cls.KIND, version=cls.VERSION, arrays=arrays, scalars=scalars)
        return cls(**found[0], **found[1])


def _check_header(file: h5py.File, path: Path, kind: str, version: int) -> None:
    if file.attrs.get("kind") != kind:
        raise StorageError(
            f"{path}: expected a file of kind {kind!r} (got {file.attrs.get('kind')!r}): "
            "give the path of a file that is one"
        )
    if (found := file.attrs.get("format_version")) != version:
        raise FormatVersionError(f"{path}: format version {found}, this program reads {version}; build it again")


def _read_checked(file: h5py.File, name: str, path: Path) -> Array:
    check_stored(path, file[name])
    array: Array = file[name][:]
    if _crc32(array) != file[name].attrs["crc32"]:
        raise ChecksumMismatchError(f"{path}: dataset {name!r} does not match its CRC-32; delete it and build it again")
    return array


def _crc32(array: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data)
