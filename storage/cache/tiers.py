"""Memory tiers of feature rows: a device cache, all rows in host memory below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu.hotness import add_scores, resolve_dynamic
from kernels.cpu.resolve import DEVICE, DYNAMIC, HOST, STAGED, stage_repeats
from kernels.mfg import IdArray, TierReads
from kernels.rank_map import RankMap
from kernels.tiered_rows import TIER_DTYPES, TieredRows
from storage.cache.checking import checked_rows, compare_with_source
from storage.cache.dynamic import DynamicCache
from storage.cache.hotset import DynamicLayout, DynamicOptions
from storage.cache.slots import HostSlots
from storage.cache.static_rows import Rows, SlotArray, StaticRows, TierArray, copy_rows
from storage.errors import InputError

_MAX_ROWS = 2**31 - 1


class FeatureTiers:
    """Feature rows in tiers: a device cache of the planned rows, a dynamic cache where asked for, the full host array.

    On a CPU the device tier is a host array of the planned size; code and counters are the same.
    Threads may share one object. Beside the tiers it keeps a scratch table of 4 bytes a node.

    Parameters
    ----------
    host_ND : (N, D) array of any dtype
        All rows, each one contiguous; kept by reference and never written.
    plan_ids : (C,) integer
        Nodes whose rows the device holds, strictly ascending; may be empty.
    check
        Compare a sample of the rows of each mini-batch with the source, and raise on a difference.
    dynamic_rows
        Rows of the dynamic cache; 0 means that there is none.
    dynamic
        How the dynamic cache is kept up.
    stands_in
        Whether host memory stands in for the device. If not, no row is copied and all are read where they are: the
        caches are on a GPU, and this only says what they are to hold.

    Raises
    ------
    ValueError
        If the array is not 2-D or the ids do not ascend within [0, N).
    """

    def __init__(
        self,
        host_ND: Rows,
        plan_ids: IdArray,
        *,
        check: bool = False,
        dynamic_rows: int = 0,
        dynamic: DynamicOptions | None = None,
        stands_in: bool = True,
    ) -> None:
        if host_ND.ndim != 2:
            raise ValueError(f"features must be a 2-D array (got {host_ND.ndim}-D)")
        self._host_ND = host_ND
        self.cached_ids = np.asarray(plan_ids, np.int64)
        """(C,) nodes whose rows the device holds, ascending."""
        held_ids = self.cached_ids if stands_in else self.cached_ids[:0]
        self._static = StaticRows(host_ND, held_ids)
        self._first_N = np.zeros(len(host_ND), np.int32)
        self._reads = TierReads()
        self._lock = Lock()
        self._check = check
        self.dynamic_layout = layout = DynamicLayout(dynamic_rows, self.row_bytes, len(host_ND))
        """Sizes of the dynamic cache; no rows where there is none."""
        self.dynamic_options = dynamic or DynamicOptions()
        """How it is kept up."""
        has_dynamic = stands_in and layout.rows > 0
        self.dynamic = DynamicCache(HostSlots(host_ND, layout), layout, self.dynamic_options) if has_dynamic else None
        """The dynamic cache, where there is one here."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in the storage dtype."""
        return int(self._host_ND.shape[1] * self._host_ND.itemsize)

    @property
    def device_bytes(self) -> int:
        """Bytes on the device: cached rows and their rank map, and all of the dynamic cache."""
        num_rows = len(self.cached_ids)
        static_bytes = num_rows * self.row_bytes + (RankMap.nbytes_for(len(self._host_ND)) if num_rows else 0)
        return static_bytes + self.dynamic_layout.nbytes

    @property
    def source_ND(self) -> Rows:
        """(N, D) all rows, in host memory."""
        return self._host_ND

    @property
    def is_readable_in_place(self) -> bool:
        """Whether layers read rows of this dtype where `locate_group` finds them."""
        return self._host_ND.dtype in TIER_DTYPES

    @property
    def reads(self) -> TierReads:
        """A copy of the counts since construction: requests, and bytes that crossed, tier by tier."""
        with self._lock:
            return replace(self._reads)

    @contextmanager
    def watched_epoch(self, epoch: int) -> Iterator[dict[str, float]]:
        """Let the dynamic cache, where there is one, score what is read for a while and end the epoch then.

        Yields
        ------
        dict
            Empty until the block has ended, and without a dynamic cache: counters and overhead of the epoch.
        """
        figures: dict[str, float] = {}
        if self.dynamic is None:
            yield figures
            return
        with self.dynamic.watch(epoch) as upkeep:
            before = self.reads
            yield figures
            upkeep.hits = self.reads.since(before).dynamic_rows
        figures |= upkeep.figures()

    def close(self) -> None:
        """End the thread of the dynamic cache, where there is one."""
        if self.dynamic is not None:
            self.dynamic.close()

    def resolve(self, ids: IdArray) -> tuple[TierArray, SlotArray]:
        """Where each row lives, the dynamic cache left out.

        Parameters
        ----------
        ids : (n,) int32 or int64

        Returns
        -------
        tier : (n,) uint8
            0 on the device, 1 in host memory.
        slot : (n,) int64
            Row of that tier.

        Raises
        ------
        ValueError
            If an id lies outside [0, N); the message names the first.
        """
        tier_n, slot_n, _ = self._static.resolve(ids)
        return tier_n, slot_n

    def gather(self, ids: IdArray) -> Rows:
        """Rows of one mini-batch: a group of one.

        Parameters
        ----------
        ids : (n,) int32 or int64

        Returns
        -------
        (n, D) array in the storage dtype
            Byte for byte `host_ND[ids]`.
        """
        return next(self.gather_group([ids]))

    def gather_group(self, batches: Sequence[IdArray]) -> Iterator[Rows]:
        """Rows of each mini-batch of a group; each missing row crosses from host memory once for all of them.

        A row that the group misses more than once crosses into a staging array that lives as long as the iterator;
        a row missed once is read in place. Then each mini-batch is one pass over the tiers' base addresses.

        Parameters
        ----------
        batches : K arrays of int32 or int64 ids, of any sizes from 0

        Returns
        -------
        iterator of K arrays (n_i, D) in the storage dtype
            Byte for byte `host_ND[batches[i]]`. Reads are counted when the call returns.

        Raises
        ------
        ValueError
            If an id lies outside [0, N), or the group has more rows than an int32 counts.
        TierMismatchError
            In checking mode, from the iterator.
        """
        if not batches:
            return iter(())
        ids = _joined(batches)
        tier_n, slot_n, missed = self._static.resolve(ids)
        missed, dynamic_SD = self._resolve_dynamic(ids, batches, tier_n, slot_n, missed)
        staged_ids = self._stage(ids, tier_n, slot_n, missed)
        staged_SD = np.empty((len(staged_ids), self._host_ND.shape[1]), self._host_ND.dtype)
        copy_rows(self._host_ND, staged_ids, staged_SD)
        places = self._places_of_each(batches, tier_n, slot_n, self._tiers(staged_SD, dynamic_SD))
        return (rows.gather() for rows in places)

    def locate_group(self, batches: Sequence[IdArray]) -> Iterator[TieredRows]:
        """As `gather_group`, without moving a row: where each mini-batch's rows lie, for ops that read them in place.

        Reads are counted as `gather_group` counts them. Nothing is staged, as on a CPU all tiers are within reach.

        Parameters
        ----------
        batches : K arrays of int32 or int64 ids, of any sizes from 0

        Returns
        -------
        iterator of K TieredRows

        Raises
        ------
        ValueError
            If an id lies outside [0, N), or the group has more rows than an int32 counts.
        TierMismatchError
            In checking mode, from the iterator.
        """
        if not batches:
            return iter(())
        ids = _joined(batches)
        tier_n, slot_n, missed = self._static.resolve(ids)
        missed, dynamic_SD = self._resolve_dynamic(ids, batches, tier_n, slot_n, missed)
        self._stage(ids, tier_n.copy(), slot_n.copy(), missed)
        return self._places_of_each(batches, tier_n, slot_n, self._tiers(self._host_ND, dynamic_SD))

    def _stage(
        self, ids: IdArray, tier_n: TierArray, slot_n: SlotArray, missed: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int64]:
        """Send rows that the group misses more than once to staging slots; count all reads; nodes of the slots."""
        staged_ids = np.empty(len(missed) // 2, np.int64)
        with self._lock:  # the scratch table serves one group at a time
            num_staged = stage_repeats(ids, missed, tier_n, slot_n, self._first_N, staged_ids)
            num_crossings = int(np.count_nonzero(tier_n == HOST)) + num_staged
            num_dynamic = int(np.count_nonzero(tier_n == DYNAMIC)) if self.dynamic is not None else 0
            self._count(len(ids) - len(missed), len(missed), num_crossings, num_dynamic)
        return staged_ids[:num_staged]

    def _resolve_dynamic(
        self,
        ids: IdArray,
        batches: Sequence[IdArray],
        tier_n: TierArray,
        slot_n: SlotArray,
        missed: npt.NDArray[np.int32],
    ) -> tuple[npt.NDArray[np.int32], Rows]:
        """Score what the static cache misses, send to the dynamic one what it holds; what is left, and the slots."""
        if self.dynamic is None:
            return missed, self._host_ND
        cuts = np.searchsorted(missed, np.cumsum([0, *map(len, batches)])).tolist()

        def score(k: int, score_N: npt.NDArray[np.float64], weight: float) -> None:
            add_scores(score_N, ids, missed[cuts[k] : cuts[k + 1]], weight)

        self.dynamic.observe(len(batches), score)
        held = self.dynamic.current
        contiguous: npt.NDArray[Any] = np.ascontiguousarray(ids)
        places = (held.slot_K, contiguous, missed, DYNAMIC, tier_n, slot_n)
        return missed[: resolve_dynamic(held.map.bits, held.map.rank, *places)], held.readable

    def _tiers(self, staged_SD: Rows, dynamic_SD: Rows) -> list[Rows]:
        """Base arrays by tier; those of this group's generation of the dynamic cache stay as long as the list does."""
        tiers: list[Rows] = [self._host_ND] * 4
        tiers[DEVICE], tiers[STAGED], tiers[DYNAMIC] = self._static.rows_CD, staged_SD, dynamic_SD
        return tiers

    def _places_of_each(
        self, batches: Sequence[IdArray], tier_n: TierArray, slot_n: SlotArray, tiers: list[Rows]
    ) -> Iterator[TieredRows]:
        end = 0
        for ids in batches:
            begin, end = end, end + len(ids)
            rows = TieredRows(tiers, tier_n[begin:end], slot_n[begin:end])
            if self._check:
                sample = checked_rows(ids)
                places = TieredRows(tiers, rows.tier_n[sample], rows.slot_n[sample])
                compare_with_source(self._host_ND, ids, sample, places.gather(), rows.tier_n)
            yield rows

    def _count(self, num_device: int, num_host: int, num_crossings: int, num_dynamic: int) -> None:
        device_bytes, host_bytes = num_device * self.row_bytes, num_crossings * self.row_bytes
        self._reads.add(TierReads(num_device, num_host, device_bytes, host_bytes, num_dynamic))


def _joined(batches: Sequence[IdArray]) -> npt.NDArray[Any]:
    """All ids of a group, whose positions int32 must count."""
    num_rows = sum(map(len, batches))
    if num_rows > _MAX_ROWS:
        raise InputError(f"a group of {num_rows} rows is above {_MAX_ROWS}: use a smaller superbatch or batch_size")
    return np.concatenate(batches)
