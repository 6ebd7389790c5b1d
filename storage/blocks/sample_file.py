"""Mini-batches that wait on disk: what sampling a hyperbatch finds, but the ids that gathering needs, is spilled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from kernels.mfg import IdArray, Mfg, Sample
from storage.blocks.array_file import ArrayFile, SavedArrays, disk_bytes
from storage.blocks.io_stats import IoStats


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

    file: ArrayFile
    saved: SavedArrays
    input_nodes: IdArray
    batch_index: int
    num_seed_rows: int
    num_src: tuple[int, ...]

    def load(self) -> Sample:
        """As `WaitingSample.load`."""
        arrays = iter(self.file.load(self.saved))
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
        self._file = ArrayFile(directory, stats)

    def save(self, sample: Sample) -> WaitingSample:
        """Write a mini-batch, and wait for it; edge ids are not kept.

        Raises
        ------
        MachineError
            If the disk is full.
        """
        (saved,) = self._file.save([_parts(sample)])
        num_src = tuple(hop.num_src for hop in sample.hops)
        return _SpilledSample(self._file, saved, sample.input_nodes, sample.batch_index, sample.num_seed_rows, num_src)

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return self._file.nbytes

    def close(self) -> None:
        """Give the space back; safe to call twice."""
        self._file.close()


def saved_bytes(sample: Sample) -> int:
    """Bytes on disk of a mini-batch that is saved."""
    return disk_bytes(_parts(sample))


def _parts(sample: Sample) -> list[npt.NDArray[Any]]:
    """What of a mini-batch is saved."""
    return [sample.seed_inverse, *(part for hop in sample.hops for part in (hop.indptr, hop.indices))]
