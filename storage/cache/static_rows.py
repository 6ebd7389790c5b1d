"""The rows that the plan puts on the device, and where each row is then found."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu.gather import gather_rows
from kernels.cpu.resolve import HOST, resolve_rows
from kernels.mfg import IdArray
from kernels.rank_map import RankMap

Rows = npt.NDArray[Any]
TierArray = npt.NDArray[np.uint8]
SlotArray = npt.NDArray[np.int64]


class StaticRows:
    """A copy of some rows; on a CPU it stands in for the device.

    Parameters
    ----------
    host_ND : (N, D) array of any dtype
        All rows, each one contiguous.
    ids : (C,) int64
        Nodes whose rows to hold, strictly ascending; may be empty.

    Raises
    ------
    ValueError
        If the ids do not ascend within [0, N).
    """

    def __init__(self, host_ND: Rows, ids: SlotArray) -> None:
        # Without rows there is no map either: its bytes would not pay.
        self._num_nodes = len(host_ND)
        self._map = RankMap.from_sorted_ids(ids, len(host_ND)) if len(ids) else None
        self.rows_CD: Rows = np.empty((len(ids), host_ND.shape[1]), host_ND.dtype)
        """(C, D) the rows."""
        copy_rows(host_ND, ids, self.rows_CD)

    def resolve(self, ids: IdArray) -> tuple[TierArray, SlotArray, npt.NDArray[np.int32]]:
        """Tier, slot, and the positions of the rows in host memory.

        Parameters
        ----------
        ids : (n,) int32 or int64

        Raises
        ------
        ValueError
            If an id lies outside [0, N); the message names the first.
        """
        self._check_range(ids)
        if self._map is None:
            return np.full(len(ids), HOST, np.uint8), ids.astype(np.int64), np.arange(len(ids), dtype=np.int32)
        tier_n, slot_n = np.empty(len(ids), np.uint8), np.empty(len(ids), np.int64)
        missed = np.empty(len(ids) + 1, np.int32)
        contiguous: npt.NDArray[Any] = np.ascontiguousarray(ids)
        num_missed = resolve_rows(self._map.bits, self._map.rank, contiguous, tier_n, slot_n, missed)
        return tier_n, slot_n, missed[:num_missed]

    def _check_range(self, ids: IdArray) -> None:
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self._num_nodes):
            wrong = ids[(ids < 0) | (ids >= self._num_nodes)][0]
            raise ValueError(f"node {wrong} is outside [0, {self._num_nodes})")


def copy_rows(source_ND: Rows, ids: SlotArray, out_nD: Rows) -> None:
    """Copy some rows, in the order of `ids`."""
    gather_rows((source_ND,), np.zeros(len(ids), np.uint8), ids, out_nD)
