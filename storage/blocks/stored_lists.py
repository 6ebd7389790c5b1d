"""Reads sampled parts of lists that lie in the blocks of a dataset: bucket the rows by block, serve each block once.

Whoever visits a row draws its positions anew, which spares holding them; not so for wide rows (`wide_rows.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu.draw import Shuffle, new_shuffle
from kernels.cpu.stored_lists import bucket_rows, fill_from_block
from kernels.mfg import IdArray
from storage.blocks.buffer import BlockBuffer, Lease
from storage.blocks.list_request import ListRequest
from storage.blocks.wide_rows import WideRows, wide_groups, wide_rows
from storage.errors import StorageError

I64Array = npt.NDArray[np.int64]


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
        wide = wide_rows(request, self._block_entries)
        if len(wide):
            begin_U = request.begin_U.copy()
            begin_U[wide] = -1
            self._read_wide(request, wide, row_ptr, out, ids, check_stop)
            request = replace(request, begin_U=begin_U)
        rows, block_ptr = self._bucket(request)

        def fill(lease: Lease) -> None:
            self._fill(lease, rows[block_ptr[lease.block] : block_ptr[lease.block + 1]], request, row_ptr, out, ids)

        self._serve(np.flatnonzero(np.diff(block_ptr)), fill, check_stop)

    def _serve(self, blocks: I64Array, fill: Callable[[Lease], None], check_stop: Callable[[], None]) -> None:
        """Read blocks, and take out of each what is wanted while others are being read."""
        fills: deque[Future[None]] = deque()
        try:
            for lease in self.buffer.serve(blocks):
                fills.append(self._pool.submit(fill, lease))
                while fills and fills[0].done():
                    fills.popleft().result()
                check_stop()  # only now: the lease has an owner
        finally:
            errors = [error for one in fills if (error := one.exception()) is not None]  # waits for all of them
        if errors:
            raise errors[0]

    def _read_wide(
        self,
        request: ListRequest,
        wide: I64Array,
        row_ptr: I64Array,
        out: IdArray,
        ids: I64Array,
        check_stop: Callable[[], None],
    ) -> None:
        """Fill wide rows, some at a time."""
        for rows in wide_groups(wide, request.fanout):
            self._read_drawn(WideRows.drawn(request, rows, self._block_entries), row_ptr, out, ids, check_stop)

    def _read_drawn(
        self, wide: WideRows, row_ptr: I64Array, out: IdArray, ids: I64Array, check_stop: Callable[[], None]
    ) -> None:
        def fill(lease: Lease) -> None:
            with lease:
                data: Any = lease.data.view(self.buffer.extent.dtype)
                self._check(lease, data, wide.fill(lease.block, data, row_ptr, self._range, out, ids))

        self._serve(wide.blocks, fill, check_stop)

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
            self._check(lease, data, int(wrong))

    def _check(self, lease: Lease, data: IdArray, wrong: int) -> None:
        """Refuse a value that a fill found to be wrong, by its position."""
        if wrong >= 0:
            value = data[wrong - lease.block * self._block_entries]
            raise StorageError(
                f"{self.buffer.reader.path} is damaged or crafted: {self.buffer.extent.name} holds {value} at position "
                f"{wrong}, outside [{self._range[0]}, {self._range[1]}); delete it and run again"
            )

    def _shuffle(self) -> Shuffle:
        if not hasattr(self._scratch, "shuffle"):
            self._scratch.shuffle = new_shuffle()
        shuffle: Shuffle = self._scratch.shuffle
        return shuffle
