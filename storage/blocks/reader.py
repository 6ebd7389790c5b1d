"""Reads blocks of a store file with direct I/O from a thread pool, and checks each block on its first read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
import weakref
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.blocks.extent import DIRECT_ALIGNMENT, Extent, aligned_empty
from storage.blocks.io_stats import IoStats
from storage.errors import ChecksumMismatchError, MachineError, StorageError

logger = logging.getLogger(__name__)

_TASK_BYTES = 4 << 20
_refused_direct: set[int] = set()


class _Descriptor:
    """An open file that closes once the last reference is gone: that of the reader, or of a read under way."""

    def __init__(self, number: int) -> None:
        self.number = number
        weakref.finalize(self, os.close, number)


class BlockReader:
    """Reads one dataset of a store, block by block, past the page cache.

    Safe to use from several threads. The descriptor is opened by the first read.

    Parameters
    ----------
    path : Path
        Store file.
    extent : Extent
        Where the dataset lies.
    threads : int
        Reads in flight at most.
    direct : bool
        Ask for direct I/O; where offset or file system refuse it, reads are buffered and a log line says so.
    stats : IoStats, optional
        Counts the requests.
    """

    def __init__(
        self, path: Path, extent: Extent, *, threads: int = 4, direct: bool = True, stats: IoStats | None = None
    ) -> None:
        self.extent = extent
        self.stats = stats or IoStats()
        self.path = path
        self._threads = threads
        self._verified_B = np.zeros(extent.num_blocks, np.bool_)
        self._direct = direct and extent.offset % DIRECT_ALIGNMENT == 0 and extent.block_bytes % DIRECT_ALIGNMENT == 0
        self._lock = threading.Lock()
        self._file: _Descriptor | None = None

    def close(self) -> None:
        """Give the descriptor back as soon as no read is using it; a later read opens another."""
        with self._lock:
            self._file = None

    def read_all(self) -> npt.NDArray[Any]:
        """Read the whole array.

        Raises
        ------
        StorageError
            The file is shorter than it should be.
        ChecksumMismatchError
            A block's bytes are not those that were written.
        """
        return self.read_rows(0, self.extent.shape[0])

    def read_rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Read entries `start` to `stop` along the first axis, and the rest of the blocks that hold them.

        Returns
        -------
        (stop - start, ...) array in the dataset's type, owned by the caller

        Raises
        ------
        StorageError, ChecksumMismatchError
            As `read_all`.
        """
        shape = (stop - start, *self.extent.shape[1:])
        first_byte, last_byte = start * self.extent.row_bytes, stop * self.extent.row_bytes
        if first_byte == last_byte:
            return np.empty(shape, self.extent.dtype)
        first_block = first_byte // self.extent.block_bytes
        data = self.read_blocks(first_block, -(-last_byte // self.extent.block_bytes))
        skip = first_byte - first_block * self.extent.block_bytes
        return data[skip : skip + last_byte - first_byte].view(self.extent.dtype).reshape(shape)

    def read_blocks(self, first: int, last: int) -> npt.NDArray[np.uint8]:
        """Read blocks `first` to `last` (excluded), several at a time.

        Returns
        -------
        uint8 array of their bytes; the dataset's last block is as long as its data
        """
        block_bytes = self.extent.block_bytes
        needed = min(last * block_bytes, self.extent.nbytes) - first * block_bytes
        buffer = aligned_empty((last - first) * block_bytes)
        file = self._open()
        step = max(1, _TASK_BYTES // block_bytes)
        runs = [(run, min(run + step, last)) for run in range(first, last, step)]
        if len(runs) == 1:
            self._read_run(file, buffer, first, runs[0])
        else:
            with ThreadPoolExecutor(self._threads, thread_name_prefix="block-reader") as pool:
                list(pool.map(lambda run: self._read_run(file, buffer, first, run), runs))
        return buffer[:needed]

    def read_into(self, first: int, targets: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Read consecutive blocks in one request, each into memory of its own.

        Parameters
        ----------
        first : int
            Number of the first block.
        targets : sequence of (block_bytes,) uint8 arrays
            Where each block goes, on addresses that direct I/O accepts; the dataset's last block fills a part.

        Raises
        ------
        StorageError, ChecksumMismatchError
            As `read_all`.
        MachineError
            If the disk cannot read it.
        """
        file, block_bytes = self._open(), self.extent.block_bytes
        offset, last = self.extent.offset + first * block_bytes, first + len(targets) - 1
        tail = min(self.extent.nbytes - last * block_bytes, block_bytes)
        with self.stats.reading((len(targets) - 1) * block_bytes + tail):
            done = 0
            if len(targets) > 1 and self._direct:
                with contextlib.suppress(OSError):  # read one by one below, a refusal is dealt with there
                    done = os.preadv(file.number, [target.data for target in targets], offset)
            for number in range(done // block_bytes, len(targets)):
                needed = tail if number == len(targets) - 1 else block_bytes
                if done < number * block_bytes + needed:
                    self._read_bytes(file, targets[number].data, offset + number * block_bytes, needed)
        for number, target in enumerate(targets):
            if not self._verified_B[first + number]:
                self._verify(first + number, target[: tail if first + number == last else block_bytes])

    def _read_run(self, file: _Descriptor, buffer: npt.NDArray[np.uint8], first: int, run: tuple[int, int]) -> None:
        """Fill the part of `buffer` (which starts at block `first`) that belongs to the blocks of `run`."""
        block_bytes = self.extent.block_bytes
        piece = buffer[(run[0] - first) * block_bytes : (run[1] - first) * block_bytes]
        needed = min(run[1] * block_bytes, self.extent.nbytes) - run[0] * block_bytes
        with self.stats.reading(needed):
            self._read_bytes(file, piece.data, self.extent.offset + run[0] * block_bytes, needed)
        for block in range(*run):
            if not self._verified_B[block]:
                start = (block - run[0]) * block_bytes
                self._verify(block, piece[start : min(start + block_bytes, needed)])

    def _read_bytes(self, file: _Descriptor, target: memoryview, offset: int, needed: int) -> None:
        """Read at least `needed` bytes; a direct read may go on to the end of its block."""
        done = 0
        while done < needed:
            # A read cut short by the file's end leaves a remainder that only buffered reads may ask for.
            aligned = self._direct and done % DIRECT_ALIGNMENT == 0
            wanted = target[done:] if aligned else target[done:needed]
            try:
                count = os.preadv(file.number, [wanted], offset + done)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise MachineError(
                        f"{self.path} cannot be read at byte {offset + done}, inside {self.extent.name} "
                        f"({error.strerror}): check the disk, and run again"
                    ) from error
                self._fall_back(file)
                continue
            if count == 0:
                raise StorageError(
                    f"{self.path} ends at byte {offset + done}, inside {self.extent.name}: it was cut short; "
                    "delete it and run again"
                )
            done += count
            if done < needed and done % DIRECT_ALIGNMENT and self._direct:
                self._fall_back(file)

    def _verify(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        check_block(self.path, self.extent, block, data)
        self._verified_B[block] = True

    def _open(self) -> _Descriptor:
        with self._lock:
            if self._file is None:
                self._file = _Descriptor(self._open_number())
            return self._file

    def _open_number(self) -> int:
        flags = os.O_RDONLY | (os.O_DIRECT if self._direct else 0)
        try:
            return os.open(self.path, flags)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._direct:
                raise StorageError(f"{self.path} cannot be opened: {error.strerror}") from error
            self._direct = False
            self._log_refusal()
            return os.open(self.path, os.O_RDONLY)

    def _fall_back(self, file: _Descriptor) -> None:
        """Go on with buffered reads on the same descriptor."""
        flags = fcntl.fcntl(file.number, fcntl.F_GETFL)
        fcntl.fcntl(file.number, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self._direct = False
        self._log_refusal()

    def _log_refusal(self) -> None:
        """Say once a file system that direct I/O does not work there."""
        device = self.path.stat().st_dev
        if device not in _refused_direct:
            _refused_direct.add(device)
            logger.warning("direct I/O is refused where %s lies: reads go through the page cache", self.path)


def check_block(path: Path, extent: Extent, block: int, data: npt.NDArray[np.uint8]) -> None:
    """Compare one block's bytes with the checksum that was recorded for them.

    Raises
    ------
    ChecksumMismatchError
        If they differ.
    """
    expected, found = int(extent.crc_B[block]), zlib.crc32(data.data)
    if expected != found:
        raise ChecksumMismatchError(
            f"{path}: block {block} of {extent.name} (bytes {extent.offset + block * extent.block_bytes} and following)"
            f" has CRC-32 {found:08x}, recorded is {expected:08x}: the file is damaged; delete it and run again"
        )
