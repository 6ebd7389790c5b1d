"""The spill file: a segment for each mini-batch, written in pieces and read back whole; no name, so it dies with us."""

from __future__ import annotations

import errno
import os
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kernels.cpu.scatter import sum_words
from storage.blocks.extent import DIRECT_ALIGNMENT, aligned_empty
from storage.blocks.io_stats import IoStats
from storage.blocks.nameless import open_nameless
from storage.errors import ChecksumMismatchError, MachineError

SPARE_BUFFERS = 4
"""Buffers on their way to the disk while others are filled."""
_READ_BYTES = 1 << 20
_THREADS = 4


def padded(nbytes: int) -> int:
    """Round up to what direct I/O accepts."""
    return -(-nbytes // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT


class SpillFile:
    """Segments of known sizes on disk; use as a context manager.

    Its space is taken at once, so that a disk too full is found before anything is computed, and the file has no name:
    whatever ends the process, nothing is left behind.

    Parameters
    ----------
    directory : Path
        Where it lies.
    sizes : sequence of int
        Bytes of each segment.
    piece_bytes : int
        Bytes of a write, a multiple of 4096.
    stats : IoStats
        Counts reads and writes.

    Raises
    ------
    MachineError
        If the disk is full.
    """

    def __init__(self, directory: Path, sizes: Sequence[int], piece_bytes: int, stats: IoStats) -> None:
        self._directory, self._stats, self.piece_bytes = directory, stats, piece_bytes
        self.sizes, self._begin, self._written = list[int](), [0], list[int]()
        self._sums = list[npt.NDArray[np.uint64]]()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="spill")
        self._descriptor = _open_nameless(directory)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        try:
            self.add(sizes)
        except MachineError:
            self._close()
            raise

    def add(self, sizes: Sequence[int]) -> None:
        """Take space for more segments, behind those there are.

        Raises
        ------
        MachineError
            If the disk is full.
        """
        before = self.nbytes
        for size in sizes:
            self.sizes.append(size)
            self._begin.append(self.nbytes + padded(size))
            self._written.append(0)
            self._sums.append(np.zeros(-(-size // self.piece_bytes), np.uint64))
        try:
            if self.nbytes > before:
                os.posix_fallocate(self._descriptor, before, self.nbytes - before)
        except OSError as error:
            raise self._explained(error) from error

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return self._begin[-1]

    def write(self, segment: int, piece: npt.NDArray[np.uint8], nbytes: int) -> Future[None]:
        """Start to append the first `nbytes` of aligned pieces; all pieces of a segment but the last are full."""
        offset = self._begin[segment] + self._written[segment]
        self._written[segment] += nbytes
        return self._pool.submit(self._write, segment, piece, nbytes, offset)

    def read(self, segment: int) -> npt.NDArray[np.uint8]:
        """Read a segment into memory of its own.

        Raises
        ------
        ChecksumMismatchError
            If it is not what was written.
        MachineError
            If it cannot be read.
        """
        memory = aligned_empty(padded(self.sizes[segment]))
        begin, step = self._begin[segment], max(self.piece_bytes, _READ_BYTES)
        starts = range(0, len(memory), step)
        list(self._pool.map(lambda at: self._read(memory[at : at + step], begin + at), starts))
        return self._checked(segment, memory)

    def read_ahead(self, segment: int, piece: int | None = None) -> Future[npt.NDArray[np.uint8]]:
        """Start to read a segment in one request, or one piece of it, a full one."""
        return self._pool.submit(self._read_at_once, segment, piece)

    def _read_at_once(self, segment: int, piece: int | None) -> npt.NDArray[np.uint8]:
        if piece is None:
            memory = aligned_empty(padded(self.sizes[segment]))
            self._read(memory, self._begin[segment])
            return self._checked(segment, memory)
        memory = aligned_empty(self.piece_bytes)
        self._read(memory, self._begin[segment] + piece * self.piece_bytes)
        self._check(memory, self._sums[segment][piece : piece + 1])
        return memory

    def _checked(self, segment: int, memory: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        self._check(memory, self._sums[segment])
        return memory[: self.sizes[segment]]

    def _check(self, memory: npt.NDArray[np.uint8], expected: npt.NDArray[np.uint64]) -> None:
        if not np.array_equal(self._sums_of(memory), expected):
            raise ChecksumMismatchError(
                f"what was spilled to {self._directory} came back changed: check the disk, and run again"
            )

    def _sums_of(self, memory: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
        """Checksums of pieces that follow each other, padded ones."""
        return np.array(
            [_sum(memory[at : at + self.piece_bytes]) for at in range(0, len(memory), self.piece_bytes)], np.uint64
        )

    def close(self) -> None:
        """Give the space back; safe to call twice."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._close()

    def _write(self, segment: int, piece: npt.NDArray[np.uint8], nbytes: int, offset: int) -> None:
        whole = piece[: padded(nbytes)]
        whole[nbytes:] = 0
        first, sums = (offset - self._begin[segment]) // self.piece_bytes, self._sums_of(whole)
        self._sums[segment][first : first + len(sums)] = sums
        view, done = whole.data, 0
        with self._stats.writing(nbytes):
            while done < len(whole):
                try:
                    done += os.pwrite(self._descriptor, view[done:], offset + done)
                except OSError as error:
                    raise self._explained(error) from error

    def _read(self, target: npt.NDArray[np.uint8], offset: int) -> None:
        done = 0
        with self._stats.reading(len(target)):
            while done < len(target):
                try:
                    count = os.preadv(self._descriptor, [target.data[done:]], offset + done)
                except OSError as error:
                    raise self._explained(error) from error
                if not count:
                    raise MachineError(f"what was spilled to {self._directory} is cut short: check the disk")
                done += count

    def _explained(self, error: OSError) -> MachineError:
        where = f"{self._directory} ({self.nbytes:,} bytes)"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return MachineError(f"the disk is full: no room to spill to {where}; free some, or set host_budget higher")
        return MachineError(f"spilling to {where} failed ({error.strerror}): check the disk")


class SpillWriter:
    """Buffers of all segments while they are filled side by side.

    Parameters
    ----------
    file : SpillFile
    """

    def __init__(self, file: SpillFile) -> None:
        self._file, num = file, len(file.sizes)
        memory = aligned_empty((num + SPARE_BUFFERS) * file.piece_bytes)
        self.buffers = memory.reshape(-1, file.piece_bytes)
        """(H + spares, piece_bytes) uint8."""
        self.buffer_H = np.arange(num)
        """(H,) buffer of each segment."""
        self.filled_H = np.zeros(num, np.int64)
        """(H,) bytes in it."""
        self._spare = deque(range(num, num + SPARE_BUFFERS))
        self._writing: deque[tuple[Future[None], int]] = deque()

    def flush(self, segment: int) -> None:
        """Send a segment's buffer to the disk and give it an empty one."""
        if not self._spare:
            self._finish_one()
        buffer = int(self.buffer_H[segment])
        future = self._file.write(segment, self.buffers[buffer], int(self.filled_H[segment]))
        self._writing.append((future, buffer))
        self.buffer_H[segment], self.filled_H[segment] = self._spare.popleft(), 0

    def finish(self) -> None:
        """Write what is left and wait for it."""
        for segment in np.flatnonzero(self.filled_H):
            self.flush(int(segment))
        while self._writing:
            self._finish_one()

    def _finish_one(self) -> None:
        future, buffer = self._writing.popleft()
        future.result()
        self._spare.append(buffer)


def _sum(piece: npt.NDArray[np.uint8]) -> np.uint64:
    total: np.uint64 = np.uint64(sum_words(piece.view(np.uint64)))
    return total


def _open_nameless(directory: Path) -> int:
    """Open a file without a name for direct I/O; buffered where the file system refuses that."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return open_nameless(directory, direct=True)
    except OSError as error:
        raise MachineError(f"no spill file can be made in {directory}: {error.strerror}") from error
