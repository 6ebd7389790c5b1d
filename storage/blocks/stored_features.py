"""Feature rows that stay on disk: a device tier in front, and groups of mini-batches gathered block by block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu.scatter import fill_rows
from kernels.mfg import IdArray, TierReads
from kernels.rank_map import RankMap
from kernels.tiered_rows import TIER_DTYPES
from storage.blocks.buffer import BlockBuffer, Lease
from storage.blocks.extent import Extent
from storage.blocks.io_stats import IoCounts, IoStats
from storage.blocks.reader import BlockReader
from storage.graph_store import FEATURES, GraphStore

Rows = npt.NDArray[Any]
NO_BITS: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]] = (np.empty(0, np.uint64), np.empty(0, np.uint32))


def _no_rows(store: GraphStore) -> Extent:
    """Rows of no width, which take no block."""
    shape = (store.info.num_nodes, 0)
    return Extent(FEATURES, shape, np.dtype(np.float32), 0, store.info.block_bytes, np.empty(0, np.uint32))


class StoredFeatures:
    """Feature rows in the blocks of a store; close it, or use it in a `with` statement.

    Parameters
    ----------
    store : GraphStore
    plan_ids : (C,) integer
        Nodes whose rows the device tier holds, strictly ascending; they are read once, now.
    buffer_bytes : int
        Memory for feature blocks.
    stats : IoStats, optional
        Counts the requests.

    Raises
    ------
    BudgetError
        If the buffer does not hold two blocks.
    StorageError
        If the store is damaged.
    """

    def __init__(
        self, store: GraphStore, plan_ids: IdArray, *, buffer_bytes: int, stats: IoStats | None = None
    ) -> None:
        self.stats, self.num_nodes = stats or IoStats(), store.info.num_nodes
        extent = store.extent(FEATURES) if store.has(FEATURES) else _no_rows(store)
        self.dtype, self.width, self.row_bytes = extent.dtype, int(extent.shape[1]), extent.row_bytes
        self.buffer = BlockBuffer(BlockReader(store.path, extent, stats=self.stats), buffer_bytes)
        self.epoch_io = IoCounts()
        self._reads, self._lock = TierReads(), Lock()
        ids = np.asarray(plan_ids, np.int64)
        self.device_map = RankMap.from_sorted_ids(ids, self.num_nodes) if len(ids) else None
        self.device_CD = self.read_rows(ids)

    def close(self) -> None:
        """End the reading threads."""
        self.buffer.close()

    def __enter__(self) -> StoredFeatures:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_readable_in_place(self) -> bool:
        """Whether layers read rows of this dtype where they lie in the tiers."""
        return self.dtype in TIER_DTYPES

    @property
    def reads(self) -> TierReads:
        """A copy of the counts since construction; host bytes are those of distinct rows a group took from blocks."""
        with self._lock:
            return replace(self._reads)

    @property
    def device_bits(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
        """Bits and ranks of the device tier's map; empty where there is none."""
        return NO_BITS if self.device_map is None else (self.device_map.bits, self.device_map.rank)

    @contextmanager
    def watched_epoch(self, _: int) -> Iterator[dict[str, float]]:
        """Count what an epoch reads; there is no dynamic cache: as `FeatureTiers.watched_epoch` without one."""
        before = self.stats.counts()
        yield {}
        self.epoch_io = self.stats.counts().since(before)

    def count(self, reads: TierReads) -> None:
        """Add to `reads`."""
        with self._lock:
            self._reads.add(reads)

    def read_rows(self, ids: npt.NDArray[np.int64]) -> Rows:
        """Read the rows of strictly ascending ids, each block that holds a part of one once.

        Returns
        -------
        (n, D) array in the storage dtype
        """
        out: Rows = np.empty((len(ids), self.width), self.dtype)
        flat = out.reshape(-1).view(np.uint8)
        for lease in self.serve_blocks_of(ids):
            with lease:
                fill_rows(lease.data, self.first_byte(lease), ids, self.row_bytes, flat)
        return out

    def gather(self, ids: IdArray) -> Rows:
        """Rows of any ids, in their order, past the tiers: for a few rows.

        Raises
        ------
        ValueError
            If an id lies outside [0, num_nodes).
        """
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self.num_nodes):
            raise ValueError(f"ids must lie in [0, {self.num_nodes}) (got {ids.min()}..{ids.max()})")
        distinct, inverse = np.unique(ids, return_inverse=True)
        rows: Rows = self.read_rows(distinct.astype(np.int64))[inverse]
        return rows

    def serve_blocks_of(self, ids: npt.NDArray[np.int64]) -> Iterator[Lease]:
        """Serve the blocks that hold rows of ascending ids."""
        if not self.row_bytes:
            return iter(())
        block_bytes = self.buffer.extent.block_bytes
        first, last = ids * self.row_bytes // block_bytes, ((ids + 1) * self.row_bytes - 1) // block_bytes
        marked_B = np.zeros(self.buffer.extent.num_blocks, np.bool_)
        for shift in range(int((last - first).max(initial=0)) + 1):
            marked_B[np.minimum(first + shift, last)] = True
        return self.buffer.serve(np.flatnonzero(marked_B))

    def first_byte(self, lease: Lease) -> int:
        """Where a block begins in the dataset."""
        return lease.block * self.buffer.extent.block_bytes
