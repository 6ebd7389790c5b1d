"""How many mini-batches make a hyperbatch: as many as make an epoch short in the memory there is, by arithmetic.

More mini-batches share a block that is read; their ids leave less memory to rows that many of them need. And while one
hyperbatch trains the next one is prepared: before the first one there is nothing to train on, whatever is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from storage.blocks.gathering import KEPT_ID_BYTES
from storage.blocks.spill import SPARE_BUFFERS, padded
from storage.blocks.spill_room import spilled_bytes
from storage.expected_store import StoreSizes
from storage.graph_store import FEATURES, INDICES
from tasks.batch_sizes import BatchSizes
from tasks.hyperbatch_options import GENERATIONS

MOST_HYPERBATCH = 1024
_PIECE_BYTES = (16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10)
"""Of a buffer in front of the spill file: a smaller one is slow, a larger one hardly faster."""
GENERATIONS_OF_IDS = 3
"""Samples of two hyperbatches, and ids in ascending order while one is gathered."""
DISK_BYTES_PER_S = 2e9
"""What a disk is taken to move: with it only the balance of reading and training is judged."""
REQUEST_BYTES = 64 << 10
"""A request takes the disk as long as so many bytes more."""
_COUNT_BYTES = 4  # a node whose neighbors wait on disk


class NoRoomError(ValueError):
    """No hyperbatch fits the disk; `needed` bytes would do."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"no hyperbatch spills less than {needed} bytes")
        self.needed = needed


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes to and from the disk for a mini-batch, as expected."""

    lists: float
    """Blocks of adjacency lists."""
    rows: float
    """Blocks of features."""
    spilled: float
    """Rows that are written, and read again."""
    samples: float
    """What of samples, and of neighbors before they are numbered, is written, and read again."""
    one_cache: bool = False
    """Whether hyperbatches that spill share the rows that the first one needs most, instead of a cache for each."""

    @property
    def read(self) -> float:
        """Bytes read."""
        return self.lists + self.rows + self.spilled + self.samples

    @property
    def written(self) -> float:
        """Bytes written."""
        return self.spilled + self.samples

    @property
    def moved(self) -> float:
        """Bytes read and written."""
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class Share:
    """What hyperbatches of one size take, in bytes, and what they move."""

    count: int
    """Mini-batches."""
    spills_samples: bool
    """Whether samples wait on disk."""
    samples: int
    """Samples, or what stays of them in memory."""
    sampling: int
    """Work space of sampling."""
    spill: int
    """Buffers in front of the spill file."""
    cache: int
    """What is left for rows."""
    traffic: Traffic
    """What they move for a mini-batch, as expected."""
    seconds: float
    """Of an epoch, as expected: to compare ways by, not to foretell."""
    least_room: int
    """The least room on disk for mini-batches as large as there is memory for: samples, and rows beyond the cache."""
    good_room: int
    """The same for the largest possible ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperbatches:
    """What is known about the mini-batches to come."""

    store: StoreSizes
    """The graph."""
    expected: BatchSizes
    """Sizes of most of them."""
    bound: BatchSizes
    """Sizes that none exceeds."""
    num_batches: int
    """Mini-batches an epoch."""
    shared_nodes: int
    """Input nodes that two mini-batches have in common."""
    largest: BatchSizes
    """Sizes that none can exceed."""
    room: int
    """Bytes on disk for spilled rows and samples."""
    is_disk_budgeted: bool
    """Whether the room is a budget: then neighbors do not wait on disk, and hyperbatches share no cache."""

    def least_bytes(self, count: int) -> int:
        """The least memory for hyperbatches of so many, rows in a cache left out."""
        buffers = (count + SPARE_BUFFERS) * _PIECE_BYTES[0]
        ways = self._ways() if self._least_room(count, 0, self.bound, spills=True) <= self.room else (False,)
        return min(self._samples(count, spills=spills) for spills in ways) + self.least_work_bytes + buffers

    @property
    def least_work_bytes(self) -> int:
        """Memory while one mini-batch is sampled, and its copy on the way to the disk."""
        return work_bytes(self.bound)

    def best(self, memory: int, asked: int | None) -> Share:
        """The share that makes an epoch shortest, of the size that was asked for if any.

        Raises
        ------
        ValueError
            If not even `least_bytes` fit.
        NoRoomError
            If none fits the disk.
        """
        counts = [min(asked, self.num_batches)] if asked else list(self._counts())
        fitting = [
            share for count in counts for spills in self._ways() for share in self._shares(count, memory, spills=spills)
        ]
        if not fitting:
            raise ValueError(f"{memory} bytes hold no hyperbatch of {counts[-1]}")
        least = min(share.least_room for share in fitting)
        if least > self.room:
            raise NoRoomError(least)
        good = [share for share in fitting if share.good_room <= self.room]
        return min(
            good or [share for share in fitting if share.least_room <= self.room], key=lambda share: share.seconds
        )

    def enough_room(self, asked: int | None) -> int:
        """Bytes on disk at which no mini-batch takes too many."""
        return self._least_room(min(asked or 1, self.num_batches), 0, self.largest, spills=self.expected.edges > 0)

    def sample_room(self, share: Share) -> int:
        """What of the room samples get."""
        most = self.largest if share.good_room <= self.room else self.bound
        return sample_disk_bytes(share.count, self.expected, most) if share.spills_samples else 0

    def _ways(self) -> tuple[bool, ...]:
        """Samples in memory, or on disk."""
        return (False, True) if self.expected.edges else (False,)

    def _least_room(self, count: int, cache: int, most: BatchSizes, *, spills: bool) -> int:
        """Bytes on disk for samples, and for what the rows of one mini-batch at a time take beyond the caches."""
        row_bytes = self.store.info.feature_row_bytes
        beyond = most.nodes - cache // GENERATIONS // (row_bytes + KEPT_ID_BYTES)
        rows = GENERATIONS * spilled_bytes(max(0, beyond), row_bytes, 1)
        return rows + (sample_disk_bytes(count, self.expected, most) if spills else 0)

    def _counts(self) -> Iterator[int]:
        """Sizes that cut an epoch into equal hyperbatches, and 1."""
        last = 0
        for parts in range(max(1, -(-self.num_batches // MOST_HYPERBATCH)), self.num_batches + 1):
            count = -(-self.num_batches // parts)
            if count != last:
                yield count
            if count == 1:
                return
            last = count

    def _samples(self, count: int, *, spills: bool) -> int:
        most = max(count * held_bytes(self.expected, spills=spills), held_bytes(self.bound, spills=spills))
        return GENERATIONS_OF_IDS * most

    def _shares(self, count: int, memory: int, *, spills: bool) -> Iterator[Share]:
        """The ways to share memory out to hyperbatches of one size: buffers in front of the spill file, or rows."""
        samples = self._samples(count, spills=spills)
        one = self.expected.sampling_bytes + self.expected.sample_bytes
        pieces = count + SPARE_BUFFERS
        room = memory - samples - pieces * _PIECE_BYTES[0]
        sampling = max(self.least_work_bytes, min(count * one, memory // 8, room))
        rest = memory - samples - sampling
        for piece in _PIECE_BYTES:
            cache = rest - pieces * piece
            if cache >= 0:
                traffic = self.traffic(count, cache, sampling, spills=spills)
                seconds = self._seconds(count, traffic, piece)
                rooms = (self._least_room(count, cache, most, spills=spills) for most in (self.bound, self.largest))
                yield Share(count, spills, samples, sampling, pieces * piece, cache, traffic, seconds, *rooms)

    def _seconds(self, count: int, traffic: Traffic, piece: int) -> float:
        """Of an epoch: the first hyperbatch is prepared, then one trains while the next one is prepared."""
        moved = traffic.moved + traffic.spilled * REQUEST_BYTES / piece
        prepare, train = count * moved / DISK_BYTES_PER_S, count * self.expected.step_us / 1e6
        parts = math.ceil(self.num_batches / count)
        return prepare + (parts - 1) * max(prepare, train) + train

    def traffic(self, count: int, cache: int, sampling: int, *, spills: bool) -> Traffic:
        """What hyperbatches of so many move, with so much memory for rows and for sampling."""
        info, sizes = self.store.info, self.expected
        room = self.room - (sample_disk_bytes(count, sizes, self.bound) if spills else 0)
        lists, waiting = self._lists(count, sampling)
        samples = waiting + (sizes.sample_bytes if spills else 0)
        if not info.feature_row_bytes:
            return Traffic(lists, 0.0, 0.0, samples)
        rows = cache // (info.feature_row_bytes + KEPT_ID_BYTES)
        own_rows = rows if count == self.num_batches else rows // GENERATIONS
        hits, one_cache = self._hits(count, own_rows), False
        if count < self.num_batches and not self.is_disk_budgeted and self._hits_of_first(rows) > hits:
            hits, one_cache = self._hits_of_first(rows), True
        cold = count * info.feature_row_bytes * (sizes.nodes - hits)
        at_once = max(1.0, count / max(1, math.ceil(cold / max(1, room // GENERATIONS))))  # the disk holds their rows
        blocks = self._touched(FEATURES, at_once * sizes.nodes) / at_once
        cold_bytes = info.feature_row_bytes * (sizes.nodes - (hits if one_cache else self._hits(at_once, own_rows)))
        spilling = Traffic(lists, blocks, cold_bytes, samples, one_cache)
        together = min(count, own_rows // max(1, sizes.nodes))  # as many as need no spilling
        if not together:
            return spilling
        grouping = Traffic(lists, self._touched(FEATURES, together * sizes.nodes) / together, 0.0, samples)
        return min(spilling, grouping, key=lambda traffic: traffic.moved)

    def _lists(self, count: int, sampling: int) -> tuple[float, float]:
        """Bytes of adjacency lists, once each hop, and of neighbors that wait where they do not fit the work space."""
        sizes = self.expected
        passes = max(1, math.ceil(count * (sizes.sampling_bytes + sizes.sample_bytes) / sampling))
        once = self._touched(INDICES, count * sizes.frontier) / count
        if self.is_disk_budgeted or passes == 1:  # the last hop is the one that does not fit
            return (passes + sizes.hops - 1) * once, 0.0
        return sizes.hops * once, float(sizes.edges * sizes.id_bytes + sizes.frontier * _COUNT_BYTES)

    def _touched(self, name: str, places: float) -> float:
        """Bytes of the blocks that hold some of many places."""
        extent = self.store.extent(name)
        return extent.nbytes * -math.expm1(-places / max(1, extent.num_blocks))

    def _hits(self, count: float, rows: int) -> float:
        """Rows of a mini-batch that a cache of the most frequent ones holds.

        Those that two mini-batches share are taken as needed by each, the others as needed by chance.
        """
        nodes, often = self.expected.nodes, min(self.shared_nodes, self.expected.nodes)
        seldom = max(1, self.store.info.num_nodes - often)
        distinct = seldom * -math.expm1(-count * (nodes - often) / seldom)
        return min(rows, often) + (nodes - often) * min(1.0, max(0, rows - often) / max(1.0, distinct))

    def _hits_of_first(self, rows: int) -> float:
        """Rows of a mini-batch that are among so many which the first hyperbatch needs most: others only by chance."""
        nodes, often = self.expected.nodes, min(self.shared_nodes, self.expected.nodes)
        seldom = max(1, self.store.info.num_nodes - often)
        return min(rows, often) + min(seldom, max(0, rows - often)) * min(1.0, (nodes - often) / seldom)


def sample_disk_bytes(count: int, expected: BatchSizes, most: BatchSizes) -> int:
    """Bytes on disk for samples of hyperbatches of so many mini-batches, or for one as large as any."""
    one, largest = (padded(sizes.sample_bytes) + padded(1) for sizes in (expected, most))
    return GENERATIONS * max(count * one, largest)


def held_bytes(sizes: BatchSizes, *, spills: bool) -> int:
    """Bytes of a mini-batch that waits: its sample, or its ids and, until the last hop is drawn, what came before."""
    ids, inner = sizes.nodes * sizes.id_bytes, sizes.inner_bytes + sizes.inverse_bytes
    in_order = 2 * sizes.frontier * sizes.id_bytes  # the last hop's nodes, and they in ascending order
    return max(ids, inner + in_order) if spills else sizes.sample_bytes


def work_bytes(sizes: BatchSizes) -> int:
    """Bytes while a mini-batch is sampled alone, and of its copy on the way to the disk."""
    return sizes.sampling_bytes + 2 * sizes.sample_bytes
