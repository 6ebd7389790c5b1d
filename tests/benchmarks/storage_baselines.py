"""Other ways to get feature rows from disk, at the same budget: page reads, a memory map, Belady's and an LRU cache.

Each takes the place of the gatherer in the loader that training from disk uses, so that sampling, threads, queues and
the model are the same. They get more than the systems they stand for have: samples of the hyperbatch sampler, for which
they need no memory; the whole epoch known beforehand; and what a cache takes and gives up decided beforehand, not while
the clock runs. Missing rows are read as direct 4 KiB pages by 32 threads of compiled code, pages shared by rows of a
mini-batch once.
"""

from __future__ import annotations

import mmap
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

from kernels.cpu.intrinsics import copy_bytes
from kernels.tiered_rows import TieredRows
from storage.blocks.extent import Extent, aligned_empty

PAGE_BYTES, THREADS = 4096, 32
I64Array = npt.NDArray[np.int64]
I32Array = npt.NDArray[np.int32]
_pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.uint64, types.uint64, types.int64))


@njit(nogil=True, cache=True)
def read_rows(
    descriptor: int, offset: int, row_bytes: int, ids: I32Array, targets: I32Array, page: np.uint64, out: np.uint64
) -> int:
    """Read rows of ascending ids, each page once, to rows `targets` of the array at `out`; returns the reads, or -1."""
    reads, held = 0, np.int64(-1)
    for i in range(len(ids)):
        done = 0
        while done < row_bytes:
            at = np.int64(ids[i]) * row_bytes + done
            number = at // 4096
            if number != held:
                if _pread(descriptor, page, np.uint64(4096), offset + number * 4096) <= 0:
                    return -1
                held = number
                reads += 1
            count: Any = min(row_bytes - done, (number + 1) * 4096 - at)
            to = out + np.uint64(np.int64(targets[i]) * row_bytes + done)
            copy_bytes(to, page + np.uint64(at - number * 4096), count)
            done += count
    return reads


@njit(nogil=True, cache=True)
def copy_rows(base: np.uint64, sources: I32Array, out: np.uint64, targets: I32Array, row_bytes: int) -> int:
    """Copy rows `sources` of the array at `base` to rows `targets` of the one at `out`."""
    for i in range(len(sources)):
        source = base + np.uint64(np.int64(sources[i]) * row_bytes)
        copy_bytes(out + np.uint64(np.int64(targets[i]) * row_bytes), source, row_bytes)
    return len(sources)


def _address(array: npt.NDArray[Any]) -> np.uint64:
    return np.uint64(array.ctypes.data)


class Rows:
    """Reads rows of a dataset from many threads, and counts.

    Parameters
    ----------
    path : Path
    extent : Extent
    """

    def __init__(self, path: Path, extent: Extent) -> None:
        self.path, self.extent = path, extent
        self._pool = ThreadPoolExecutor(THREADS)
        self.reads, self.read_bytes, self.seconds = 0, 0, 0.0

    def read(self, ids: I32Array, targets: I32Array, out: npt.NDArray[Any]) -> None:
        """Read rows of ascending ids to rows `targets` of `out`."""
        cuts = np.linspace(0, len(ids), THREADS + 1).astype(np.int64)
        start = time.perf_counter()
        parts = [slice(cuts[thread], cuts[thread + 1]) for thread in range(THREADS)]
        counts = list(
            self._pool.map(lambda part: self._part(part[0], ids[part[1]], targets[part[1]], out), enumerate(parts))
        )
        self.seconds += time.perf_counter() - start
        assert min(counts) >= 0, "a page could not be read"
        self._count(sum(counts))

    def _count(self, pages: int) -> None:
        self.reads += pages
        self.read_bytes = self.reads * PAGE_BYTES

    def _part(self, thread: int, ids: I32Array, targets: I32Array, out: npt.NDArray[Any]) -> int:
        raise NotImplementedError

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


class PagedRows(Rows):
    """Direct reads of 4 KiB pages."""

    def __init__(self, path: Path, extent: Extent) -> None:
        super().__init__(path, extent)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self._pages = [aligned_empty(PAGE_BYTES) for _ in range(THREADS)]

    def _part(self, thread: int, ids: I32Array, targets: I32Array, out: npt.NDArray[Any]) -> int:
        page, offset, row_bytes = _address(self._pages[thread]), self.extent.offset, self.extent.row_bytes
        return int(read_rows(self._descriptor, offset, row_bytes, ids, targets, page, _address(out)))

    def close(self) -> None:
        """As `Rows.close`."""
        super().close()
        os.close(self._descriptor)


class MappedRows(Rows):
    """A memory map, without the kernel's read-ahead: rows lie apart."""

    def __init__(self, path: Path, extent: Extent) -> None:
        super().__init__(path, extent)
        self._table = np.memmap(path, extent.dtype, "r", extent.offset, extent.shape)
        self._table._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # what others left in the page cache
        os.close(descriptor)
        self._faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt

    def _count(self, _: int) -> None:
        """Each page that was not in memory was a fault."""
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        super()._count(faults - self._faults)
        self._faults = faults

    def _part(self, thread: int, ids: I32Array, targets: I32Array, out: npt.NDArray[Any]) -> int:
        return int(copy_rows(_address(self._table), ids, _address(out), targets, self.extent.row_bytes))


@dataclass(frozen=True, slots=True)
class Change:
    """What a cache serves of a mini-batch and takes over from it."""

    hit: I32Array
    """Positions of rows in the cache, and their slots."""
    hit_slot: I32Array
    miss: I32Array
    """Positions of the others, by ascending id."""
    taken: I32Array
    """Positions of rows that the cache keeps from now on, and their slots."""
    taken_slot: I32Array


Keep = Callable[[int, I64Array, I64Array], I64Array]


def changes(batches: Sequence[npt.NDArray[Any]], num_nodes: int, rows: int, keep: Keep) -> list[Change]:
    """Decide beforehand what a cache of so many rows holds after each mini-batch."""
    slot_of, held = np.full(num_nodes, -1, np.int32), np.empty(0, np.int64)
    found = []
    for number, some_ids in enumerate(batches):
        ids = some_ids.astype(np.int64)
        slots = slot_of[ids]
        hit, miss = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        by_id = np.argsort(ids)
        miss = by_id[slots[by_id] < 0]
        chosen = keep(number, np.union1d(held, ids), ids) if rows else held
        stays = np.isin(held, chosen)
        free = np.concatenate([slot_of[held[~stays]].astype(np.int64), np.arange(len(held), rows)])
        slot_of[held[~stays]] = -1
        coming = chosen[slot_of[chosen] < 0]
        slot_of[coming] = free[: len(coming)]
        taken = by_id[np.searchsorted(ids, coming, sorter=by_id)]
        found.append(Change(*(part.astype(np.int32) for part in (hit, slots[hit], miss, taken, slot_of[coming]))))
        held = chosen
    return found


def nothing(*_: Any) -> I64Array:
    """(a) Every row of every mini-batch is read."""
    return np.empty(0, np.int64)


def least_recently_used(num_nodes: int, rows: int) -> Keep:
    """(d) The rows used last stay."""
    last_use = np.full(num_nodes, -1, np.int32)

    def keep(number: int, candidates: I64Array, current: I64Array) -> I64Array:
        last_use[current] = number
        return candidates[np.argpartition(-last_use[candidates], rows)[:rows]] if len(candidates) > rows else candidates

    return keep


def belady(batches: Sequence[npt.NDArray[Any]], num_nodes: int, rows: int) -> Keep:
    """(c) All mini-batches are known: the rows with the nearest next use stay (Ginex)."""
    never, next_use = len(batches), np.full(num_nodes, len(batches), np.int32)
    following: list[I32Array] = []
    for number in range(len(batches) - 1, -1, -1):
        following.append(next_use[batches[number]].copy())
        next_use[batches[number]] = number
    following.reverse()

    def keep(number: int, candidates: I64Array, _: I64Array) -> I64Array:
        next_use[batches[number]] = following[number]
        wanted = candidates[next_use[candidates] < never]
        return wanted[np.argpartition(next_use[wanted], rows)[:rows]] if len(wanted) > rows else wanted

    return keep


class RowGroup:
    """One mini-batch's rows, put together."""

    def __init__(self, rows: npt.NDArray[Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        """One mini-batch."""
        return 1

    def rows(self, _: int) -> TieredRows:
        """As `storage.blocks.gathering.RowGroup.rows`."""
        count = len(self._rows)
        return TieredRows([self._rows], np.zeros(count, np.uint8), np.arange(count))

    def close(self) -> None:
        """Give the rows back."""
        self._rows = self._rows[:0]


@dataclass
class CachedRows:
    """Stands in for the gatherer: rows of a cache, the others from disk."""

    source: Rows
    plan: Sequence[Change]
    """Of the mini-batches to come."""
    rows: int
    """Rows of the cache."""
    done_at: list[float] = field(default_factory=list)
    """When each mini-batch was ready."""
    hits: int = 0
    requests: int = 0

    def groups(self, batches: Sequence[npt.NDArray[Any]]) -> Iterator[RowGroup]:
        """As `storage.blocks.gathering.Gatherer.groups`."""
        for ids in batches:
            rows = self._gather(ids.astype(np.int32, copy=False))
            self.done_at.append(time.perf_counter())
            yield RowGroup(rows)

    def _gather(self, ids: I32Array) -> npt.NDArray[Any]:
        change, extent = self.plan[len(self.done_at)], self.source.extent
        if not hasattr(self, "_cache"):
            self._cache = np.empty((self.rows, extent.shape[1]), extent.dtype)
        out = np.empty((len(ids), extent.shape[1]), extent.dtype)
        cache, target, row_bytes = _address(self._cache), _address(out), extent.row_bytes
        copy_rows(cache, change.hit_slot, target, change.hit, row_bytes)
        self.source.read(ids[change.miss], change.miss, out)
        copy_rows(target, change.taken, cache, change.taken_slot, row_bytes)
        self.hits, self.requests = self.hits + len(change.hit), self.requests + len(ids)
        return out


def page_rate(path: Path, extent: Extent, num_pages: int = 40_000) -> float:
    """Bytes a second of random 4 KiB reads, and nothing else, by as many threads."""
    pages = np.random.default_rng(0).permutation(extent.nbytes // PAGE_BYTES)[:num_pages].astype(np.int32)
    rows = PagedRows(path, replace(extent, shape=(len(pages), PAGE_BYTES), dtype=np.dtype(np.uint8)))
    memory = aligned_empty(PAGE_BYTES)
    try:
        zeros = np.zeros(len(pages), np.int32)  # all go to one page of memory: what is copied does not count
        rows.read(pages[:64], zeros[:64], memory)
        rows.reads, rows.seconds = 0, 0.0
        rows.read(pages, zeros, memory)
        return rows.read_bytes / rows.seconds
    finally:
        rows.close()
