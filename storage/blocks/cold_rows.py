"""Rows that no tier in memory holds, on their way from feature blocks to the spill file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu.scatter import append_rows
from kernels.mfg import IdArray
from kernels.rank_map import RankMap
from storage.blocks.spill import SpillFile, SpillWriter


@dataclass(frozen=True, slots=True)
class ColdIds:
    """Rows to spill."""

    ids: IdArray
    """(n,) node of each, ascending within a mini-batch."""
    ptr: npt.NDArray[np.int64]
    """(H + 1,) where each mini-batch begins."""


def cold_ids(batches: Sequence[IdArray], cached: RankMap, device: RankMap | None) -> ColdIds:
    """Nodes of each mini-batch that neither the host cache nor the device tier holds.

    Parameters
    ----------
    batches : H arrays of integer ids
        Each id once.
    cached : RankMap
    device : RankMap, optional
    """
    ids: Any = np.empty(
        sum(map(len, batches)), batches[0].dtype if batches else np.int64
    )  # pages that are not needed stay untouched
    ends = [0]
    for batch in batches:
        held = cached.slots(batch) >= 0
        if device is not None:
            held |= device.slots(batch) >= 0
        cold = batch[~held]
        cold.sort()
        ends.append(ends[-1] + len(cold))
        ids[ends[-2] : ends[-1]] = cold
    return ColdIds(ids[: ends[-1]], np.array(ends, np.int64))


class SpillSink:
    """Appends what comes of the rows, block by block, every mini-batch at its own place in its ids.

    Parameters
    ----------
    spill : SpillFile
        A segment for each mini-batch.
    cold : ColdIds
    row_bytes : int
    """

    def __init__(self, spill: SpillFile, cold: ColdIds, row_bytes: int) -> None:
        self._writer, self._row_bytes, self._ids = SpillWriter(spill), row_bytes, cold.ids
        self._cursor_H, self._end_H = cold.ptr[:-1].copy(), cold.ptr[1:].copy()
        self._done_H = np.zeros(len(self._end_H), np.int64)

    def append(self, data: npt.NDArray[np.uint8], first_byte: int) -> None:
        """Take what a block, whose first byte is given, holds of the rows; blocks ascend."""
        writer, batch = self._writer, 0
        while True:
            batch = append_rows(
                data, first_byte, self._ids, self._row_bytes, self._cursor_H, self._end_H, self._done_H,
                writer.buffers, writer.buffer_H, writer.filled_H, batch,
            )  # fmt: skip
            if batch == len(self._cursor_H):
                return
            writer.flush(batch)

    def finish(self) -> None:
        """Write what is left, and wait for it."""
        self._writer.finish()
        assert np.array_equal(self._cursor_H, self._end_H), "a needed block was not served"
