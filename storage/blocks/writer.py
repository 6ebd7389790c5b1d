"""Writes a store file: contiguous, block-aligned HDF5 datasets with a CRC-32 a block, published by one rename."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from storage.atomic import publishing
from storage.blocks.extent import num_blocks
from storage.progress import OpenProgress

CRC_GROUP = "blocks/crc32"
"""HDF5 group that holds each dataset's checksums, under the dataset's own name."""
_WRITE_BYTES = 8 << 20


@dataclass(frozen=True)
class ArrayStream:
    """An array too large to hold, as its consecutive pieces along the first axis."""

    shape: tuple[int, ...]
    """Shape of the whole."""
    dtype: np.dtype[Any]
    """Type of its elements."""
    chunks: Iterable[npt.NDArray[Any]]
    """The pieces in order; each is good until the next, which may lie in the same memory."""

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> ArrayStream:
        """Pieces of an array in memory."""
        rows = max(1, _WRITE_BYTES * len(array) // max(1, array.nbytes))
        return cls(array.shape, array.dtype, (array[i : i + rows] for i in range(0, len(array), rows)))


def as_stream(data: ArrayStream | npt.NDArray[Any], dtype: npt.DTypeLike | None = None) -> ArrayStream:
    """Stream an array, or what is a stream already; in another type where one is given."""
    stream = ArrayStream.of(data) if isinstance(data, np.ndarray) else data
    if dtype is None or stream.dtype == dtype:
        return stream
    chunks = (chunk.astype(dtype) for chunk in stream.chunks)
    return ArrayStream(stream.shape, np.dtype(dtype), chunks)


def watched(stream: ArrayStream, progress: OpenProgress, description: str) -> ArrayStream:
    """Show how far a stream is while it is read."""

    def chunks() -> Iterator[npt.NDArray[Any]]:
        done = 0
        with progress(description, "rows") as advance:
            for chunk in stream.chunks:
                yield chunk
                done += len(chunk)
                advance(done, stream.shape[0])

    return ArrayStream(stream.shape, stream.dtype, chunks())


class BlockWriter:
    """Context manager that writes a store file beside `path` and renames it there when all went well.

    Parameters
    ----------
    path : Path
    block_bytes : int
        Unit of storage I/O: datasets of that size and more start at a multiple of it.

    Raises
    ------
    DiskFullError
        The disk is full. Nothing is left behind, and a file that was at `path` stays as it was.
    """

    def __init__(self, path: Path, *, block_bytes: int) -> None:
        self._publishing = publishing(path)
        self._block_bytes = block_bytes
        self._file: h5py.File | None = None

    def __enter__(self) -> BlockWriter:
        # The 1.8 layout carries checksums of the metadata too, and every HDF5 tool of today reads it.
        self._file = h5py.File(
            self._publishing.__enter__(),
            "w",
            libver=("v108", "v110"),
            alignment_threshold=self._block_bytes,
            alignment_interval=self._block_bytes,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        closing_error: Exception | None = None
        try:
            self._hdf5.close()
        except (OSError, RuntimeError) as failure:  # where the disk is full, HDF5 says so again when it closes
            closing_error = failure if error is None else None
        if closing_error is None:
            self._publishing.__exit__(kind, error, trace)
        else:
            self._publishing.__exit__(type(closing_error), closing_error, closing_error.__traceback__)
            raise closing_error

    @property
    def _hdf5(self) -> h5py.File:
        assert self._file is not None, "used outside its context"
        return self._file

    @property
    def attrs(self) -> h5py.AttributeManager:
        """Attributes of the file."""
        return self._hdf5.attrs

    def write(self, name: str, data: ArrayStream | npt.NDArray[Any]) -> None:
        """Write a contiguous dataset and its checksums.

        Parameters
        ----------
        name : str
            Path of the dataset in the file.
        data : ArrayStream or array
        """
        stream = as_stream(data)
        dataset = self._create(name, shape=stream.shape, dtype=stream.dtype, fill_time="never")
        crc_B = np.zeros(num_blocks(dataset.nbytes, self._block_bytes), np.uint32)
        checksum = _BlockChecksum(crc_B, self._block_bytes)
        row = 0
        for piece in stream.chunks:
            chunk = np.ascontiguousarray(piece, stream.dtype)
            if len(chunk):
                dataset[row : row + len(chunk)] = chunk
                checksum.update(chunk)
            row += len(chunk)
        assert row == stream.shape[0], f"{name} got {row} rows of {stream.shape[0]}"
        self._create(f"{CRC_GROUP}/{name}", data=crc_B)

    def write_names(self, name: str, names: Iterable[str]) -> None:
        """Write a short list of strings."""
        self._create(name, data=list(names), dtype=h5py.string_dtype())

    def write_table(self, name: str, table: npt.NDArray[Any], **attrs: str) -> None:
        """Write a small array that no block reader reads, with attributes that explain it."""
        self._create(name, data=table).attrs.update(attrs)

    def _create(self, name: str, **fields: Any) -> h5py.Dataset:
        """Create a dataset, and its groups one by one: those that HDF5 adds by itself carry the time of day."""
        parts = name.split("/")
        for depth in range(1, len(parts)):
            self._hdf5.require_group("/".join(parts[:depth]))
        return self._hdf5.create_dataset(name, **fields)


class _BlockChecksum:
    """CRC-32 of consecutive blocks of a byte stream that arrives in pieces of any size."""

    def __init__(self, crc_B: npt.NDArray[np.uint32], block_bytes: int) -> None:
        self._crc_B = crc_B
        self._block_bytes = block_bytes
        self._position = 0

    def update(self, chunk: npt.NDArray[Any]) -> None:
        """Take the next bytes."""
        for block, piece in self._pieces(chunk.reshape(-1).view(np.uint8).data):
            self._crc_B[block] = zlib.crc32(piece, int(self._crc_B[block]))

    def _pieces(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        start = 0
        while start < len(data):
            block, within = divmod(self._position, self._block_bytes)
            piece = data[start : start + self._block_bytes - within]
            yield block, piece
            start += len(piece)
            self._position += len(piece)
