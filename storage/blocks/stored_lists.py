"""Reads sampled parts of lists that lie in the blocks of a dataset: bucket the rows by block, serve each block once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu.draw import Shuffle, new_shuffle
from kernels.cpu.stored_lists import bucket_rows, fill_from_block
from kernels.cpu.superbatch import full_limit
from kernels.mfg import IdArray
from storage.blocks.buffer import BlockBuffer, Lease
from storage.errors import StorageError

I64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ListRequest:
    """Which parts of which lists to read: all of each, or `fanout` entries drawn from it."""

    uniq: IdArray
    """(U,) node of each row, batch after batch."""
    uniq_ptr: I64Array
    """(K + 1,) where each batch begins."""
    begin_U: I64Array
    """(U,) first entry of each list in the dataset; negative where it lies elsewhere."""
    degree_U: I64Array
    """(U,) entries of each list."""
    fanout: int
    """Entries to draw; -1 takes all."""
    stream_keys: npt.NDArray[np.uint64]
    """(K,) stream of each batch."""
    replace: bool = False
    """Draw with replacement."""

    @property
    def limit(self) -> int:
        """Length up to which a list is taken whole."""
        return full_limit(self.fanout, self.replace)

    def row_ptr(self) -> I64Array:
        """(U + 1,) offsets of each row's entries in what is read."""
        count_U = (
            self.degree_U if self.fanout < 0 else np.where(self.degree_U <= self.limit, self.degree_U, self.fanout)
        )
        row_ptr = np.zeros(len(count_U) + 1, np.int64)
        np.cumsum(count_U, out=row_ptr[1:])
        return row_ptr


class ListReader:
    """Fills rows from a block buffer; any number of threads may share one.

    Parameters
    ----------
    buffer : BlockBuffer
        Of a dataset of one-dimensional integers.
    pool : ThreadPoolExecutor
        Threads that take neighbors out of blocks while others are being read.
    lowest, end : int
        Every value that is used must lie in [lowest, end).
    """

    def __init__(self, buffer: BlockBuffer, pool: ThreadPoolExecutor, *, lowest: int, end: int) -> None:
        self.buffer, self._pool, self._range = buffer, pool, (lowest, end)
        self._block_entries = buffer.extent.block_bytes // buffer.extent.dtype.itemsize
        self._scratch = threading.local()

    def read(
        self,
        request: ListRequest,
        row_ptr: I64Array,
        out: IdArray,
        ids: I64Array,
        *,
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Fill the rows whose lists lie in the dataset; rows of other lists are left as they are.

        Parameters
        ----------
        request : ListRequest
        row_ptr : (U + 1,) int64
            Where each row goes in `out`.
        out : (n,) array of the dataset's type
        ids : (n,) int64, or empty
            Receives the entries' positions in the dataset.
        check_stop : callable
            Called from block to block; raises where nobody wants the rows any more.

        Raises
        ------
        StorageError, MachineError
            If a block is damaged or cannot be read, or holds a value that is out of range.
        """
        rows, block_ptr = self._bucket(request)
        blocks = np.flatnonzero(np.diff(block_ptr))
        fills: deque[Future[None]] = deque()
        try:
            for lease in self.buffer.serve(blocks):
                piece = rows[block_ptr[lease.block] : block_ptr[lease.block + 1]]
                fills.append(self._pool.submit(self._fill, lease, piece, request, row_ptr, out, ids))
                while fills and fills[0].done():
                    fills.popleft().result()
                check_stop()  # only now: the lease has an owner
        finally:
            errors = [error for fill in fills if (error := fill.exception()) is not None]  # waits for all of them
        if errors:
            raise errors[0]

    def fill_from_memory(
        self,
        request: ListRequest,
        rows: I64Array,
        data: IdArray,
        row_ptr: I64Array,
        out: IdArray,
        ids: I64Array,
    ) -> None:
        """Fill some rows from lists in memory: `request.begin_U` counts in `data`, which was checked before."""
        fill_from_block(
            rows, data, 0,
            request.uniq, request.uniq_ptr, request.begin_U, request.degree_U, row_ptr,
            request.limit, request.fanout, request.stream_keys, request.replace, self._shuffle(),
            *self._range, out, ids,
        )  # fmt: skip

    def _bucket(self, request: ListRequest) -> tuple[I64Array, I64Array]:
        """Rows sorted by block, and where each block's begin."""
        block_ptr, none = np.zeros(self.buffer.extent.num_blocks + 1, np.int64), np.empty(0, np.int64)
        self._bucket_into(request, block_ptr, none)
        np.cumsum(block_ptr, out=block_ptr)
        rows, cursor = np.empty(block_ptr[-1], np.int64), block_ptr.copy()
        if len(rows):
            self._bucket_into(request, cursor, rows)
        return rows, block_ptr

    def _bucket_into(self, request: ListRequest, count_B: I64Array, rows: I64Array) -> None:
        bucket_rows(
            request.uniq, request.uniq_ptr, request.begin_U, request.degree_U, request.limit, request.fanout,
            request.stream_keys, request.replace, self._shuffle(), self._block_entries, count_B, rows,
        )  # fmt: skip

    def _fill(
        self, lease: Lease, rows: I64Array, request: ListRequest, row_ptr: I64Array, out: IdArray, ids: I64Array
    ) -> None:
        extent = self.buffer.extent
        with lease:
            data: Any = lease.data.view(extent.dtype)
            wrong = fill_from_block(
                rows, data, lease.block * self._block_entries,
                request.uniq, request.uniq_ptr, request.begin_U, request.degree_U, row_ptr,
                request.limit, request.fanout, request.stream_keys, request.replace, self._shuffle(),
                *self._range, out, ids,
            )  # fmt: skip
            if wrong >= 0:
                value = data[wrong - lease.block * self._block_entries]
                raise StorageError(
                    f"{self.buffer.reader.path} is damaged or crafted: {extent.name} holds {value} at position {wrong},"
                    f" outside [{self._range[0]}, {self._range[1]}); delete it and run again"
                )

    def _shuffle(self) -> Shuffle:
        if not hasattr(self._scratch, "shuffle"):
            self._scratch.shuffle = new_shuffle()
        shuffle: Shuffle = self._scratch.shuffle
        return shuffle
