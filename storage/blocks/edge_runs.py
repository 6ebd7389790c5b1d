"""Edges of a tile of destinations, put in the order of their sources' windows: in memory, or by way of the disk.

A window is `2**shift` consecutive slots, so that an edge is the slot within it (2 bytes) and its destination (4 bytes).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kernels.cpu.streamed import buffer_by_window, count_by_window, place_by_window
from kernels.mfg import IdArray
from storage.blocks.extent import aligned_empty
from storage.blocks.io_stats import IoStats
from storage.blocks.spill import SPARE_BUFFERS, SpillFile

I64Array = npt.NDArray[np.int64]
Run = tuple[npt.NDArray[np.uint16], npt.NDArray[np.int32]]
"""Slots within the window, and destinations."""

RUN_EDGE_BYTES = 6
MOST_SHIFT = 16
_MARKS_A_WINDOW = 6
_MOST_MARK_BITS = 16
_AHEAD = 3
SEGMENT_BYTES = 64
"""What is known in memory of each buffer that was written: its checksum, its number."""
BUFFERS_AT_WORK = SPARE_BUFFERS + _AHEAD + 2
"""Buffers beside one a window: on their way to the disk, or back."""


class Windows:
    """How the slots of a layer's source rows are cut, and which of them edges name.

    Parameters
    ----------
    num_slots, shift : int
    """

    def __init__(self, num_slots: int, shift: int) -> None:
        self.shift, self.num_slots = shift, num_slots
        self.count = -(-num_slots // (1 << shift))
        most = max(0, (max(1, num_slots) - 1).bit_length() - _MOST_MARK_BITS)
        self._mark_shift = max(0, shift - _MARKS_A_WINDOW, most)
        self._marks = np.zeros(-(-num_slots // (1 << self._mark_shift)), np.bool_)
        self.edges_W: I64Array = np.zeros(self.count, np.int64)
        """(count,) edges from each."""

    def clear(self) -> None:
        """Forget all edges."""
        self._marks.fill(False)
        self.edges_W.fill(0)

    def add(self, slots: IdArray) -> None:
        """Count edges from some slots."""
        count_by_window(slots, self.shift, self.edges_W, self._mark_shift, self._marks)

    def ranges(self) -> tuple[I64Array, I64Array]:
        """First and last slots, the latter included, of narrow ranges that hold all slots that were named."""
        first = np.flatnonzero(self._marks) << self._mark_shift
        return first, np.minimum(first + (1 << self._mark_shift), self.num_slots) - 1


class EdgeRuns(Protocol):
    """Edges that are added in the order of their destinations and read window by window."""

    windows: Windows
    """What was added."""

    def has_room(self, num_edges: int) -> bool:
        """Whether so many edges may be added."""

    def add(self, slots: IdArray, targets: npt.NDArray[np.int32]) -> None:
        """Add edges."""

    def finish(self) -> None:
        """Get ready to be read: nothing is added any more."""

    def read(self, window: int) -> Iterator[Run]:
        """Edges from a window, in the order in which they were added."""

    def clear(self) -> None:
        """Begin anew."""

    def close(self) -> None:
        """Give disk space back."""


class MemoryRuns:
    """Runs that memory holds.

    Parameters
    ----------
    windows : Windows
    capacity : int
        Most edges.
    id_dtype : numpy.dtype
        Holds any slot.
    """

    def __init__(self, windows: Windows, capacity: int, id_dtype: np.dtype[Any]) -> None:
        self.windows, self._capacity = windows, capacity
        self._slots: Any = np.empty(capacity, id_dtype)
        self._targets = np.empty(capacity, np.int32)
        self._by_window: Run = np.empty(capacity, np.uint16), np.empty(capacity, np.int32)
        self._end_W = np.empty(0, np.int64)
        self._num_edges = 0

    def has_room(self, num_edges: int) -> bool:
        """As `EdgeRuns.has_room`."""
        return self._num_edges + num_edges <= self._capacity

    def add(self, slots: IdArray, targets: npt.NDArray[np.int32]) -> None:
        """As `EdgeRuns.add`."""
        part = slice(self._num_edges, self._num_edges + len(slots))
        self._slots[part], self._targets[part] = slots, targets
        self.windows.add(slots)
        self._num_edges += len(slots)

    def finish(self) -> None:
        """As `EdgeRuns.finish`."""
        cursor_W = np.cumsum(self.windows.edges_W) - self.windows.edges_W
        slots, targets = self._slots[: self._num_edges], self._targets[: self._num_edges]
        place_by_window(slots, targets, self.windows.shift, cursor_W, *self._by_window)
        self._end_W = cursor_W

    def read(self, window: int) -> Iterator[Run]:
        """As `EdgeRuns.read`."""
        end = int(self._end_W[window])
        part = slice(end - int(self.windows.edges_W[window]), end)
        yield self._by_window[0][part], self._by_window[1][part]

    def clear(self) -> None:
        """As `EdgeRuns.clear`."""
        self.windows.clear()
        self._num_edges = 0

    def close(self) -> None:
        """As `EdgeRuns.close`."""


class SpilledRuns:
    """Runs on disk: a buffer a window, written when it is full, so that each edge is written and read once.

    Parameters
    ----------
    windows : Windows
    num_edges : int
        As many as will be added.
    buffer_bytes : int
        A multiple of 4096.
    directory : Path
    stats : IoStats

    Raises
    ------
    MachineError
        If the disk is full.
    """

    def __init__(self, windows: Windows, num_edges: int, buffer_bytes: int, directory: Path, stats: IoStats) -> None:
        self.windows, self._buffer_bytes = windows, buffer_bytes
        self._room = buffer_bytes // RUN_EDGE_BYTES
        num_buffers = windows.count + SPARE_BUFFERS
        self._memory = aligned_empty(num_buffers * buffer_bytes).reshape(num_buffers, buffer_bytes)
        self._slots, self._targets = self._views(self._memory)
        self._buffer_W, self._filled_W = np.arange(windows.count), np.zeros(windows.count, np.int64)
        self._spare = deque(range(windows.count, num_buffers))
        self._writing: deque[tuple[Future[None], int]] = deque()
        self._pieces_W: list[list[int]] = [[] for _ in range(windows.count)]
        self._next = 0
        most_bytes = buffer_bytes * spilled_buffers(num_edges, windows.count, buffer_bytes)
        self._file = SpillFile(directory, [most_bytes], buffer_bytes, stats)

    def has_room(self, num_edges: int) -> bool:
        """As `EdgeRuns.has_room`."""
        return True

    def add(self, slots: IdArray, targets: npt.NDArray[np.int32]) -> None:
        """As `EdgeRuns.add`."""
        self.windows.add(slots)
        at, full = 0, -1
        while True:
            at, full = buffer_by_window(
                slots, targets, at, self.windows.shift, self._buffer_W, self._filled_W, self._slots, self._targets
            )
            if full < 0:
                return
            self._flush(full)

    def finish(self) -> None:
        """As `EdgeRuns.finish`."""
        for window in np.flatnonzero(self._filled_W):
            self._flush(int(window))
        while self._writing:
            self._finish_one()

    def read(self, window: int) -> Iterator[Run]:
        """As `EdgeRuns.read`."""
        left, flying = int(self.windows.edges_W[window]), deque[Future[npt.NDArray[np.uint8]]]()
        for piece in [*self._pieces_W[window], *[None] * _AHEAD]:
            if piece is not None:
                flying.append(self._file.read_ahead(0, piece))
            if flying and (piece is None or len(flying) > _AHEAD):
                slots, targets = self._views(flying.popleft().result()[None])
                count = min(left, self._room)
                left -= count
                yield slots[0, :count], targets[0, :count]

    def clear(self) -> None:
        """As `EdgeRuns.clear`: never needed, for there is always room."""
        raise NotImplementedError

    def close(self) -> None:
        """As `EdgeRuns.close`."""
        self._file.close()

    def _views(self, memory: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int32]]:
        """Where slots and destinations lie in (n, buffer_bytes) memory: destinations first."""
        middle, end = 4 * self._room, RUN_EDGE_BYTES * self._room
        return memory[:, middle:end].view(np.uint16), memory[:, :middle].view(np.int32)

    def _flush(self, window: int) -> None:
        if not self._spare:
            self._finish_one()
        buffer = int(self._buffer_W[window])
        self._writing.append((self._file.write(0, self._memory[buffer], self._buffer_bytes), buffer))
        self._pieces_W[window].append(self._next)
        self._next += 1
        self._buffer_W[window], self._filled_W[window] = self._spare.popleft(), 0

    def _finish_one(self) -> None:
        future, buffer = self._writing.popleft()
        future.result()
        self._spare.append(buffer)


def spilled_buffers(num_edges: int, num_windows: int, buffer_bytes: int) -> int:
    """Most buffers that `SpilledRuns` writes: full ones, and one a window that is not."""
    return num_edges // (buffer_bytes // RUN_EDGE_BYTES) + min(num_windows, num_edges)
