"""The block buffer: blocks of one dataset in memory within a byte budget, read ahead asynchronously, LRU with pins."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType

import numpy as np
import numpy.typing as npt

from storage.blocks.extent import aligned_empty
from storage.blocks.reader import BlockReader
from storage.errors import BudgetError, MachineError

RUN_BYTES = 1 << 20
"""Consecutive blocks are read in one request of so many bytes; a larger block is a request of its own."""
DEFAULT_DEPTH = 4
"""Requests in flight: four of 1 MiB keep an NVMe disk busy."""
LEAST_BLOCKS = 2
_NOTHING = -1


class Lease:
    """One block while somebody uses it: it is pinned until the lease is released."""

    def __init__(self, buffer: BlockBuffer, entry: _Entry, block: int) -> None:
        self._buffer, self._entry, self.block = buffer, entry, block

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The block's bytes; the dataset's last block is as long as its data."""
        extent = self._buffer.extent
        nbytes = min(extent.block_bytes, extent.nbytes - self.block * extent.block_bytes)
        return self._entry.memory[:nbytes]

    def release(self) -> None:
        """Give the block back."""
        self._buffer.unpin(self._entry)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


@dataclass(slots=True, eq=False)
class _Entry:
    """A slot of the buffer and what it holds."""

    memory: npt.NDArray[np.uint8]
    block: int = _NOTHING
    pins: int = 0
    loaded: Future[None] = field(default_factory=Future)
    is_loading: bool = False
    """Whether it is still written to; `loaded` is done only a moment after this has been said to those who wait."""


class BlockBuffer:
    """Blocks of one dataset, at most `budget_bytes` of them; kept from one request to the next, oldest use out first.

    Threads may share one buffer. A block in use is never evicted: where all are, a request waits until one is given
    back.

    Parameters
    ----------
    reader : BlockReader
        Of the dataset.
    budget_bytes : int
        Memory for blocks; two blocks are the least.
    depth : int
        Read requests in flight at most.
    stall_timeout_s : float
        Give up when all blocks have been pinned and nothing has changed for so long.

    Raises
    ------
    BudgetError
        If two blocks do not fit the budget.
    """

    def __init__(
        self, reader: BlockReader, budget_bytes: int, *, depth: int = DEFAULT_DEPTH, stall_timeout_s: float = 600.0
    ) -> None:
        self.reader, self.extent, self._stall_timeout_s = reader, reader.extent, stall_timeout_s
        block_bytes = self.extent.block_bytes
        if budget_bytes < LEAST_BLOCKS * block_bytes:
            raise BudgetError(
                f"a buffer of {budget_bytes} bytes does not hold {LEAST_BLOCKS} blocks of {self.extent.name}: "
                f"give it at least {LEAST_BLOCKS * block_bytes} bytes, or lay the store out in smaller blocks"
            )
        self.num_slots = max(1, min(budget_bytes // block_bytes, max(LEAST_BLOCKS, self.extent.num_blocks)))
        self.depth = depth
        memory = aligned_empty(self.num_slots * block_bytes)
        self._free = [_Entry(memory[at : at + block_bytes]) for at in range(0, len(memory), block_bytes)]
        self._held: OrderedDict[int, _Entry] = OrderedDict()
        self._changed = threading.Condition()
        self._run_blocks = max(1, min(RUN_BYTES // block_bytes, self.num_slots // 2))
        self._pool = ThreadPoolExecutor(depth, thread_name_prefix="block-buffer")

    @property
    def nbytes(self) -> int:
        """Bytes of memory for blocks."""
        return self.num_slots * self.extent.block_bytes

    def close(self) -> None:
        """End the reading threads, and give the file's descriptor back."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.reader.close()

    def serve(self, blocks: npt.NDArray[np.int64], *, ascending: bool = False) -> Iterator[Lease]:
        """Serve some blocks: those in memory first, then the others in ascending order, read ahead.

        Parameters
        ----------
        blocks : (n,) int64
            Strictly ascending.
        ascending : bool
            Keep the order of `blocks`, those in memory too.

        Yields
        ------
        Lease
            To be released by whoever gets it, in any thread.

        Raises
        ------
        StorageError, MachineError
            A block is damaged or cannot be read, or none is given back for long.
        """
        order = blocks.tolist() if ascending else self._held_first(blocks.tolist())
        ready: deque[_Entry] = deque()
        flying: list[Future[None]] = []
        position = 0
        try:
            while position < len(order) or ready:
                flying = [future for future in flying if not future.done()]
                while position < len(order) and len(flying) < self.depth:
                    taken, future = self._take(order, position, wait=not ready)
                    if not taken:
                        break
                    ready.extend(taken)
                    position += len(taken)
                    flying += [future] if future is not None else []
                # Asked for at least one above: with nothing ready it waited.
                ready[0].loaded.result()
                entry = ready.popleft()
                yield Lease(self, entry, entry.block)
        finally:
            for entry in ready:
                self.unpin(entry)

    def unpin(self, entry: _Entry) -> None:
        """End one use of a block."""
        with self._changed:
            entry.pins -= 1
            if not entry.pins and entry.block == _NOTHING:  # it could not be read
                self._free.append(entry)
            self._changed.notify_all()

    def _held_first(self, blocks: list[int]) -> list[int]:
        with self._changed:
            held = [block for block in blocks if block in self._held]
            return held + [block for block in blocks if block not in self._held]

    def _take(self, order: list[int], position: int, *, wait: bool) -> tuple[list[_Entry], Future[None] | None]:
        """Pin the block at `position` where it is held, else start to read it and those that follow it on the disk.

        Nothing is taken where all blocks are pinned, unless told to wait.
        """
        with self._changed:
            while True:
                entry = self._held.get(order[position])
                if entry is not None:
                    entry.pins += 1
                    self._held.move_to_end(entry.block)
                    self.reader.stats.served(1, 0)
                    return [entry], None
                entries = self._claim(self._run(order, position))
                if entries:
                    break
                if not wait:
                    return [], None
                if not self._changed.wait(self._stall_timeout_s):
                    raise MachineError(
                        f"no block of {self.extent.name} was given back for {self._stall_timeout_s:g} s: reading "
                        f"{self.reader.path} is stalled; is the disk, or the machine, overloaded?"
                    )
            self.reader.stats.served(0, len(entries))
            future = self._pool.submit(self._load, entries)
            for entry in entries:
                entry.loaded, entry.is_loading = future, True
            return entries, future

    def _run(self, order: list[int], position: int) -> list[int]:
        """Blocks of one request: from `position` on, consecutive on the disk and not held."""
        first, run = order[position], [order[position]]
        for block in order[position + 1 : position + self._run_blocks]:
            if block != first + len(run) or block in self._held:
                break
            run.append(block)
        return run

    def _claim(self, run: list[int]) -> list[_Entry]:
        """Slots for as many blocks of a run as there is room for; the longest unused ones lose theirs."""
        # A block may still be on its way for somebody who has left: not pinned, but written to.
        unused = (entry for entry in self._held.values() if not entry.pins and not entry.is_loading)
        claimed = [self._free.pop() for _ in run[: len(self._free)]]
        claimed += list(islice(unused, len(run) - len(claimed)))
        for entry, block in zip(claimed, run, strict=False):
            self._held.pop(entry.block, None)
            entry.block, entry.pins = block, 1
            self._held[block] = entry
        return claimed

    def _load(self, entries: list[_Entry]) -> None:
        try:
            self.reader.read_into(entries[0].block, [entry.memory for entry in entries])
        except BaseException:
            self._end_loading(entries, failed=True)
            raise
        self._end_loading(entries, failed=False)

    def _end_loading(self, entries: list[_Entry], *, failed: bool) -> None:
        with self._changed:
            for entry in entries:
                entry.is_loading = False
                if failed:  # whoever waits for it gets the error, a later request reads it again
                    self._held.pop(entry.block, None)
                    entry.block = _NOTHING
                    self._free += [] if entry.pins else [entry]
            self._changed.notify_all()
