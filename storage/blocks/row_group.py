"""Mini-batches whose rows were gathered together: in the device tier, the host cache, or the spill file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kernels.cpu.scatter import locate
from kernels.mfg import IdArray
from kernels.rank_map import RankMap
from kernels.tiered_rows import TieredRows
from storage.blocks.spill import SpillFile
from storage.blocks.stored_features import NO_BITS, StoredFeatures

Rows = npt.NDArray[Any]


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
