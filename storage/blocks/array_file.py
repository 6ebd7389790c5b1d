"""Arrays that wait on disk, groups of them each in a segment of its own; the file has no name, so it dies with us."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.blocks.extent import aligned_empty
from storage.blocks.io_stats import IoStats
from storage.blocks.spill import SpillFile, padded

_PIECE_BYTES = 1 << 20
_WORD_BYTES = 8
Arrays = Sequence[npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class SavedArrays:
    """Where a group of arrays lies, and how it is laid out."""

    segment: int
    """Of the file."""
    layout: tuple[tuple[np.dtype[Any], int], ...]
    """Type and length of each array."""


class ArrayFile:
    """One-dimensional arrays in a file without a name; close it, or use it in a `with` statement.

    Parameters
    ----------
    directory : Path
        Where it lies.
    stats : IoStats
        Counts reads and writes.

    Raises
    ------
    MachineError
        If no file can be made.
    """

    def __init__(self, directory: Path, stats: IoStats) -> None:
        self.spill = SpillFile(directory, [], _PIECE_BYTES, stats)

    def save(self, groups: Sequence[Arrays]) -> list[SavedArrays]:
        """Write some groups of arrays, and wait for all of them.

        Raises
        ------
        MachineError
            If the disk is full.
        """
        first, packed = len(self.spill.sizes), [_packed(parts) for parts in groups]
        self.spill.add([size for _, size in packed])
        writes = [
            self.spill.write(segment, memory[at:], min(_PIECE_BYTES, size - at))
            for segment, (memory, size) in enumerate(packed, first)
            for at in range(0, size, _PIECE_BYTES)
        ]
        for write in writes:
            write.result()
        return [
            SavedArrays(segment, tuple((part.dtype, len(part)) for part in parts))
            for segment, parts in enumerate(groups, first)
        ]

    def load(self, saved: SavedArrays) -> list[Any]:
        """Read one group, however large.

        Raises
        ------
        ChecksumMismatchError
            If it is not what was written.
        """
        return list(_unpacked(self.spill.read(saved.segment), saved.layout))

    def load_small(self, groups: Sequence[SavedArrays]) -> list[list[Any]]:
        """Read several groups at once, each in one request; errors are those of `load`."""
        coming = [self.spill.read_ahead(saved.segment) for saved in groups]
        return [list(_unpacked(one.result(), saved.layout)) for one, saved in zip(coming, groups, strict=True)]

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return self.spill.nbytes

    def close(self) -> None:
        """Give the space back; safe to call twice."""
        self.spill.close()

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def disk_bytes(parts: Arrays) -> int:
    """Bytes on disk of a group that is saved."""
    return padded(sum(_whole_words(part.nbytes) for part in parts))


def _packed(parts: Arrays) -> tuple[npt.NDArray[np.uint8], int]:
    """Arrays one after the other, each on a word boundary, and their bytes in all."""
    size = sum(_whole_words(part.nbytes) for part in parts)
    memory, at = aligned_empty(padded(size)), 0
    for part in parts:
        memory[at : at + part.nbytes].view(part.dtype)[:] = part
        memory[at + part.nbytes : at + _whole_words(part.nbytes)] = 0
        at += _whole_words(part.nbytes)
    return memory, size


def _unpacked(memory: npt.NDArray[np.uint8], layout: tuple[tuple[np.dtype[Any], int], ...]) -> Iterator[Any]:
    at = 0
    for dtype, length in layout:
        nbytes = dtype.itemsize * length
        yield memory[at : at + nbytes].view(dtype)
        at += _whole_words(nbytes)


def _whole_words(nbytes: int) -> int:
    return -(-nbytes // _WORD_BYTES) * _WORD_BYTES
