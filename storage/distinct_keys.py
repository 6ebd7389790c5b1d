"""Distinct keys in ascending order, however many: spilled as they come, each range of them sorted by itself.

A sample of the keys, those of the smallest hashes, says where to cut the ranges; it is as even over the distinct keys
as a drawn one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from storage.edge_spill import write_exactly
from storage.errors import BudgetError
from storage.formats.base import CHUNK_EDGES

K = TypeVar("K")

_SAMPLE = 1 << 14
_PIECE_BYTES = 1 << 20
_MOST_RANGES = 1 << 11
_MARGIN = 2  # ranges are meant to take half of the memory: a sample cuts them, and keys repeat from file to file
LEAST_WORK_BYTES = 12 << 20
"""Least memory to collect keys in, beside those that come at a time."""


class KeyKind(Protocol[K]):
    """What is to be known of a type of keys; K is a sequence of keys."""

    work_factor: int
    """Memory to merge or to sort keys in, over `bytes_each`."""

    def distinct(self, parts: Sequence[K]) -> K:
        """Each key of the parts once, in any order."""
        ...

    def ordered(self, keys: K) -> K:
        """The keys in ascending order."""
        ...

    def taken(self, keys: K, places: npt.NDArray[np.int64] | slice) -> K:
        """Some of the keys."""
        ...

    def places(self, ordered: K, cuts: K) -> npt.NDArray[np.int64]:
        """Before how many of the ordered keys each cut, among them or not, belongs."""
        ...

    def hashes(self, keys: K) -> npt.NDArray[np.uint64]:
        """Hash of each key."""
        ...

    def bytes_each(self, keys: K) -> npt.NDArray[np.int64]:
        """Bytes of each key in memory."""
        ...

    def encoded(self, keys: K) -> bytes:
        """Keys as a file has them."""
        ...

    def decoded(self, data: bytes) -> tuple[K, bytes]:
        """Whole keys from the front of some bytes of a file, and the bytes that are left."""
        ...


class DistinctKeys(Generic[K]):
    """Collects keys; memory is `work_bytes`, or a few times all distinct keys where that is None.

    Parameters
    ----------
    kind : KeyKind
    folder : Path
        Directory for files, gone once the keys were read.
    work_bytes : int, optional
        At least `LEAST_WORK_BYTES`.
    most_disk_bytes : int, optional
        The files may take so much.
    held_disk_bytes : int
        What counts in `disk_budget` already.
    """

    def __init__(
        self,
        kind: KeyKind[K],
        folder: Path,
        work_bytes: int | None = None,
        most_disk_bytes: int | None = None,
        held_disk_bytes: int = 0,
    ) -> None:
        self._kind, self._folder, self._work_bytes = kind, folder, work_bytes
        self._most_disk_bytes, self._held_disk_bytes = most_disk_bytes, held_disk_bytes
        self._merged: K = kind.distinct([])
        self._pending: list[K] = []
        self._files: list[Path] = []
        self._sample: K = self._merged
        self._sample_hashes = np.empty(0, np.uint64)
        self._pending_bytes = self._spilled_bytes = self._spilled_work = self._largest_file = 0

    def add(self, keys: K) -> None:
        """Add keys, which may repeat."""
        distinct = self._kind.distinct([keys])
        self._pending.append(distinct)
        self._pending_bytes += self._work_of(distinct)
        # Merging only once as much came as is there already keeps the passes over the keys few.
        many = sum(map(_length, self._pending)) > max(_length(self._merged), CHUNK_EDGES)
        if many or (self._work_bytes is not None and self._pending_bytes > self._work_bytes // 2):
            self._merge()

    def ascending(self) -> Iterator[K]:
        """Give all keys in ascending order, some at a time; nothing can be added any more.

        Raises
        ------
        BudgetError
            The files would take more than they may.
        """
        self._merge()
        if not self._files:
            yield self._kind.ordered(self._merged)
            return
        self._spill()
        if self._most_disk_bytes is not None and self._disk_bytes > self._most_disk_bytes:
            raise BudgetError(
                f"numbering the nodes needs {self._disk_bytes} bytes of disk in scratch files and disk_budget leaves "
                f"{self._most_disk_bytes}: set disk_budget to at least {self._held_disk_bytes + self._disk_bytes}"
            )
        for path in self._ranges():
            together = DistinctKeys(self._kind, self._folder)
            for piece in self._read(path):
                together.add(piece)
            path.unlink()
            yield from together.ascending()

    @property
    def _disk_bytes(self) -> int:
        """What the files take at most: one of them is there twice while it is cut into ranges."""
        return self._spilled_bytes + self._largest_file

    def _merge(self) -> None:
        self._merged = self._kind.distinct([self._merged, *self._pending])
        self._pending, self._pending_bytes = [], 0
        # As much again may be pending.
        if self._work_bytes is not None and self._work_of(self._merged) > self._work_bytes // 2:
            self._spill()

    def _work_of(self, keys: K) -> int:
        """Memory to merge or to sort keys in."""
        return self._kind.work_factor * int(self._kind.bytes_each(keys).sum())

    def _spill(self) -> None:
        """Write what was merged to a file, and let go of it."""
        self._note_sample()
        path, size = self._folder / f"keys-{len(self._files)}", 0
        self._spilled_work += self._work_of(self._merged)
        with path.open("wb", buffering=0) as file:
            for piece in self._pieces(self._merged):
                data = self._kind.encoded(piece)
                size += len(data)
                if self._most_disk_bytes is None or self._spilled_bytes + size <= self._most_disk_bytes:
                    _write(file, data)  # else only how much it would be is of interest
        self._files.append(path)
        self._spilled_bytes += size
        self._largest_file = max(self._largest_file, size)
        self._merged = self._kind.distinct([])

    def _pieces(self, keys: K) -> Iterator[K]:
        ends = np.cumsum(self._kind.bytes_each(keys))
        if not len(ends):
            return
        cuts = np.searchsorted(ends, np.arange(0, ends[-1], _PIECE_BYTES)).tolist()
        for first, last in zip(cuts, [*cuts[1:], len(ends)], strict=True):
            if last > first:
                yield self._kind.taken(keys, slice(first, last))

    def _note_sample(self) -> None:
        hashes = self._kind.hashes(self._merged)
        limit = self._sample_hashes[-1] if len(self._sample_hashes) == _SAMPLE else np.uint64(2**64 - 1)
        low = np.flatnonzero(hashes <= limit)
        # The sample itself is among the parts, so that what `distinct` gives has to be hashed again.
        both = self._kind.distinct([self._sample, self._kind.taken(self._merged, low)])
        hashes = self._kind.hashes(both)
        least = np.argsort(hashes, kind="stable")[:_SAMPLE]
        self._sample, self._sample_hashes = self._kind.taken(both, least), hashes[least]

    def _ranges(self) -> list[Path]:
        """Cut the files into ranges of keys, a file each."""
        assert self._work_bytes is not None
        wanted = _MARGIN * self._spilled_work // self._work_bytes
        cuts = self._cuts(min(_MOST_RANGES, max(1, wanted)))
        paths = [self._folder / f"range-{part}" for part in range(_length(cuts) + 1)]
        for path in paths:
            path.touch()
        for spilled in self._files:
            for piece in self._read(spilled):
                ordered = self._kind.ordered(piece)
                starts = [0, *self._kind.places(ordered, cuts).tolist(), _length(ordered)]
                for path, first, last in zip(paths, starts[:-1], starts[1:], strict=True):
                    if last > first:
                        with path.open("ab", buffering=0) as file:  # ranges are many, so none stays open
                            _write(file, self._kind.encoded(self._kind.taken(ordered, slice(first, last))))
            spilled.unlink()
        return paths

    def _cuts(self, parts: int) -> K:
        """The keys before which ranges end that take about equally much."""
        ordered = self._kind.ordered(self._sample)
        ends = np.cumsum(self._kind.bytes_each(ordered))
        wanted = np.arange(1, parts) * (ends[-1] / parts)
        return self._kind.taken(ordered, np.unique(np.searchsorted(ends, wanted)))

    def _read(self, path: Path) -> Iterator[K]:
        rest = b""
        with path.open("rb", buffering=0) as file:
            while data := file.read(_PIECE_BYTES):
                keys, rest = self._kind.decoded(rest + data)
                yield keys


def _write(file: Any, data: bytes) -> None:
    write_exactly(file.write, np.frombuffer(data, np.uint8))


def _length(keys: Any) -> int:
    return len(keys)
