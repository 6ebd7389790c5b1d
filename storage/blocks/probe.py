"""Measures whether and how fast a file system serves direct I/O."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from storage.blocks.extent import aligned_empty

_BLOCK_BYTES = 1 << 20
_FILE_BYTES = 32 << 20


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


def _read(descriptor: int, buffer: memoryview, seconds: float) -> float:
    start, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds:
        done += os.preadv(descriptor, [buffer], done % _FILE_BYTES)
    return done / elapsed
