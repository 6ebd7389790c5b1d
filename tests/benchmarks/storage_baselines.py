"""Other ways to get feature rows from disk, at the same budget: page reads, a memory map, Belady's and an LRU cache.

Each is given the hyperbatch sampler's samples, which is more than the systems they stand for have; they differ in how
rows are gathered. Missing rows are read as direct 4 KiB pages by 32 threads of compiled code, pages shared by rows of a
mini-batch once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

from kernels.cpu.intrinsics import copy_bytes
from storage.blocks.extent import Extent, aligned_empty
from storage.graph_store import GraphStore

PAGE_BYTES, THREADS = 4096, 32
I64Array = npt.NDArray[np.int64]
_pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.uint64, types.uint64, types.int64))


@dataclass
class Gathered:
    """What gathering came to."""

    seconds: float = 0.0
    read_bytes: int = 0
    reads: int = 0
    hits: int = 0
    requests: int = 0
    checksums: list[float] = field(default_factory=list)


@njit(nogil=True)
def read_rows(
    descriptor: int, offset: int, row_bytes: int, ids: I64Array, targets: I64Array, page: np.uint64, out: np.uint64
) -> int:
    """Read rows of ascending ids, each page once, to rows `targets` of the array at `out`; returns the reads, or -1."""
    reads, held = 0, np.int64(-1)
    for i in range(len(ids)):
        done = 0
        while done < row_bytes:
            at = ids[i] * row_bytes + done
            number = at // 4096
            if number != held:
                if _pread(descriptor, page, np.uint64(4096), offset + number * 4096) <= 0:
                    return -1
                held = number
                reads += 1
            count = min(row_bytes - done, (number + 1) * 4096 - at)
            to = out + np.uint64(targets[i] * row_bytes + done)
            copy_bytes(to, page + np.uint64(at - number * 4096), count)
            done += count
    return reads


class PageReader:
    """Reads rows of a dataset page by page, from many threads."""

    def __init__(self, path: str, extent: Extent) -> None:
        self._descriptor, self._extent = os.open(path, os.O_RDONLY | os.O_DIRECT), extent
        self._pool = ThreadPoolExecutor(THREADS)
        self._pages = [aligned_empty(PAGE_BYTES) for _ in range(THREADS)]
        self.reads = 0

    def read(self, ids: I64Array, targets: I64Array, out: npt.NDArray[Any]) -> None:
        """Read rows of ascending ids to rows `targets` of `out`."""
        cuts = np.linspace(0, len(ids), THREADS + 1).astype(np.int64)

        def work(thread: int) -> int:
            part = slice(cuts[thread], cuts[thread + 1])
            page = np.uint64(self._pages[thread].ctypes.data)
            offset, row_bytes = self._extent.offset, self._extent.row_bytes
            return read_rows(
                self._descriptor, offset, row_bytes, ids[part], targets[part], page, np.uint64(out.ctypes.data)
            )

        counts = list(self._pool.map(work, range(THREADS)))
        assert min(counts) >= 0, "a page could not be read"
        self.reads += sum(counts)


def rate_of_random_pages(store: GraphStore, extent: Extent, num_pages: int = 40_000) -> float:
    """Bytes a second of random 4 KiB reads through the same code."""
    rows_a_page = max(1, PAGE_BYTES // extent.row_bytes)
    pages = np.random.default_rng(0).permutation(extent.shape[0] // rows_a_page)[:num_pages]
    ids, reader = np.sort(pages) * rows_a_page, PageReader(str(store.path), extent)
    order = np.random.default_rng(1).permutation(len(ids))
    out = np.empty((len(ids), extent.shape[1]), extent.dtype)
    reader.read(ids[order][:64], np.arange(64), out)  # compiled and warm
    before, start = reader.reads, time.perf_counter()
    reader.read(ids[order], np.arange(len(ids)), out)
    return (reader.reads - before) * PAGE_BYTES / (time.perf_counter() - start)


def no_cache(store: GraphStore, extent: Extent, batches: Sequence[npt.NDArray[Any]], _: int) -> Gathered:
    """(a) Every row of every mini-batch is read."""
    return _cached(store, extent, batches, 0, lambda *_: np.empty(0, np.int64))


def lru(store: GraphStore, extent: Extent, batches: Sequence[npt.NDArray[Any]], rows: int) -> Gathered:
    """(d) The rows used last stay."""
    last_use = np.full(extent.shape[0], -1, np.int32)

    def keep(number: int, candidates: I64Array, current: I64Array) -> I64Array:
        last_use[current] = number
        return candidates[np.argpartition(-last_use[candidates], rows)[:rows]] if len(candidates) > rows else candidates

    return _cached(store, extent, batches, rows, keep)


def belady(store: GraphStore, extent: Extent, batches: Sequence[npt.NDArray[Any]], rows: int) -> Gathered:
    """(c) All mini-batches are known: the rows with the nearest next use stay (Ginex)."""
    num_nodes = extent.shape[0]
    never, next_use = len(batches), np.full(num_nodes, len(batches), np.int32)
    following: list[npt.NDArray[np.int32]] = []
    for number in range(len(batches) - 1, -1, -1):
        ids = batches[number]
        following.append(next_use[ids].copy())
        next_use[ids] = number
    following.reverse()

    def keep(number: int, candidates: I64Array, current: I64Array) -> I64Array:
        next_use[batches[number]] = following[number]
        wanted = candidates[next_use[candidates] < never]
        return wanted[np.argpartition(next_use[wanted], rows)[:rows]] if len(wanted) > rows else wanted

    return _cached(store, extent, batches, rows, keep)


def memory_map(store: GraphStore, extent: Extent, batches: Sequence[npt.NDArray[Any]], _: int) -> Gathered:
    """(b) A memory map; run it where the page cache is bounded."""
    table = np.memmap(store.path, extent.dtype, "r", extent.offset, extent.shape)
    result = Gathered()
    for ids in batches:
        start = time.perf_counter()
        out = table[ids]
        result.seconds += time.perf_counter() - start
        result.requests += len(ids)
        result.checksums.append(float(out[:: max(1, len(out) // 64)].sum()))
    return result


def _cached(
    store: GraphStore,
    extent: Extent,
    batches: Sequence[npt.NDArray[Any]],
    rows: int,
    keep: Callable[[int, I64Array, I64Array], I64Array],
) -> Gathered:
    """Gather each mini-batch from a cache of rows and from pages; deciding what to keep is not timed."""
    reader, result = PageReader(str(store.path), extent), Gathered()
    reader.read(np.arange(64), np.arange(64), np.empty((64, extent.shape[1]), extent.dtype))
    reader.reads = 0
    slot_of = np.full(extent.shape[0], -1, np.int32)
    cache = np.empty((rows, extent.shape[1]), extent.dtype)
    held = np.empty(0, np.int64)
    for number, some_ids in enumerate(batches):
        ids = some_ids.astype(np.int64)
        start = time.perf_counter()
        out = np.empty((len(ids), extent.shape[1]), extent.dtype)
        slots = slot_of[ids]
        hit, miss = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        out[hit] = cache[slots[hit]]
        order = miss[np.argsort(ids[miss])]
        reader.read(ids[order], order, out)
        result.seconds += time.perf_counter() - start
        chosen = keep(number, np.union1d(held, ids), ids)
        start = time.perf_counter()
        stays = np.zeros(0, np.bool_) if not len(held) else np.isin(held, chosen)
        free = np.concatenate([slot_of[held[~stays]].astype(np.int64), np.arange(len(held), rows)])
        slot_of[held[~stays]] = -1
        coming = chosen[slot_of[chosen] < 0]
        slot_of[coming] = free[: len(coming)]
        by_id = np.argsort(ids)
        cache[slot_of[coming]] = out[by_id[np.searchsorted(ids, coming, sorter=by_id)]]
        held = chosen
        result.seconds += time.perf_counter() - start
        result.hits += len(hit)
        result.requests += len(ids)
        result.checksums.append(float(out[:: max(1, len(out) // 64)].sum()))
    result.reads, result.read_bytes = reader.reads, reader.reads * PAGE_BYTES
    return result
