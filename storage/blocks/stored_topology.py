"""Adjacency that stays on disk: offsets in memory or block-wise, lists block-wise, some lists in an adjacency cache."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray, TierReads
from kernels.rank_map import RankMap
from storage.blocks.buffer import BlockBuffer
from storage.blocks.io_stats import IoStats
from storage.blocks.list_request import ListRequest
from storage.blocks.reader import BlockReader
from storage.blocks.stored_lists import ListReader
from storage.content_checks import check_offsets
from storage.errors import StorageError
from storage.graph_store import INDICES, INDPTR, GraphStore

I64Array = npt.NDArray[np.int64]

_NO_KEYS = np.zeros(1, np.uint64)
_PAIR = 2  # where a list begins and where it ends


class StoredTopology:
    """In-neighbors of every node in the blocks of a store; close it, or use it in a `with` statement.

    Parameters
    ----------
    store : GraphStore
    cached_ids : (C,) integer
        Nodes whose lists an adjacency cache holds, strictly ascending.
    buffer_bytes : int
        Memory for blocks of adjacency lists.
    indptr_buffer_bytes : int, optional
        Memory for blocks of offsets; None holds all offsets in memory, 8 bytes a node.
    threads : int
        Threads that sample from blocks.
    stats : IoStats, optional
        Counts the requests.

    Raises
    ------
    BudgetError
        If a buffer does not hold two blocks.
    StorageError
        If the store is damaged.
    """

    def __init__(
        self,
        store: GraphStore,
        cached_ids: IdArray,
        *,
        buffer_bytes: int,
        indptr_buffer_bytes: int | None = None,
        threads: int = 2,
        stats: IoStats | None = None,
    ) -> None:
        self.path, self.stats = store.path, stats or IoStats()
        self.num_nodes, self.num_edges = store.info.num_nodes, store.info.num_edges
        self.id_dtype: np.dtype[Any] = store.extent(INDICES).dtype
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="sample")
        self._buffers = [BlockBuffer(BlockReader(store.path, store.extent(INDICES), stats=self.stats), buffer_bytes)]
        self._lists = ListReader(self._buffers[0], self.pool, lowest=0, end=self.num_nodes)
        self._indptr: I64Array | None = None
        if indptr_buffer_bytes is None:
            self._indptr = BlockReader(store.path, store.extent(INDPTR), stats=self.stats).read_all()
            check_offsets(store.path, self._indptr, self.num_edges)
        else:
            reader = BlockReader(store.path, store.extent(INDPTR), stats=self.stats)
            self._buffers.append(BlockBuffer(reader, indptr_buffer_bytes))
            self._offsets = ListReader(self._buffers[1], self.pool, lowest=0, end=self.num_edges + 1)
        self.cached: RankMap | None = None
        self.cached_indptr, self.cached_indices = np.zeros(1, np.int64), np.empty(0, self.id_dtype)
        if len(cached_ids):
            self._fill_cache(np.asarray(cached_ids, np.int64))

    def close(self) -> None:
        """End the threads."""
        self.pool.shutdown(wait=True, cancel_futures=True)
        for buffer in self._buffers:
            buffer.close()

    def __enter__(self) -> StoredTopology:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def cache_bytes(self) -> int:
        """Bytes of the adjacency cache: lists, their offsets and their map."""
        if self.cached is None:
            return 0
        return self.cached.nbytes + self.cached_indptr.nbytes + self.cached_indices.nbytes

    def lists(self, nodes: IdArray) -> tuple[I64Array, I64Array]:
        """Where the lists of some nodes begin in `indices`, and how long they are.

        Parameters
        ----------
        nodes : (n,) integer in [0, num_nodes)

        Returns
        -------
        begin, degree : (n,) int64

        Raises
        ------
        StorageError
            If offsets do not ascend.
        """
        if self._indptr is not None:
            begin_U = self._indptr[nodes]
            return begin_U, self._indptr[nodes + 1] - begin_U
        everything = np.array([0, len(nodes)], np.int64)
        pairs = ListRequest(nodes, everything, nodes.astype(np.int64), np.full(len(nodes), _PAIR), -1, _NO_KEYS)
        out, none = np.empty(_PAIR * len(nodes), np.int64), np.empty(0, np.int64)
        self._offsets.read(pairs, np.arange(len(nodes) + 1) * _PAIR, out, none)
        begin_U, degree_U = out[::2].copy(), out[1::2] - out[::2]
        if len(degree_U) and int(degree_U.min()) < 0:
            node = nodes[np.flatnonzero(degree_U < 0)[0]]
            raise StorageError(
                f"{self.path} is damaged or crafted: the list of node {node} ends before its start; "
                "delete it and run again"
            )
        return begin_U, degree_U

    def read_lists(self, begin: I64Array, length: I64Array) -> IdArray:
        """Entries [begin, begin + length) of `indices` of each row, one row after the other."""
        rows = np.zeros(len(begin), self.id_dtype)
        request = ListRequest(rows, np.array([0, len(begin)], np.int64), begin, length, -1, _NO_KEYS)
        row_ptr = request.row_ptr()
        out: Any = np.empty(row_ptr[-1], self.id_dtype)
        self._lists.read(request, row_ptr, out, np.empty(0, np.int64))
        lists: IdArray = out
        return lists

    def sample_neighbors(
        self,
        uniq: IdArray,
        uniq_ptr: I64Array,
        fanout: int,
        *,
        stream_keys: npt.NDArray[np.uint64],
        replace: bool = False,
        edge_ids: bool = False,
        check_stop: Callable[[], None] = lambda: None,
    ) -> tuple[I64Array, IdArray, I64Array, list[TierReads]]:
        """As `kernels.reference.sample_neighbors`: each block that holds a neighbor is served once for all batches.

        What was read is told batch by batch. `check_stop` is called from block to block; it raises where nobody wants
        the neighbors any more.
        """
        begin_U, degree_U = self.lists(uniq)
        in_cache, slot_U = self._cached_rows(uniq)
        stored = ListRequest(
            uniq, uniq_ptr, np.where(in_cache, -1, begin_U), degree_U, fanout, stream_keys, replace=replace
        )
        row_ptr = stored.row_ptr()
        neighbors: Any = np.empty(row_ptr[-1], self.id_dtype)
        ids = np.empty(len(neighbors) if edge_ids else 0, np.int64)
        self._lists.read(stored, row_ptr, neighbors, ids, check_stop=check_stop)
        if in_cache.any():
            self._lists.fill_from_memory(
                ListRequest(
                    uniq, uniq_ptr, self.cached_indptr[slot_U], degree_U, fanout, stream_keys, replace=replace
                ),
                np.flatnonzero(in_cache), self.cached_indices, row_ptr, neighbors, ids,
            )  # fmt: skip
            if edge_ids:
                shift_U = begin_U - self.cached_indptr[slot_U]
                count_U = np.diff(row_ptr)
                ids += np.repeat(np.where(in_cache, shift_U, 0), count_U)
        cuts = uniq_ptr[1:-1]
        reads = map(self._reads, np.split(in_cache, cuts), np.split(np.diff(row_ptr), cuts))
        return row_ptr, neighbors, ids, list(reads)

    def _cached_rows(self, uniq: IdArray) -> tuple[npt.NDArray[np.bool_], I64Array]:
        if self.cached is None:
            return np.zeros(len(uniq), np.bool_), np.zeros(len(uniq), np.int64)
        slot_U = self.cached.slots(uniq)
        return slot_U >= 0, np.maximum(slot_U, 0)

    def _reads(self, in_cache: npt.NDArray[np.bool_], count_U: I64Array) -> TierReads:
        device_rows, device_edges = int(in_cache.sum()), int(count_U[in_cache].sum())
        size, edges = self.id_dtype.itemsize, int(count_U.sum())
        return TierReads(device_rows, len(in_cache) - device_rows, device_edges * size, (edges - device_edges) * size)

    def _fill_cache(self, ids: I64Array) -> None:
        """Copy the lists of some nodes into memory, through the block buffer."""
        everything = np.array([0, len(ids)], np.int64)
        row_ptr, lists, _, _ = self.sample_neighbors(ids, everything, -1, stream_keys=_NO_KEYS)
        self.cached_indptr, self.cached_indices = row_ptr, lists
        self.cached = RankMap.from_sorted_ids(ids, self.num_nodes)
