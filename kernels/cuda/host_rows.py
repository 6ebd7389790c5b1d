"""Feature rows in host memory, as the device fetches them: through UVA where they are pinned, else copied."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from kernels.cpu.gather import gather_rows as gather_on_cpu
from kernels.cuda.gather import TierTable, gather_rows
from kernels.cuda.launch import Array, Launcher

_PIECE_BYTES = 8 << 20


class HostRows(Protocol):
    """All rows in host memory."""

    num_rows: int
    """N."""
    width: int
    """Elements of a row."""
    dtype: np.dtype[Any]
    """Of an element."""
    in_reach: Any
    """The rows as kernels read them where they lie; without a row where they cannot."""

    def fetch(self, ids: Array) -> Array:
        """(n, D) rows on the device of (n,) int64 ids there."""


class PinnedRows:
    """Rows that kernels read through UVA.

    Parameters
    ----------
    launcher : Launcher
    host_ND : (N, D) array
        Within reach of the device and never written.
    """

    def __init__(self, launcher: Launcher, host_ND: Any) -> None:
        self._launcher, self.in_reach = launcher, host_ND
        self.num_rows, self.width, self.dtype = len(host_ND), host_ND.shape[1], host_ND.dtype
        self._table = TierTable.of(launcher, [host_ND])

    def fetch(self, ids: Array) -> Array:
        """Read them in one launch; does not wait."""
        xp = self._launcher.xp
        out_nD = xp.empty((len(ids), self.width), self.dtype)
        gather_rows(self._launcher, self._table, xp.zeros(len(ids), np.uint8), ids, out_nD)
        return out_nD


class PageableRows:
    """Rows that kernels cannot reach: the CPU collects them, a piece at a time, and copies each piece to the device.

    Parameters
    ----------
    launcher : Launcher
    host_ND : (N, D) array
        Never written.
    """

    def __init__(self, launcher: Launcher, host_ND: Any) -> None:
        self._launcher, self._host_ND, self.in_reach = launcher, host_ND, host_ND[:0]
        self.num_rows, self.width, self.dtype = len(host_ND), host_ND.shape[1], host_ND.dtype
        self._piece_rows = max(1, _PIECE_BYTES // max(1, self.width * self.dtype.itemsize))

    def fetch(self, ids: Array) -> Array:
        """Collect and copy them; waits for the ids."""
        launcher, out_nD = self._launcher, self._launcher.xp.empty((len(ids), self.width), self.dtype)
        host_ids = launcher.to_host(ids)  # synchronize!
        for begin in range(0, len(host_ids), self._piece_rows):
            part = host_ids[begin : begin + self._piece_rows]
            rows_nD = np.empty((len(part), self.width), self.dtype)
            gather_on_cpu((self._host_ND,), np.zeros(len(part), np.uint8), part, rows_nD)
            out_nD[begin : begin + len(part)] = launcher.to_device(rows_nD)
        return out_nD
