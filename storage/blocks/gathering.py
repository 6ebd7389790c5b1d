"""Gathers a hyperbatch: exact access counts, frequent rows into the host cache, the others grouped or spilled (AGNES).

Every feature block that holds a needed row is read once for a group of mini-batches, in ascending order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from kernels.cpu.scatter import (
    MOST_BATCHES,
    count_misses,
    fill_rows,
    histogram,
    locate,
    mark_blocks,
    select,
)
from kernels.mfg import IdArray, TierReads
from kernels.rank_map import RankMap
from kernels.tiered_rows import TieredRows
from storage.blocks.cold_rows import ColdIds, SpillSink, cold_ids
from storage.blocks.spill import SPARE_BUFFERS, SpillFile, padded
from storage.blocks.stored_features import NO_BITS, StoredFeatures
from storage.errors import BudgetError, InputError

KEPT_ID_BYTES = 8
"""A row of the host cache while it is filled, beside the row."""
Keep = Literal["top", "mean"]
Rows = npt.NDArray[Any]
_logger = logging.getLogger(__name__)
_LEAST_PIECE_BYTES, _MOST_PIECE_BYTES = 16 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class GatherOptions:
    """Memory and place for gathering; nothing here changes a row."""

    cache_bytes: int
    """Most bytes of the host cache's rows, and of their ids while it is filled."""
    spill_bytes: int
    """Most bytes of the buffers in front of the spill file."""
    directory: Path
    """Where to spill."""
    keep: Keep = "top"
    """Rows to keep in the host cache: the most accessed ones that fit, or those with at least the mean count."""
    disk_bytes: int | None = None
    """Most bytes to spill; None takes what the disk has."""
    most_spilled: int = 0
    """Bytes that no hyperbatch spills more than, where they are known: what an error asks for."""
    shares: int = 1
    """Hyperbatches held at once, each with one share."""

    def split(self, parts: int) -> GatherOptions:
        """The share of each of `parts` hyperbatches that are held at once."""
        disk_bytes = None if self.disk_bytes is None else self.disk_bytes // parts
        return replace(self, cache_bytes=self.cache_bytes // parts, disk_bytes=disk_bytes, shares=self.shares * parts)


class RowGroup(Protocol):
    """Consecutive mini-batches whose rows stand ready."""

    def __len__(self) -> int:
        """Number of mini-batches."""

    def rows(self, number: int) -> TieredRows:
        """Where the rows of one of the mini-batches lie."""

    def close(self) -> None:
        """Give back what it takes."""


class Gathers(Protocol):
    """Gets the rows of hyperbatches."""

    def groups(self, batches: Sequence[IdArray]) -> Iterator[RowGroup]:
        """Rows of some mini-batches, in order, in one group or several."""


class Group:
    """Consecutive mini-batches whose rows stand ready: in the device tier, the host cache, or the spill file."""

    def __init__(
        self,
        features: StoredFeatures,
        batches: Sequence[IdArray],
        cached: RankMap,
        cache_CD: Rows,
        spill: SpillFile | None,
    ) -> None:
        self._features, self._batches = features, batches
        self._count = len(batches)
        self._cached, self._cache_CD, self._spill = cached, cache_CD, spill

    def __len__(self) -> int:
        """Number of mini-batches."""
        return self._count

    def rows(self, number: int) -> TieredRows:
        """Where the rows of one of the mini-batches lie; those that were spilled are read now."""
        ids, features = self._batches[number], self._features
        tier_n, slot_n, cold = np.empty(len(ids), np.uint8), np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
        cache_bits = (self._cached.bits, self._cached.rank) if self._cached.num_slots else NO_BITS
        num_cold = locate(ids, *features.device_bits, *cache_bits, tier_n, slot_n, cold)
        own_CD: Rows = np.empty((0, features.width), features.dtype)
        if num_cold:
            assert self._spill is not None
            order = np.argsort(ids[cold[:num_cold]], kind="stable")
            slot_n[cold[:num_cold][order]] = np.arange(num_cold)
            own_CD = self._spill.read(number).view(features.dtype).reshape(num_cold, features.width)
        return TieredRows([features.device_CD, self._cache_CD, own_CD], tier_n, slot_n)

    def close(self) -> None:
        """Give the spill file's space back, and let go of ids and rows: no part of them is held as a view."""
        if self._spill is not None:
            self._spill.close()
            self._spill = None
        self._batches, self._cache_CD = (), np.empty((0, self._features.width), self._features.dtype)


@dataclass(frozen=True, slots=True)
class _Part:
    """A range of mini-batches to gather together, and whether their rows fit the cache."""

    begin: int
    end: int
    fits: bool


class Gatherer:
    """Gathers hyperbatches of stored features; holds a count of two bytes a node.

    Parameters
    ----------
    features : StoredFeatures
    options : GatherOptions
    check_stop : callable
        Called from block to block; raises where nobody wants the rows any more.
    """

    def __init__(
        self, features: StoredFeatures, options: GatherOptions, check_stop: Callable[[], None] = lambda: None
    ) -> None:
        self._check_stop = check_stop
        self._features, self._options = features, options
        self._count_N = np.zeros(features.num_nodes, np.uint16)
        self._most_rows = features.num_nodes
        if features.row_bytes:
            self._most_rows = options.cache_bytes // (features.row_bytes + KEPT_ID_BYTES)

    def groups(self, batches: Sequence[IdArray]) -> Iterator[Group]:
        """Gather the rows of each mini-batch of a hyperbatch, in as many groups as cost the fewest bytes.

        Parameters
        ----------
        batches : H arrays of integer ids
            Input nodes of each mini-batch, each id once.

        Yields
        ------
        Group
            In the order of the mini-batches; to be closed by whoever gets it.

        Raises
        ------
        InputError
            If there are more mini-batches than a count of 16 bits tells apart.
        StorageError, MachineError
            If a block is damaged, cannot be read, or the disk is full.
        """
        if len(batches) > MOST_BATCHES:
            raise InputError(f"a hyperbatch holds at most {MOST_BATCHES} mini-batches (got {len(batches)})")
        for part in self._parts(batches):
            yield self._gather(batches[part.begin : part.end], part.fits)

    def _parts(self, batches: Sequence[IdArray]) -> list[_Part]:
        """One part that spills, or several whose rows all fit: whichever moves fewer bytes."""
        features, block_bytes = self._features, self._features.buffer.extent.block_bytes
        cuts, group_blocks = self._cut_to_fit(batches)
        if len(cuts) == 2:
            return [_Part(0, len(batches), True)]
        spilled = self._count(batches) * block_bytes + 2 * self._num_cold() * features.row_bytes
        grouped = group_blocks * block_bytes
        groups_win = len(cuts) > 0 and grouped <= spilled
        _logger.info(
            "a hyperbatch of %d mini-batches: %s, spilling moves %d bytes: %s",
            len(batches), f"{len(cuts) - 1} groups would read {grouped}" if cuts else "no group fits the host cache",
            spilled, "grouped" if groups_win else "spilled",
        )  # fmt: skip
        if groups_win:
            return [_Part(begin, end, True) for begin, end in pairwise(cuts)]
        return [_Part(0, len(batches), False)]

    def _cut_to_fit(self, batches: Sequence[IdArray]) -> tuple[list[int], int]:
        """Where to cut so that each group's rows fit the cache (nowhere if one cannot), and their blocks in all."""
        self._count_N.fill(0)
        cuts, distinct, blocks = [0], 0, 0
        for number, ids in enumerate(batches):
            new = count_misses(ids, *self._features.device_bits, self._count_N)
            if distinct + new > self._most_rows and number > cuts[-1]:
                self._uncount(ids)
                blocks += len(self._blocks())
                self._count_N.fill(0)
                cuts.append(number)
                distinct, new = 0, count_misses(ids, *self._features.device_bits, self._count_N)
            distinct += new
            if distinct > self._most_rows:
                return [], 0
        return [*cuts, len(batches)], blocks + len(self._blocks())

    def _uncount(self, ids: IdArray) -> None:
        self._count_N[ids] -= self._count_N[ids] > 0

    def _count(self, batches: Sequence[IdArray]) -> int:
        """Count all accesses that miss the device tier; returns the number of blocks that hold them."""
        self._count_N.fill(0)
        for ids in batches:
            count_misses(ids, *self._features.device_bits, self._count_N)
        return len(self._blocks())

    def _blocks(self) -> npt.NDArray[np.int64]:
        extent = self._features.buffer.extent
        marked_B = np.zeros(extent.num_blocks, np.bool_)
        if self._features.row_bytes:
            mark_blocks(self._count_N, self._features.row_bytes, extent.block_bytes, marked_B)
        return np.flatnonzero(marked_B)

    def _num_cold(self) -> int:
        """Accesses that the host cache will not serve."""
        kept = self._kept_ids()
        return int(self._count_N.sum(dtype=np.int64) - self._count_N[kept].sum(dtype=np.int64))

    def _kept_ids(self) -> npt.NDArray[np.int64]:
        """Rows that the host cache is to hold, ascending."""
        count = histogram(self._count_N, int(self._count_N.max(initial=0)))
        accessed = count[1:]
        if self._options.keep == "mean":
            mean = np.arange(1, len(count)) @ accessed / max(1, int(accessed.sum()))
            threshold, at_threshold = int(np.ceil(mean)) - 1, 0
        else:
            # The lowest count such that all rows above it fit, and as many at it as there is room for.
            above = np.concatenate([np.cumsum(accessed[::-1])[::-1], [0]])
            threshold = int(np.searchsorted(-above, -self._most_rows))
            at_threshold = self._most_rows - int(above[threshold]) if threshold else 0
        out = np.empty(min(self._most_rows, int(accessed.sum())), np.int64)
        return out[: select(self._count_N, max(threshold, 0), at_threshold, out)]

    def _gather(self, batches: Sequence[IdArray], fits: bool) -> Group:
        features = self._features
        self._count(batches)
        kept = np.flatnonzero(self._count_N) if fits else self._kept_ids()
        cached = RankMap.from_sorted_ids(kept, features.num_nodes)
        cache_CD: Rows = np.empty((len(kept), features.width), features.dtype)
        cold = cold_ids(batches, cached, features.device_map)
        requests, distinct = sum(map(len, batches)), int(np.count_nonzero(self._count_N))
        missed = int(self._count_N.sum(dtype=np.int64))
        spill = self._new_spill(cold) if len(cold.ids) else None
        try:
            self._scatter(kept, cache_CD, cold, spill)
        except BaseException:
            if spill is not None:
                spill.close()
            raise
        features.count(
            TierReads(
                requests - missed, missed, (requests - missed) * features.row_bytes, distinct * features.row_bytes
            )
        )
        return Group(features, batches, cached, cache_CD, spill)

    def _new_spill(self, cold: ColdIds) -> SpillFile:
        sizes = (np.diff(cold.ptr) * self._features.row_bytes).tolist()
        piece = self._options.spill_bytes // (len(sizes) + SPARE_BUFFERS)
        piece = min(_MOST_PIECE_BYTES, max(_LEAST_PIECE_BYTES, piece - piece % 4096))
        most, needed = self._options.disk_bytes, sum(map(padded, sizes))
        if most is not None and needed > most:
            enough = self._options.shares * max(needed, self._options.most_spilled)
            raise BudgetError(
                f"gathering {len(sizes)} mini-batches spills {needed} bytes and disk_budget leaves {most}: set "
                f"disk_budget to at least {enough}, host_budget higher, or storage.hyperbatch lower"
            )
        return SpillFile(self._options.directory, sizes, piece, self._features.stats)

    def _scatter(self, kept: npt.NDArray[np.int64], cache_CD: Rows, cold: ColdIds, spill: SpillFile | None) -> None:
        """Read every needed block once, ascending; copy its rows to the cache and to their mini-batches' buffers."""
        features, flat = self._features, cache_CD.reshape(-1).view(np.uint8)
        sink = SpillSink(spill, cold, features.row_bytes) if spill is not None else None
        for lease in features.buffer.serve(self._blocks(), ascending=sink is not None):
            with lease:
                self._check_stop()
                first_byte = features.first_byte(lease)
                fill_rows(lease.data, first_byte, kept, features.row_bytes, flat)
                if sink is not None:
                    sink.append(lease.data, first_byte)
        if sink is not None:
            sink.finish()
