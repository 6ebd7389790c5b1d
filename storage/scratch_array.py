"""One-dimensional arrays in files of their own, written once from front to back and read in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.blocks.writer import ArrayStream
from storage.edge_spill import read_exactly, write_exactly

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class ScratchArray:
    """A one-dimensional array in a file of its own."""

    path: Path
    """The file: the bytes and nothing else."""
    length: int
    """Number of entries."""
    dtype: np.dtype[Any]
    """Type of the entries."""

    @classmethod
    def written(cls, path: Path, pieces: Iterable[npt.NDArray[Any]], dtype: np.dtype[Any]) -> ScratchArray:
        """Write the pieces one after the other."""
        length = 0
        with path.open("wb", buffering=0) as file:
            for piece in pieces:
                write_exactly(file.write, np.ascontiguousarray(piece, dtype))
                length += len(piece)
        return cls(path, length, dtype)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: int) -> Any:
        """Read one entry."""
        if not -self.length <= place < self.length:
            raise IndexError(place)
        with self.path.open("rb", buffering=0) as file:
            file.seek(place % self.length * self.dtype.itemsize)
            entry = np.empty(1, self.dtype)
            read_exactly(file.readinto, entry)
        return entry[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self.length * self.dtype.itemsize

    def chunks(self) -> Iterator[npt.NDArray[Any]]:
        """Read the entries anew."""
        step = max(1, _CHUNK_BYTES // self.dtype.itemsize)
        with self.path.open("rb", buffering=0) as file:
            for start in range(0, self.length, step):
                part = np.empty(min(step, self.length - start), self.dtype)
                read_exactly(file.readinto, part)
                yield part

    def stream(self) -> ArrayStream:
        """Read it once more, as a store takes it."""
        return ArrayStream((self.length,), self.dtype, self.chunks())
