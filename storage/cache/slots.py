"""Where a dynamic cache keeps its rows and its scores: in host memory here, on a GPU in `device_slots`."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kernels.cpu.gather import gather_rows
from kernels.rank_map import RankMap
from storage.cache.hotset import DynamicLayout, Ids

_COPIED_ROWS = 4096


class Slots(Protocol):
    """Rows of a dynamic cache, refilled by one thread while others read, and the scores that choose them."""

    num_nodes: int
    """Nodes of the graph."""
    score_N: Any
    """(N,) float64 scores, where accesses are seen."""

    def copied_scores(self) -> npt.NDArray[np.float64]:
        """The scores, all that were added included; nobody adds meanwhile."""

    def scored(self) -> None:
        """Note that scores were added to."""

    def fill(self, slots: npt.NDArray[np.int32], ids: Ids) -> None:
        """Bring the rows of `ids` into `slots`, which nobody reads."""

    def readable(self, rank_map: RankMap, slot_K: npt.NDArray[np.int32]) -> Any:
        """What readers of a generation read and keep: an object of its own, told from those of other generations."""


class HostSlots:
    """Slots in host memory.

    Parameters
    ----------
    host_ND : (N, D) array
        All rows; kept by reference.
    layout : DynamicLayout
    """

    def __init__(self, host_ND: npt.NDArray[Any], layout: DynamicLayout) -> None:
        self._host_ND, self.num_nodes = host_ND, len(host_ND)
        self._rows_SD = np.empty((layout.rows + layout.spare_rows, host_ND.shape[1]), host_ND.dtype)
        self.score_N = np.zeros(len(host_ND))

    def copied_scores(self) -> npt.NDArray[np.float64]:
        """A copy."""
        return self.score_N.copy()

    def scored(self) -> None:
        """Scores are in place when they were added."""

    def fill(self, slots: npt.NDArray[np.int32], ids: Ids) -> None:
        """Copy rows, some thousand at a time."""
        for first in range(0, len(ids), _COPIED_ROWS):
            part = slice(first, first + _COPIED_ROWS)
            rows_nD = np.empty((len(ids[part]), self._host_ND.shape[1]), self._host_ND.dtype)
            gather_rows((self._host_ND,), np.zeros(len(rows_nD), np.uint8), ids[part], rows_nD)
            self._rows_SD[slots[part]] = rows_nD

    def readable(self, _rank_map: RankMap, _slot_K: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
        """A view of all slots."""
        return self._rows_SD[:]
