"""The checking mode of a graph on disk: a sample of the rows of each mini-batch beside the store's file."""

from __future__ import annotations

import os
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from kernels.tiered_rows import TieredRows
from storage.cache.checking import CHECKED_ROWS, checked_rows, compare_rows
from storage.errors import MachineError
from storage.graph_store import FEATURES, GraphStore

_TIERS = ("device tier", "host cache", "spill file")


class RowChecker:
    """Reads single rows past all buffers and checksums; threads may share one. Close it.

    Parameters
    ----------
    store : GraphStore
        With features.
    """

    def __init__(self, store: GraphStore) -> None:
        self._extent, self._path = store.extent(FEATURES), store.path
        self._descriptor = os.open(store.path, os.O_RDONLY | os.O_CLOEXEC)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        self._close = weakref.finalize(self, os.close, self._descriptor)

    def close(self) -> None:
        """Give the file's descriptor back; safe to call twice."""
        self._descriptor = -1  # its number may be another file's by the next check
        self._close()

    @property
    def nbytes(self) -> int:
        """Bytes of memory that a check takes."""
        return 4 * CHECKED_ROWS * self._extent.row_bytes

    def check(self, ids: IdArray, rows: TieredRows) -> None:
        """Compare a sample of a mini-batch's rows with the file's.

        Raises
        ------
        TierMismatchError
            If one differs.
        MachineError
            If the file cannot be read.
        """
        sample = checked_rows(ids)
        got = TieredRows(rows.tiers, rows.tier_n[sample], rows.slot_n[sample]).gather()
        expected = np.stack([self._row(int(node)) for node in ids[sample]]) if len(sample) else got
        compare_rows(expected, got, ids, sample, lambda row: _TIERS[int(rows.tier_n[row])])

    def _row(self, node: int) -> npt.NDArray[Any]:
        row_bytes = self._extent.row_bytes
        try:
            data = os.pread(self._descriptor, row_bytes, self._extent.offset + node * row_bytes)
        except OSError as error:
            raise MachineError(f"{self._path} cannot be read ({error.strerror}): check the disk") from error
        if len(data) < row_bytes:
            raise MachineError(f"{self._path} is cut short: check the disk, and the file with `garden verify`")
        return np.frombuffer(data, self._extent.dtype)
