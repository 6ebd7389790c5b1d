"""Measures whether a file system serves direct I/O, and how fast: large reads in order, small ones anywhere."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.blocks.extent import aligned_empty

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
    buffer[:] = 1
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".garden-probe-") as file:
        for _ in range(_FILE_BYTES // _BLOCK_BYTES):
            file.write(buffer.data)
        file.flush()
        os.fsync(file.fileno())
        try:
            descriptor = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return DirectIo(False, _read(file.fileno(), buffer.data, seconds))
        try:
            return DirectIo(True, _read(descriptor, buffer.data, seconds))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return DirectIo(False, _read(file.fileno(), buffer.data, seconds))
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class DiskSpeed:
    """What a disk gives, one request at a time."""

    direct: bool
    """Whether reads went past the page cache."""
    bytes_per_s: float
    """Sequential reads of 1 MiB."""
    small_reads_per_s: float
    """Reads of 4 KiB anywhere."""

    @property
    def efficient_block_bytes(self) -> int:
        """Smallest power of two, from 64 KiB to 4 MiB, whose reads reach about nine tenths of the sequential rate."""
        latency_s = max(0.0, 1 / self.small_reads_per_s - _SMALL_BYTES / self.bytes_per_s)
        wanted = int(9 * latency_s * self.bytes_per_s)
        return min(4 << 20, max(64 << 10, 1 << max(0, wanted - 1).bit_length()))


def probe_disk(directory: Path, seconds: float = 2.0) -> DiskSpeed:
    """Measure reads for `seconds` with a temporary file of 256 MiB, half of the time large ones, half small ones.

    Raises
    ------
    OSError
        The directory cannot be written to, or its disk is full.
    """
    buffer = aligned_empty(_BLOCK_BYTES)
    buffer[:] = 1
    places = np.random.default_rng(0).permutation(_RANDOM_FILE_BYTES // _SMALL_BYTES) * _SMALL_BYTES
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".garden-probe-") as file:
        for _ in range(_RANDOM_FILE_BYTES // _BLOCK_BYTES):
            file.write(buffer.data)
        file.flush()
        os.fsync(file.fileno())
        descriptor, direct = _open_direct(file.name, buffer.data)
        try:
            order = range(0, _RANDOM_FILE_BYTES, _BLOCK_BYTES)
            large = _rate(descriptor, buffer.data, order, seconds / 2)
            small = _rate(descriptor, buffer.data[:_SMALL_BYTES], places.tolist(), seconds / 2)
        finally:
            os.close(descriptor)
    return DiskSpeed(direct, large * _BLOCK_BYTES, small)


def _open_direct(name: str, buffer: memoryview) -> tuple[int, bool]:
    """Open for direct reads, or for buffered ones where those are refused."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECT)
        os.preadv(descriptor, [buffer], 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(name, os.O_RDONLY), False
    return descriptor, True


def _rate(descriptor: int, buffer: memoryview, places: Sequence[int], seconds: float) -> float:
    """Reads a second at places taken in turn."""
    start, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds or not done:
        os.preadv(descriptor, [buffer], places[done % len(places)])
        done += 1
    return done / elapsed


def _read(descriptor: int, buffer: memoryview, seconds: float) -> float:
    start, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds:
        done += os.preadv(descriptor, [buffer], done % _FILE_BYTES)
    return done / elapsed
