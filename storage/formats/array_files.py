"""NumPy arrays in `.npy` files and in members of `.npz` files: read in pieces, never mapped, never unpickled."""

from __future__ import annotations

import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from storage.errors import InputError
from storage.formats.base import CHUNK_EDGES, EdgeChunk, FeatureTable, rows_per_chunk
from storage.formats.files import require_file

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_HEADER_FAULTS = (SyntaxError, tokenize.TokenError)
_ZIP_FAULTS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


@dataclass(frozen=True)
class ArrayFile:
    """An array on disk, of which only the header was read."""

    path: Path
    """The `.npy` or `.npz` file."""
    member: str | None
    """Name of the array within an `.npz`."""
    shape: tuple[int, ...]
    """Shape."""
    dtype: np.dtype[Any]
    """Type of the elements: numbers, booleans or strings, never objects."""
    column_order: bool
    """Whether the first index varies fastest."""
    offset: int
    """First byte of the data, in the file or the member."""

    @classmethod
    def open(cls, path: Path, member: str | None = None) -> ArrayFile:
        """Read the header, and check that the file is as long as it says.

        Raises
        ------
        InputError
            The file or the member is missing or damaged, or holds Python objects.
        """
        with _open_bytes(require_file(path), member) as (file, size):
            version = np.lib.format.read_magic(file)
            if version not in _HEADERS:
                raise ValueError(f"version {version} of the format")
            shape, column_order, dtype = _read_header(file, version)
            if dtype.hasobject:
                raise ValueError("it holds pickled Python objects")
            array = cls(path, member, shape, dtype, column_order and len(shape) > 1, file.tell())
            if size < array.offset + array.nbytes:
                raise ValueError(
                    f"shape {shape} of {dtype} needs {array.nbytes} bytes, {size - array.offset} are there"
                )
        return array

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=object))

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return self.size * self.dtype.itemsize

    @property
    def where(self) -> str:
        """How error messages name the array."""
        return str(self.path) if self.member is None else f"{self.path}, array {self.member!r}"

    def load(self) -> npt.NDArray[Any]:
        """Read the whole array."""
        flat = np.empty(self.size, self.dtype)
        done = 0
        for chunk in self.flat_chunks(0, self.size, rows_per_chunk(self.dtype.itemsize)):
            flat[done : done + len(chunk)] = chunk
            done += len(chunk)
        return flat.reshape(self.shape, order="F" if self.column_order else "C")

    def flat_chunks(self, start: int, stop: int, step: int) -> Iterator[npt.NDArray[Any]]:
        """Read elements `start` to `stop` in the order they are stored, `step` at a time."""
        with _open_bytes(self.path, self.member) as (file, _):
            file.seek(self.offset + start * self.dtype.itemsize)
            for first in range(start, stop, step):
                count = min(step, stop - first)
                data = file.read(count * self.dtype.itemsize)
                if len(data) < count * self.dtype.itemsize:
                    raise EOFError("it ends early")
                yield np.frombuffer(data, self.dtype)

    def row_chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        """Read `rows` entries along the first axis at a time; an array in column order is read whole."""
        if self.column_order:
            whole = self.load()
            yield from (whole[first : first + rows] for first in range(0, len(whole), rows))
            return
        width = self.size // max(1, self.shape[0])
        for chunk in self.flat_chunks(0, self.size, max(1, rows * width)):
            yield chunk.reshape(-1, *self.shape[1:])


def member_names(path: Path) -> list[str]:
    """Names of the arrays in an `.npz` file.

    Raises
    ------
    InputError
        The file is missing or no zip file.
    """
    try:
        with zipfile.ZipFile(require_file(path)) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except _ZIP_FAULTS as error:
        raise InputError(f"{path} is no readable .npz file ({error}): write it with numpy.savez") from error


def array_features(array: ArrayFile) -> FeatureTable:
    """Describe an array as a feature table.

    Raises
    ------
    InputError
        It has not two dimensions.
    """
    if len(array.shape) != 2:
        raise InputError(f"{array.where} has shape {array.shape}: features need two dimensions, (nodes, features)")
    num_rows, dim = array.shape

    def chunks() -> Iterator[npt.NDArray[Any]]:
        if dim:
            yield from array.row_chunks(rows_per_chunk(dim * array.dtype.itemsize))
        else:
            yield np.empty((num_rows, 0), array.dtype)

    return FeatureTable(num_rows, dim, array.dtype, chunks, array.where)


@dataclass(frozen=True)
class PairEdges:
    """Edges in an array of shape (2, E), as OGB and PyG have them, or (E, 2), as IGB has them."""

    array: ArrayFile
    """The array."""
    edge_axis: int
    """Axis along which the edges lie."""

    @classmethod
    def of(cls, array: ArrayFile, *, likely_axis: int) -> PairEdges:
        """Find out along which axis the edges lie; a (2, 2) array has them along `likely_axis`.

        Raises
        ------
        InputError
            The array holds no pairs of integers.
        """
        if array.dtype.kind not in "iu":
            raise InputError(f"{array.where} holds {array.dtype}: the ids of edges are integers")
        if len(array.shape) != 2 or 2 not in array.shape:
            raise InputError(f"{array.where} has shape {array.shape}: edges need (2, edges) or (edges, 2)")
        return cls(array, likely_axis if array.shape == (2, 2) else int(array.shape[0] == 2))

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.array.shape[self.edge_axis]

    def chunks(self) -> Iterator[EdgeChunk]:
        """Read the edges anew."""
        # Two columns in row order have the same bytes as two rows in column order.
        yield from self._pairs() if (self.edge_axis == 0) != self.array.column_order else self._rows()

    def locate(self, row: int) -> str:
        """Say where an edge stands."""
        return f"{self.array.where}, edge {row}"

    def _pairs(self) -> Iterator[EdgeChunk]:
        for chunk in self.array.flat_chunks(0, self.array.size, 2 * CHUNK_EDGES):
            yield as_ids(chunk[::2]), as_ids(chunk[1::2])

    def _rows(self) -> Iterator[EdgeChunk]:
        num_edges = self.num_edges
        ends = (self.array.flat_chunks(side * num_edges, (side + 1) * num_edges, CHUNK_EDGES) for side in (0, 1))
        for src, dst in zip(*ends, strict=True):
            yield as_ids(src), as_ids(dst)


def as_ids(ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Ids as contiguous int64 (those beyond become negative, and so out of range)."""
    return np.ascontiguousarray(ids, np.int64)


def _read_header(file: BinaryIO, version: tuple[int, int]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in column order, type; NumPy lets pass what Python's tokenizer raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # one written by Python 2 is as good
            shape, column_order, dtype = _HEADERS[version](file)
    except _HEADER_FAULTS as error:
        raise ValueError(f"its header is damaged: {error}") from error
    return shape, column_order, dtype


@contextmanager
def _open_bytes(path: Path, member: str | None) -> Iterator[tuple[BinaryIO, int]]:
    """The bytes of a file or of a member of a zip file, and how many they are; what goes wrong is an `InputError`."""
    try:
        if member is None:
            with path.open("rb") as file:
                yield file, path.stat().st_size
        else:
            with zipfile.ZipFile(path) as archive, archive.open(f"{member}.npy") as part:
                yield cast(BinaryIO, part), archive.getinfo(f"{member}.npy").file_size
    except InputError:
        raise
    except KeyError as error:
        raise InputError(f"{path} holds no array {member!r}: it holds {', '.join(member_names(path))}") from error
    except _ZIP_FAULTS as error:
        kind = "npy file" if member is None else f"npz file (array {member!r})"
        raise InputError(f"{path} is no readable .{kind} ({error}): write it with numpy.save or numpy.savez") from error
