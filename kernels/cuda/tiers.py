"""Feature rows in device memory, two caches under one budget, over host memory that the device reads through UVA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kernels.cuda.gather import DEVICE, DYNAMIC, HOST, TierTable, gather_rows
from kernels.cuda.launch import Array, Launcher, exclusive_sum, launch
from kernels.cuda.source import Kernel, c_type
from kernels.cuda.unique import unique_nodes
from kernels.mfg import IdArray, TierReads
from kernels.rank_map import RankMap


class _Resident:
    """Rows of some nodes in device memory."""

    def __init__(self, launcher: Launcher, host_ND: Any, ids: IdArray) -> None:
        xp, num_nodes = launcher.xp, len(host_ND)
        self.is_empty = not len(ids)
        rank_map = RankMap.from_sorted_ids(ids, num_nodes)
        words = (np.zeros(1, np.uint64), np.zeros(1, np.uint32)) if self.is_empty else (rank_map.bits, rank_map.rank)
        self.bits, self.rank = (launcher.to_device(array) for array in words)
        self.rows_CD = xp.empty((len(ids), host_ND.shape[1]), host_ND.dtype)
        source = TierTable.of(launcher, [host_ND])
        slots = launcher.to_device(np.asarray(ids, np.int64))
        gather_rows(launcher, source, xp.zeros(len(ids), np.uint8), slots, self.rows_CD)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return (
            int(self.rows_CD.nbytes)
            if self.is_empty
            else int(self.rows_CD.nbytes + self.bits.nbytes + self.rank.nbytes)
        )


class DeviceTiers:
    """Feature rows in three tiers: a cache of planned rows, a cache that changes, and the full array in host memory.

    Threads must not share one object.

    Parameters
    ----------
    launcher : Launcher
    host_ND : (N, D) array
        All rows, within reach of the device and never written.
    plan_ids : (C,) integer
        Nodes whose rows stay on the device, strictly ascending; may be empty.
    """

    def __init__(self, launcher: Launcher, host_ND: Any, plan_ids: IdArray) -> None:
        self._launcher, self._host_ND = launcher, host_ND
        self._planned = _Resident(launcher, host_ND, plan_ids)
        self._dynamic = _Resident(launcher, host_ND, np.empty(0, np.int64))
        self._requests, self._crossings = (launcher.xp.zeros(4, np.uint64) for _ in range(2))
        self._staged_rows = 0

    @staticmethod
    def bytes_for(num_rows: int, row_bytes: int, num_nodes: int) -> int:
        """Device bytes of a cache of so many rows, its rank map included; to be compared with a budget beforehand."""
        return num_rows * row_bytes + (RankMap.nbytes_for(num_nodes) if num_rows else 0)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in the storage dtype."""
        return int(self._host_ND.shape[1] * self._host_ND.dtype.itemsize)

    @property
    def device_bytes(self) -> int:
        """Bytes on the device: both caches and their rank maps."""
        return self._planned.nbytes + self._dynamic.nbytes

    @property
    def reads(self) -> TierReads:
        """What was read since construction; waits for the device."""
        requests = self._launcher.to_host(self._requests).tolist()  # synchronize!
        crossed = int(self._launcher.to_host(self._crossings)[HOST]) + self._staged_rows
        on_device = requests[DEVICE] + requests[DYNAMIC]
        return TierReads(on_device, requests[HOST], on_device * self.row_bytes, crossed * self.row_bytes)

    def replace_dynamic(self, ids: IdArray) -> None:
        """Make the rows of `ids`, strictly ascending, the dynamic cache; the old one lives until nothing reads it."""
        self._dynamic = _Resident(self._launcher, self._host_ND, ids)

    def gather_group(self, batches: Sequence[Array]) -> Iterator[Array]:
        """Rows of each mini-batch of a group; each missing row crosses from host memory once for all of them.

        A group of more than one waits for the device once, for the number of rows to stage.

        Parameters
        ----------
        batches : K device arrays of int32 or int64 ids in [0, N)

        Returns
        -------
        iterator of K (n_i, D) device arrays in the storage dtype
        """
        if not batches:
            return
        xp = self._launcher.xp
        ids = xp.concatenate(batches)
        tier_n, slot_n = self._resolve(ids)
        self._count(tier_n, self._requests)
        staged_SD = self._stage(ids, tier_n, slot_n) if len(batches) > 1 else self._rows(0)
        self._count(tier_n, self._crossings)
        table = TierTable.of(self._launcher, (self._planned.rows_CD, self._host_ND, staged_SD, self._dynamic.rows_CD))
        end = 0
        for batch in batches:
            begin, end = end, end + len(batch)
            out_nD = self._rows(len(batch))
            gather_rows(self._launcher, table, tier_n[begin:end], slot_n[begin:end], out_nD)
            yield out_nD

    def _resolve(self, ids: Array) -> tuple[Array, Array]:
        xp, planned, dynamic = self._launcher.xp, self._planned, self._dynamic
        tier_n, slot_n = xp.empty(len(ids), np.uint8), xp.empty(len(ids), np.int64)
        arguments = (
            len(ids), ids, planned.bits, planned.rank, int(not planned.is_empty),
            dynamic.bits, dynamic.rank, int(not dynamic.is_empty), tier_n, slot_n,
        )  # fmt: skip
        launch(self._launcher, Kernel("gather", "resolve_rows", (c_type(ids.dtype),)), len(ids), arguments)
        return tier_n, slot_n

    def _stage(self, ids: Array, tier_n: Array, slot_n: Array) -> Array:
        """Bring each missed row once into an array on the device, and point the requests there."""
        launcher, xp, num_ids = self._launcher, self._launcher.xp, len(ids)
        flag = xp.empty(num_ids, np.int64)
        launch(launcher, Kernel("gather", "flag_missed"), num_ids, (num_ids, tier_n, num_ids, flag))
        scan = exclusive_sum(launcher, flag)
        missed, missed_ptr = xp.empty(num_ids, ids.dtype), xp.zeros(2, np.int64)
        missed_ptr[1:] = scan[-1:]
        kind = (c_type(ids.dtype),)
        launch(launcher, Kernel("gather", "list_missed", kind), num_ids, (num_ids, ids, scan, missed))
        staged_ids, staged_ptr, staged_slot, _ = unique_nodes(
            launcher, missed, missed_ptr, missed[:0], xp.zeros(2, np.int64), num_ids, with_inverse=True
        )
        num_staged = int(staged_ptr[1])  # synchronize!
        staged_SD = self._rows(num_staged)
        source = TierTable.of(launcher, [self._host_ND])
        slots = staged_ids[:num_staged].astype(np.int64)
        gather_rows(launcher, source, xp.zeros(num_staged, np.uint8), slots, staged_SD)
        point = (num_ids, scan, staged_slot, tier_n, slot_n)
        launch(launcher, Kernel("gather", "point_to_staged"), num_ids, point)
        self._staged_rows += num_staged
        return staged_SD

    def _count(self, tier_n: Array, counts: Array) -> None:
        launch(self._launcher, Kernel("gather", "count_tiers"), len(tier_n), (len(tier_n), tier_n, counts))

    def _rows(self, num_rows: int) -> Array:
        return self._launcher.xp.empty((num_rows, self._host_ND.shape[1]), self._host_ND.dtype)
