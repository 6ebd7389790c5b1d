"""Measures whether a file system serves direct I/O, and how fast: large reads in order, small ones anywhere."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage.blocks.buffer import DEFAULT_DEPTH
from storage.blocks.extent import aligned_empty
from storage.blocks.nameless import open_nameless

_BLOCK_BYTES = 1 << 20
_FILE_BYTES = 32 << 20
_SMALL_BYTES = 4096
_RANDOM_FILE_BYTES = 256 << 20


@dataclass(frozen=True)
class DirectIo:
    """What a directory's file system answered."""

    supported: bool
    """Whether it takes O_DIRECT; else reads go through the page cache."""
    bytes_per_s: float
    """Sequential reads of 1 MiB, one at a time."""


def probe_direct_io(directory: Path, seconds: float = 1.0) -> DirectIo:
    """Write a file of 32 MiB without a name, and read it again and again for a while.

    Parameters
    ----------
    directory : Path
        Where to.
    seconds : float
        How long to read, at most.

    Raises
    ------
    OSError
        The directory cannot be written to, or its disk is full.
    """
    buffer = aligned_empty(_BLOCK_BYTES)
    with _filled_file(directory, _FILE_BYTES, buffer) as descriptor:
        supported = _go_direct(descriptor, buffer.data)
        return DirectIo(supported, _read(descriptor, buffer.data, seconds))


@dataclass(frozen=True)
class DiskSpeed:
    """What a disk gives, one request at a time where nothing else is said."""

    direct: bool
    """Whether reads went past the page cache."""
    bytes_per_s: float
    """Sequential reads of 1 MiB."""
    small_reads_per_s: float
    """Reads of 4 KiB anywhere."""
    streamed_bytes_per_s: float
    """Reads of 1 MiB, several in flight."""
    written_bytes_per_s: float
    """Writes, until they lie on the disk."""

    @property
    def efficient_block_bytes(self) -> int:
        """Smallest power of two, from 64 KiB to 4 MiB, whose reads reach about nine tenths of the sequential rate."""
        latency_s = max(0.0, 1 / self.small_reads_per_s - _SMALL_BYTES / self.bytes_per_s)
        wanted = int(9 * latency_s * self.bytes_per_s)
        return min(4 << 20, max(64 << 10, 1 << max(0, wanted - 1).bit_length()))


def probe_disk(directory: Path, seconds: float = 2.0) -> DiskSpeed:
    """Measure reads for `seconds` with a file of 256 MiB without a name: large ones, small ones, several in flight.

    Raises
    ------
    OSError
        The directory cannot be written to, or its disk is full.
    """
    buffer = aligned_empty(_BLOCK_BYTES)
    places = np.random.default_rng(0).permutation(_RANDOM_FILE_BYTES // _SMALL_BYTES) * _SMALL_BYTES
    start = time.perf_counter()
    with _filled_file(directory, _RANDOM_FILE_BYTES, buffer) as descriptor:
        written = _RANDOM_FILE_BYTES / (time.perf_counter() - start)
        direct = _go_direct(descriptor, buffer.data)
        order = range(0, _RANDOM_FILE_BYTES, _BLOCK_BYTES)
        large = _rate(descriptor, buffer.data, order, seconds / 3)
        small = _rate(descriptor, buffer.data[:_SMALL_BYTES], places.tolist(), seconds / 3)
        streamed = _streamed_rate(descriptor, order, seconds / 3)
    return DiskSpeed(direct, large * _BLOCK_BYTES, small, streamed * _BLOCK_BYTES, written)


@contextmanager
def _filled_file(directory: Path, nbytes: int, buffer: npt.NDArray[np.uint8]) -> Iterator[int]:
    """A file without a name that lies on the disk; closed afterwards."""
    buffer[:] = 1
    with os.fdopen(open_nameless(directory, direct=False), "r+b") as file:
        for _ in range(nbytes // len(buffer)):
            file.write(buffer.data)
        file.flush()
        os.fsync(file.fileno())
        yield file.fileno()


def _go_direct(descriptor: int, buffer: memoryview) -> bool:
    """Read past the page cache from now on; whether that is possible."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        os.preadv(descriptor, [buffer], 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        return False
    return True


def _rate(descriptor: int, buffer: memoryview, places: Sequence[int], seconds: float) -> float:
    """Reads a second at places taken in turn."""
    start, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds or not done:
        os.preadv(descriptor, [buffer], places[done % len(places)])
        done += 1
    return done / elapsed


def _streamed_rate(descriptor: int, places: Sequence[int], seconds: float) -> float:
    """Reads a second of as many threads as the block buffers have."""
    with ThreadPoolExecutor(DEFAULT_DEPTH) as pool:
        buffers = [aligned_empty(_BLOCK_BYTES).data for _ in range(DEFAULT_DEPTH)]
        shares = [places[number::DEFAULT_DEPTH] for number in range(DEFAULT_DEPTH)]
        return sum(pool.map(lambda buffer, share: _rate(descriptor, buffer, share, seconds), buffers, shares))


def _read(descriptor: int, buffer: memoryview, seconds: float) -> float:
    start, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds:
        done += os.preadv(descriptor, [buffer], done % _FILE_BYTES)
    return done / elapsed
