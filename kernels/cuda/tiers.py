"""Feature rows in device memory, two caches under one budget, over host memory that the device reads through UVA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from kernels.cuda.device_rows import DeviceRows
from kernels.cuda.gather import DEVICE, DYNAMIC, HOST, TierTable, gather_rows
from kernels.cuda.host_rows import HostRows
from kernels.cuda.launch import Array, DeviceLauncher, Launcher, exclusive_sum, launch
from kernels.cuda.source import Kernel, c_type
from kernels.cuda.unique import unique_nodes
from kernels.mfg import IdArray, TierReads
from kernels.rank_map import RankMap

_FILLED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class DynamicRows:
    """What a dynamic cache holds from one update to the next; whoever reads it keeps it until the device has read."""

    bits: Array
    """Bitmap of the nodes held (`RankMap.bits`)."""
    rank: Array
    """Its ranks (`RankMap.rank`)."""
    slot_K: Array
    """(K,) int32 slot of each node held, by rank."""
    rows_SD: Array
    """All slots."""
    ready: Any
    """Event after which they may be read."""


class DynamicTier(Protocol):
    """A dynamic cache, as those see it who gather rows through it."""

    def observe(self, num_batches: int, score: Callable[[int, Any, float], None]) -> None:
        """Let `score(k, score_N, weight)` add `weight` to all that mini-batch k missed, for each of them in order."""

    @property
    def readable(self) -> Any:
        """The `DynamicRows` of now."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of a group of mini-batches, and what they lie in: kept until the device has read them."""

    rows: list[Any]
    """Of each mini-batch: a (n, D) device array, or `DeviceRows`."""
    kept: Any
    """Tiers and maps."""


class _Planned:
    """Rows of some nodes, in device memory for good."""

    def __init__(self, launcher: Launcher, host_rows: HostRows, ids: IdArray) -> None:
        xp = launcher.xp
        self.is_empty = not len(ids)
        rank_map = RankMap.from_sorted_ids(ids, host_rows.num_rows)
        words = (np.zeros(1, np.uint64), np.zeros(1, np.uint32)) if self.is_empty else (rank_map.bits, rank_map.rank)
        self.bits, self.rank = (launcher.to_device(array) for array in words)
        self.rows_CD = xp.empty((len(ids), host_rows.width), host_rows.dtype)
        piece = max(1, _FILLED_BYTES // max(1, host_rows.width * host_rows.dtype.itemsize))
        for begin in range(0, len(ids), piece):
            part = launcher.to_device(np.asarray(ids[begin : begin + piece], np.int64))
            self.rows_CD[begin : begin + piece] = host_rows.fetch(part)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        maps = 0 if self.is_empty else int(self.bits.nbytes + self.rank.nbytes)
        return int(self.rows_CD.nbytes) + maps


class DeviceTiers:
    """Feature rows in three tiers: a cache of planned rows, a cache that changes, and the full array in host memory.

    Threads must not share one object.

    Parameters
    ----------
    launcher : DeviceLauncher
    host_rows : HostRows
        All rows in host memory.
    plan_ids : (C,) integer
        Nodes whose rows stay on the device, strictly ascending; may be empty.
    dynamic : DynamicTier, optional
        What changes.
    """

    def __init__(
        self,
        launcher: DeviceLauncher,
        host_rows: HostRows,
        plan_ids: IdArray,
        dynamic: DynamicTier | None = None,
    ) -> None:
        self._launcher, self._host_rows, self._dynamic = launcher, host_rows, dynamic
        self._planned = _Planned(launcher, host_rows, plan_ids)
        self._requests, self._crossings = (launcher.xp.zeros(4, np.uint64) for _ in range(2))
        self._nothing = DynamicRows(
            launcher.xp.zeros(1, np.uint64),
            launcher.xp.zeros(1, np.uint32),
            launcher.xp.zeros(1, np.int32),
            self._rows(0),
            None,
        )
        self._staged_rows = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in the storage dtype."""
        return int(self._host_rows.width * self._host_rows.dtype.itemsize)

    @property
    def planned_rows(self) -> Array:
        """(C, D) rows that stay on the device."""
        return self._planned.rows_CD

    @property
    def planned_bytes(self) -> int:
        """Bytes of those and of their map."""
        return self._planned.nbytes

    @property
    def reads(self) -> TierReads:
        """What was read since construction; waits for the device."""
        requests = self._launcher.to_host(self._requests).tolist()  # synchronize!
        crossed = int(self._launcher.to_host(self._crossings)[HOST]) + self._staged_rows
        on_device, dynamic = requests[DEVICE] + requests[DYNAMIC], requests[DYNAMIC]
        return TierReads(on_device, requests[HOST], on_device * self.row_bytes, crossed * self.row_bytes, dynamic)

    def gather_group(self, batches: Sequence[Array]) -> RowGroup:
        """Rows of each mini-batch of a group; each missing row crosses from host memory once for all of them.

        A group of more than one waits for the device once, for the number of rows to stage.

        Parameters
        ----------
        batches : K device arrays of distinct int32 or int64 ids in [0, N)

        Returns
        -------
        RowGroup
            K (n_i, D) device arrays in the storage dtype.
        """
        places, kept = self._place(batches, stages=len(batches) > 1)
        return RowGroup([self._gathered(rows) for rows in places], kept)

    def locate_group(self, batches: Sequence[Array]) -> RowGroup:
        """As `gather_group`, but rows that lie on the device stay where they are; missing ones are staged there.

        Returns
        -------
        RowGroup
            K `DeviceRows`.
        """
        return RowGroup(*self._place(batches, stages=True))

    def _place(self, batches: Sequence[Array], *, stages: bool) -> tuple[list[DeviceRows], Any]:
        if not batches:
            return [], None
        launcher, held = self._launcher, self._nothing
        if self._dynamic is not None:
            held = self._dynamic.readable
            launcher.wait(held.ready)
        ids = launcher.xp.concatenate(batches)
        bounds = np.cumsum([0, *map(len, batches)]).tolist()
        tier_n, slot_n = self._resolve(ids, held)
        if self._dynamic is not None:
            self._dynamic.observe(len(batches), partial(self._score, ids, tier_n, bounds))
        self._count(tier_n, self._requests)
        in_reach = len(self._host_rows.in_reach) > 0
        staged_SD = self._stage(ids, tier_n, slot_n) if stages or not in_reach else self._rows(0)
        self._count(tier_n, self._crossings)
        tiers = (self._planned.rows_CD, self._host_rows.in_reach, staged_SD, held.rows_SD)
        table = TierTable.of(launcher, tiers)
        rows = [DeviceRows(launcher, table, tier_n[b:e], slot_n[b:e]) for b, e in pairwise(bounds)]
        return rows, (held, table)

    def _gathered(self, rows: DeviceRows) -> Array:
        out_nD = self._rows(len(rows))
        gather_rows(self._launcher, rows.table, rows.tier_n, rows.slot_n, out_nD)
        return out_nD

    def _resolve(self, ids: Array, held: DynamicRows) -> tuple[Array, Array]:
        xp, planned = self._launcher.xp, self._planned
        tier_n, slot_n = xp.empty(len(ids), np.uint8), xp.empty(len(ids), np.int64)
        arguments = (
            len(ids), ids, planned.bits, planned.rank, int(not planned.is_empty),
            held.bits, held.rank, held.slot_K, int(held is not self._nothing), tier_n, slot_n,
        )  # fmt: skip
        launch(self._launcher, Kernel("gather", "resolve_rows", (c_type(ids.dtype),)), len(ids), arguments)
        return tier_n, slot_n

    def _score(self, ids: Array, tier_n: Array, bounds: list[int], k: int, score_N: Array, weight: float) -> None:
        part = slice(bounds[k], bounds[k + 1])
        num_ids, kernel = part.stop - part.start, Kernel("gather", "add_scores", (c_type(ids.dtype),))
        launch(self._launcher, kernel, num_ids, (num_ids, ids[part], tier_n[part], weight, score_N))

    def _stage(self, ids: Array, tier_n: Array, slot_n: Array) -> Array:
        """Bring each missed row once into an array on the device, and point the requests there."""
        launcher, xp, num_ids = self._launcher, self._launcher.xp, len(ids)
        flag = xp.empty(num_ids, np.int64)
        launch(launcher, Kernel("gather", "flag_missed"), num_ids, (num_ids, tier_n, flag))
        scan = exclusive_sum(launcher, flag)
        missed, missed_ptr = xp.empty(num_ids, ids.dtype), xp.zeros(2, np.int64)
        missed_ptr[1:] = scan[-1:]
        kind = (c_type(ids.dtype),)
        launch(launcher, Kernel("gather", "list_missed", kind), num_ids, (num_ids, ids, scan, missed))
        staged_ids, staged_ptr, staged_slot, _ = unique_nodes(
            launcher, missed, missed_ptr, missed[:0], xp.zeros(2, np.int64), num_ids, with_inverse=True
        )
        num_staged = int(launcher.to_host(staged_ptr)[1])  # synchronize!
        staged_SD = self._host_rows.fetch(staged_ids[:num_staged].astype(np.int64))
        point = (num_ids, scan, staged_slot, tier_n, slot_n)
        launch(launcher, Kernel("gather", "point_to_staged"), num_ids, point)
        self._staged_rows += num_staged
        return staged_SD

    def _count(self, tier_n: Array, counts: Array) -> None:
        launch(self._launcher, Kernel("gather", "count_tiers"), len(tier_n), (len(tier_n), tier_n, counts))

    def _rows(self, num_rows: int) -> Array:
        return self._launcher.xp.empty((num_rows, self._host_rows.width), self._host_rows.dtype)
