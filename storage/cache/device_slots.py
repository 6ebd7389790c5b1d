"""Rows and scores of a dynamic cache on a GPU; updates have a stream of their own."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from kernels.cuda.host_rows import HostRows
from kernels.cuda.launch import DeviceLauncher
from kernels.cuda.tiers import DynamicRows
from kernels.rank_map import RankMap
from storage.cache.hotset import DynamicLayout, Ids

_STREAM: Final = "update"
_COPIED_BYTES = 16 << 20


class DeviceSlots:
    """Slots on a GPU.

    Parameters
    ----------
    launcher : DeviceLauncher
    host_rows : HostRows
        All rows.
    layout : DynamicLayout
        Its bytes are taken on the device, and 8 bytes a node of scores beside them.
    """

    def __init__(self, launcher: DeviceLauncher, host_rows: HostRows, layout: DynamicLayout) -> None:
        self._launcher, self._host_rows, self.num_nodes = launcher, host_rows, host_rows.num_rows
        with launcher.on(_STREAM):
            self._rows_SD = launcher.xp.empty((layout.rows + layout.spare_rows, host_rows.width), host_rows.dtype)
            self.score_N = launcher.xp.zeros(self.num_nodes, np.float64)
            self._scored = launcher.record()
        self._piece_rows = max(1, _COPIED_BYTES // layout.row_bytes)

    def copied_scores(self) -> npt.NDArray[np.float64]:
        """A copy in host memory; waits for all that was added."""
        with self._launcher.on(_STREAM):
            self._launcher.wait(self._scored)
            scores: npt.NDArray[np.float64] = self._launcher.to_host(self.score_N)  # synchronize!
            return scores

    def scored(self) -> None:
        """Let the next copy wait for what this thread's stream has been given so far."""
        self._scored = self._launcher.record()

    def fill(self, slots: npt.NDArray[np.int32], ids: Ids) -> None:
        """Bring rows in, a piece at a time; those who read them wait by `DynamicRows.ready`."""
        launcher = self._launcher
        with launcher.on(_STREAM):
            for first in range(0, len(ids), self._piece_rows):
                part = slice(first, first + self._piece_rows)
                rows_nD = self._host_rows.fetch(launcher.to_device(ids[part]))
                self._rows_SD[launcher.to_device(slots[part].astype(np.int64))] = rows_nD

    def readable(self, rank_map: RankMap, slot_K: npt.NDArray[np.int32]) -> DynamicRows:
        """Maps of one generation on the device, over all slots."""
        launcher = self._launcher
        with launcher.on(_STREAM):
            bits, rank, slots = (launcher.to_device(part) for part in (rank_map.bits, rank_map.rank, slot_K))
            return DynamicRows(bits, rank, slots, self._rows_SD, launcher.record())
