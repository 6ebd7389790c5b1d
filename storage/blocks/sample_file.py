"""Mini-batches that wait on disk: what sampling a hyperbatch finds, but the ids that gathering needs, is spilled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray, Mfg, Sample
from storage.blocks.extent import aligned_empty
from storage.blocks.io_stats import IoStats
from storage.blocks.spill import SpillFile, padded

_PIECE_BYTES = 1 << 20
_WORD_BYTES = 8


class WaitingSample(Protocol):
    """A sampled mini-batch, wherever its structure is."""

    @property
    def input_nodes(self) -> IdArray:
        """Ids of its input nodes, in memory."""

    def load(self) -> Sample:
        """All of it, in memory."""


@dataclass(frozen=True, slots=True)
class HeldSample:
    """A mini-batch in memory."""

    sample: Sample
    """The mini-batch."""

    @property
    def input_nodes(self) -> IdArray:
        """As `WaitingSample.input_nodes`."""
        return self.sample.input_nodes

    def load(self) -> Sample:
        """As `WaitingSample.load`."""
        return self.sample


@dataclass(frozen=True, slots=True, eq=False)
class _SpilledSample:
    """A mini-batch whose hops are in a file."""

    file: SpillFile
    segment: int
    input_nodes: IdArray
    batch_index: int
    num_seed_rows: int
    num_src: tuple[int, ...]
    layout: tuple[tuple[np.dtype[Any], int], ...]

    def load(self) -> Sample:
        """As `WaitingSample.load`."""
        arrays = _unpacked(self.file.read(self.segment), self.layout)
        seed_inverse = next(arrays)
        hops = tuple(Mfg(next(arrays), next(arrays), num_src) for num_src in self.num_src)
        return Sample(self.batch_index, hops, self.input_nodes, seed_inverse, self.num_seed_rows)


class SampleFile:
    """Mini-batches of one hyperbatch in a file without a name; close it.

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
        self._file = SpillFile(directory, [], _PIECE_BYTES, stats)

    def save(self, sample: Sample) -> WaitingSample:
        """Write a mini-batch, and wait for it; edge ids are not kept.

        Raises
        ------
        MachineError
            If the disk is full.
        """
        parts = _parts(sample)
        segment, (memory, size) = len(self._file.sizes), _packed(parts)
        self._file.add([size])
        starts = range(0, size, _PIECE_BYTES)
        writes = [self._file.write(segment, memory[at:], min(_PIECE_BYTES, size - at)) for at in starts]
        for write in writes:
            write.result()
        return _SpilledSample(
            self._file,
            segment,
            sample.input_nodes,
            sample.batch_index,
            sample.num_seed_rows,
            tuple(hop.num_src for hop in sample.hops),
            tuple((part.dtype, len(part)) for part in parts),
        )

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return self._file.nbytes

    def close(self) -> None:
        """Give the space back; safe to call twice."""
        self._file.close()


def saved_bytes(sample: Sample) -> int:
    """Bytes on disk of a mini-batch that is saved."""
    return padded(sum(_whole_words(part.nbytes) for part in _parts(sample)))


def _parts(sample: Sample) -> list[npt.NDArray[Any]]:
    """What of a mini-batch is saved."""
    return [sample.seed_inverse, *(part for hop in sample.hops for part in (hop.indptr, hop.indices))]


def _packed(parts: list[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.uint8], int]:
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
