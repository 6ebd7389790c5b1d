"""Gathers a hyperbatch: exact access counts, frequent rows into the host cache, the others grouped or spilled (AGNES).

Every feature block that holds a needed row is read once for a group of mini-batches, in ascending order. Where
hyperbatches spill, the rows that the first one needs most stay for all of an epoch: they are the frequent ones of the
next one too, and two hyperbatches that are held at once need one copy of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu.scatter import (
    MOST_BATCHES,
    count_misses,
    fill_rows,
    mark_blocks,
)
from kernels.mfg import IdArray, TierReads
from kernels.rank_map import RankMap
from storage.blocks.cold_rows import ColdIds, SpillSink, cold_ids
from storage.blocks.frequent_rows import Keep, frequent_rows
from storage.blocks.row_group import Group
from storage.blocks.spill import SPARE_BUFFERS, SpillFile
from storage.blocks.spill_room import SpillRoom, spilled_bytes
from storage.blocks.stored_features import StoredFeatures
from storage.errors import InputError

KEPT_ID_BYTES = 8
"""A row of the host cache while it is filled, beside the row."""
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
    room: SpillRoom | None = None
    """Room on disk for spilled rows: a hyperbatch is gathered in as many groups as it takes; None has no end."""
    shares: int = 1
    """Hyperbatches held at once, each with one share of memory and room."""
    one_cache: bool = False
    """Keep the rows that the first hyperbatch needs most, in all shares, for as long as hyperbatches spill."""

    def split(self, parts: int) -> GatherOptions:
        """The share of each of `parts` hyperbatches that are held at once."""
        return replace(self, cache_bytes=self.cache_bytes // parts, shares=self.shares * parts)

    @property
    def most_spilled(self) -> float:
        """Bytes that one group may spill."""
        return math.inf if self.room is None else self.room.nbytes // self.shares


@dataclass(frozen=True, slots=True)
class _Kept:
    """Rows that stay."""

    ids: npt.NDArray[np.int64]
    """(C,) node of each, ascending."""
    cached: RankMap
    """The same."""
    rows_CD: Rows
    """(C, D) rows."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A range of mini-batches to gather together, whether their rows fit the cache, and bytes that spilling moves."""

    begin: int
    end: int
    fits: bool
    moved: int = 0


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
        self._most_rows = self._all_rows = features.num_nodes
        if features.row_bytes:
            self._most_rows, self._all_rows = (
                nbytes // (features.row_bytes + KEPT_ID_BYTES)
                for nbytes in (options.cache_bytes, options.shares * options.cache_bytes)
            )
        self._kept: _Kept | None = None
        self._may_keep = options.one_cache and options.shares > 1

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
        parts = self._parts(batches)
        if self._may_keep and (len(parts) > 1 or parts[0].fits):
            self._may_keep = False  # from now on each hyperbatch has its own cache, a share of the memory
            parts = self._parts(batches)
        for part in parts:
            yield self._gather(batches[part.begin : part.end], part.fits)
            self._may_keep = False

    def _parts(self, batches: Sequence[IdArray]) -> list[_Part]:
        """Parts that spill, one if the disk has room, or parts whose rows all fit: whichever move fewer bytes."""
        if self._kept is not None:
            return self._spilling_parts(batches, 0, len(batches), may_fail=False)
        cuts, group_blocks = self._cut_to_fit(batches)
        if len(cuts) == 2:
            return [_Part(0, len(batches), True)]
        grouped = group_blocks * self._features.buffer.extent.block_bytes
        spilling = self._spilling_parts(batches, 0, len(batches), may_fail=len(cuts) > 0)
        spilled = sum(part.moved for part in spilling) if spilling else math.inf
        groups_win = len(cuts) > 0 and grouped <= spilled
        _logger.info(
            "a hyperbatch of %d mini-batches: %s, %s: %s",
            len(batches), f"{len(cuts) - 1} groups would read {grouped}" if cuts else "no group fits the host cache",
            f"spilling moves {spilled} bytes" if spilling else "the disk has no room to spill",
            "grouped" if groups_win else f"spilled in {len(spilling)}",
        )  # fmt: skip
        if groups_win:
            return [_Part(begin, end, True) for begin, end in pairwise(cuts)]
        return spilling

    def _spilling_parts(self, batches: Sequence[IdArray], begin: int, end: int, *, may_fail: bool) -> list[_Part]:
        """Halve a range of mini-batches until what a part spills fits its share of the room; none where one does not.

        Raises
        ------
        BudgetError, MachineError
            If a single one does not fit, and that may not be.
        """
        features, options = self._features, self._options
        blocks, cold = self._count(batches[begin:end]), self._num_cold()
        needed = spilled_bytes(cold, features.row_bytes, end - begin)
        if needed <= options.most_spilled:
            moved = blocks * features.buffer.extent.block_bytes + 2 * cold * features.row_bytes
            return [_Part(begin, end, False, moved)]
        if end - begin == 1:
            if may_fail:
                return []
            assert options.room is not None
            raise options.room.short("a mini-batch spills", options.shares * needed)
        middle = (begin + end) // 2
        halves = [self._spilling_parts(batches, *half, may_fail=may_fail) for half in ((begin, middle), (middle, end))]
        return [part for half in halves for part in half] if all(halves) else []

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
        """Count all accesses that miss the device tier and rows that stay; returns the blocks that hold them."""
        self._count_N.fill(0)
        for ids in batches:
            count_misses(ids, *self._features.device_bits, self._count_N)
        self._missed = int(self._count_N.sum(dtype=np.int64))
        if self._kept is not None:
            self._count_N[self._kept.ids] = 0
        return len(self._blocks())

    def _blocks(self) -> npt.NDArray[np.int64]:
        extent = self._features.buffer.extent
        marked_B = np.zeros(extent.num_blocks, np.bool_)
        if self._features.row_bytes:
            mark_blocks(self._count_N, self._features.row_bytes, extent.block_bytes, marked_B)
        return np.flatnonzero(marked_B)

    def _num_cold(self) -> int:
        """Accesses that the host cache will not serve."""
        if self._kept is not None:
            return int(self._count_N.sum(dtype=np.int64))
        kept = self._kept_ids()
        return int(self._count_N.sum(dtype=np.int64) - self._count_N[kept].sum(dtype=np.int64))

    def _kept_ids(self) -> npt.NDArray[np.int64]:
        """Rows that the host cache is to hold, ascending."""
        most_rows = self._all_rows if self._may_keep else self._most_rows
        return frequent_rows(self._count_N, most_rows, self._options.keep)

    def _gather(self, batches: Sequence[IdArray], fits: bool) -> Group:
        features = self._features
        self._count(batches)
        kept, new = (self._new_kept(fits), True) if self._kept is None else (self._kept, False)
        cold = cold_ids(batches, kept.cached, features.device_map)
        requests, distinct, missed = sum(map(len, batches)), int(np.count_nonzero(self._count_N)), self._missed
        spill = self._new_spill(cold) if len(cold.ids) else None
        try:
            self._scatter(kept if new else None, cold, spill)
        except BaseException:
            if spill is not None:
                spill.close()
            raise
        features.count(
            TierReads(
                requests - missed, missed, (requests - missed) * features.row_bytes, distinct * features.row_bytes
            )
        )
        self._kept = kept if self._may_keep else self._kept
        return Group(features, batches, kept.cached, kept.rows_CD, spill)

    def _new_kept(self, fits: bool) -> _Kept:
        """Rows of a host cache, still to be filled."""
        ids = np.flatnonzero(self._count_N) if fits else self._kept_ids()
        rows_CD: Rows = np.empty((len(ids), self._features.width), self._features.dtype)
        return _Kept(ids, RankMap.from_sorted_ids(ids, self._features.num_nodes), rows_CD)

    def _new_spill(self, cold: ColdIds) -> SpillFile:
        sizes = (np.diff(cold.ptr) * self._features.row_bytes).tolist()
        piece = self._options.spill_bytes // (len(sizes) + SPARE_BUFFERS)
        piece = min(_MOST_PIECE_BYTES, max(_LEAST_PIECE_BYTES, piece - piece % 4096))
        return SpillFile(self._options.directory, sizes, piece, self._features.stats)

    def _scatter(self, kept: _Kept | None, cold: ColdIds, spill: SpillFile | None) -> None:
        """Read every needed block once, ascending; copy its rows to a new cache and to their mini-batches' buffers."""
        features = self._features
        sink = SpillSink(spill, cold, features.row_bytes) if spill is not None else None
        for lease in features.buffer.serve(self._blocks(), ascending=sink is not None):
            with lease:
                self._check_stop()
                first_byte = features.first_byte(lease)
                if kept is not None:
                    flat = kept.rows_CD.reshape(-1).view(np.uint8)
                    fill_rows(lease.data, first_byte, kept.ids, features.row_bytes, flat)
                if sink is not None:
                    sink.append(lease.data, first_byte)
        if sink is not None:
            sink.finish()
