"""The dynamic cache: slots for what the static cache misses now, refilled beside the training path.

An update writes incoming rows to slots that nobody reads, then publishes a new generation of the map at once. Slots
that rows have left are free again when no reader of an older generation is left: no row changes under a reader.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.rank_map import RankMap
from storage.cache.hotset import DynamicLayout, DynamicOptions, HotSet, Ids
from storage.cache.slots import Slots

_logger = logging.getLogger(__name__)
_IDLE_EPOCHS = 2
"""Epochs in a row whose updates do not pay, after which there are no more."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What the dynamic cache holds from one update to the next."""

    ids: Ids
    """(k,) nodes held, ascending."""
    map: RankMap
    """Of those nodes."""
    slot_K: npt.NDArray[np.int32]
    """(k,) slot of each."""
    readable: Any
    """What readers read and keep, so that they can be told from those of other generations (`Slots.readable`)."""


@dataclass(slots=True)
class DynamicStats:
    """Work of a dynamic cache since it was made."""

    updates: int = 0
    """Updates done."""
    swapped_rows: int = 0
    """Rows brought in."""
    moved_bytes: int = 0
    """Bytes that crossed for them."""
    postponed: int = 0
    """Updates that found no free slot, as readers of older generations were still at work."""
    predicted_gain: float = 0.0
    """Accesses that the rows brought in were expected to serve beyond those they replaced."""
    update_s: float = 0.0
    """Seconds of choosing and copying, beside the training path."""
    score_s: float = 0.0
    """Seconds of scoring, in the gathering thread."""
    stopped: float = 0.0
    """1 once updates have stopped."""

    def since(self, before: DynamicStats) -> dict[str, float]:
        """What was added after an earlier state, by name; `dynamic_stopped` as it is now."""
        changes = {f"dynamic_{name}": float(getattr(self, name) - getattr(before, name)) for name in _STATS}
        return changes | {"dynamic_stopped": self.stopped}


_STATS = tuple(DynamicStats.__dataclass_fields__)


@dataclass(slots=True)
class EpochUpkeep:
    """One epoch of a dynamic cache."""

    hits: int = 0
    """Rows that it served: what it gained over the static cache alone, in rows."""
    previous_hits: int = 0
    """The same of the epoch before."""
    cumulative_hits: int = 0
    """Of all epochs up to this one."""
    work: dict[str, float] = field(default_factory=dict)
    """What was done meanwhile; an update at the epoch's end counts in the next one if it took longer."""

    def figures(self) -> dict[str, float]:
        """Everything by name; `dynamic_gain_change` is the paper's D, of which it takes ratios that mislead."""
        gains = {
            "dynamic_hits": float(self.hits),
            "dynamic_gain_change": float(self.hits - self.previous_hits),
            "dynamic_cumulative_hits": float(self.cumulative_hits),
        }
        return gains | self.work


class DynamicCache:
    """Rows of the hottest nodes that the static cache misses; threads may share one object.

    Parameters
    ----------
    slots : Slots
        Where rows and scores lie, for the layout.
    layout : DynamicLayout
        Sizes; at least one row.
    options : DynamicOptions
        How to keep it up.

    Notes
    -----
    An update chooses by a copy of the scores, which go on growing meanwhile. Rows are never wrong for it.
    """

    def __init__(self, slots: Slots, layout: DynamicLayout, options: DynamicOptions) -> None:
        self._slots, self.layout, self._options = slots, layout, options
        self._hot = HotSet(slots.score_N, options.gamma)
        self._free = list(range(layout.rows + layout.spare_rows))
        self._retired: deque[tuple[weakref.ref[Any], list[int]]] = deque()
        self.current = self._generation(np.empty(0, np.int64), np.empty(0, np.int32))
        self.stats = DynamicStats()
        self.is_watching = False
        """Whether accesses are scored: those of training are, those of evaluation are not."""
        self._batches, self._idle, self._gain_bytes, self._cost_bytes = 0, 0, 0.0, 0.0
        self._last_hits = self._all_hits = 0
        self._lock, self._updating = Lock(), Lock()
        self._pool = ThreadPoolExecutor(1, "dynamic-cache")
        self._pending, self._pending_lock = list[Future[None]](), Lock()
        weakref.finalize(self, self._pool.shutdown, wait=False)

    @property
    def nbytes(self) -> int:
        """Bytes on the device: slots, and two generations of maps and slot numbers."""
        return self.layout.nbytes

    @property
    def readable(self) -> Any:
        """What readers of now read and keep."""
        return self.current.readable

    def observe(self, num_batches: int, score: Callable[[int, Any, float], None]) -> None:
        """Score a group of mini-batches, and start an update where one is due.

        Parameters
        ----------
        num_batches : int
        score : callable
            `score(k, score_N, weight)` adds the weight to the score of every node that the static cache misses in
            mini-batch k; called for each in order.
        """
        if not self.is_watching or self.stats.stopped:
            return
        start = time.perf_counter()
        with self._lock:
            for k in range(num_batches):
                score(k, self._hot.score_N, self._hot.weight)
                self._hot.advance()
            self._slots.scored()
            self._batches += num_batches
            is_due = 0 < self._options.interval_batches <= self._batches
            self._batches = 0 if is_due else self._batches
        self.stats.score_s += time.perf_counter() - start
        if is_due and all(update.done() for update in tuple(self._pending)):  # one at work goes on instead
            self._start_update()

    @contextmanager
    def watch(self, epoch: int) -> Iterator[EpochUpkeep]:
        """Score what is read for an epoch, and end it; whoever opens it says how many rows were served."""
        before, upkeep = replace(self.stats), EpochUpkeep(previous_hits=self._last_hits)
        self.is_watching = True
        try:
            yield upkeep
        finally:
            self.is_watching = False
        self.end_epoch(epoch)
        self._last_hits = upkeep.hits
        self._all_hits += upkeep.hits
        upkeep.cumulative_hits, upkeep.work = self._all_hits, self.stats.since(before)

    def end_epoch(self, epoch: int) -> None:
        """Update where an epoch's end is the time to; stop by schedule, or where updates gain less than they cost.

        An error in an update that has ended by now is raised here, and where updates stop, in any.
        """
        self._raise_errors()
        if self.stats.stopped:
            return
        gain_bytes, cost_bytes = self._gain_bytes, self._cost_bytes
        self._gain_bytes = self._cost_bytes = 0.0
        self._idle = self._idle + 1 if cost_bytes and gain_bytes < cost_bytes else 0
        if self._idle >= _IDLE_EPOCHS:
            self.wait()
            self._stop(f"those of {self._idle} epochs in a row gained less than they cost")
        if not self._options.interval_batches and not self.stats.stopped:
            self._start_update()
        if epoch + 1 >= self._options.epochs and not self.stats.stopped:
            self.wait()
            self._stop(f"after {epoch + 1} epochs, as scheduled")

    def _start_update(self) -> None:
        self._raise_errors()
        with self._pending_lock:
            self._pending.append(self._pool.submit(self.update))

    def _raise_errors(self) -> None:
        """Let go of updates that have ended; an error in one must not go unnoticed."""
        with self._pending_lock:
            ended = [update for update in self._pending if update.done()]
            self._pending = [update for update in self._pending if update not in ended]
        for update in ended:
            update.result()

    def close(self) -> None:
        """End the thread that updates, after what it is doing; what is held goes on being read.

        An error in it is logged: rows are right all the same, and whoever closes may have another one to tell.
        """
        self.stats.stopped = 1.0
        self._pool.shutdown(wait=True)
        for update in self._pending:
            if update.exception() is not None:
                _logger.warning("dynamic cache: an update failed (%s)", update.exception())
        self._pending.clear()

    def wait(self) -> None:
        """Wait for the updates at work; an error in one is raised here."""
        with self._pending_lock:
            pending, self._pending = self._pending, []
        for update in pending:
            update.result()

    def update(self) -> None:
        """Bring in the rows that are worth it, and publish them; one update at a time."""
        with self._updating:
            self._update()

    def _update(self) -> None:
        start, held = time.perf_counter(), self.current
        self._reclaim()
        with self._lock:  # scores and weight of one moment: both are scaled down now and then
            hot = self._hot.of_now(self._slots.copied_scores())
        swap = hot.propose(held.ids, self.layout.rows, len(self._free))
        if len(swap.incoming):
            self._publish(held, swap.incoming, swap.outgoing)
        stats, moved_bytes = self.stats, len(swap.incoming) * self.layout.row_bytes
        stats.updates += 1
        stats.postponed += not self._free and not len(swap.incoming)
        stats.swapped_rows += len(swap.incoming)
        stats.moved_bytes += moved_bytes
        stats.predicted_gain += swap.gain
        self._gain_bytes += swap.gain * self.layout.row_bytes
        self._cost_bytes += moved_bytes + hot.score_N.nbytes  # choosing reads every score
        stats.update_s += time.perf_counter() - start

    def _publish(self, held: Generation, incoming: Ids, outgoing: Ids) -> None:
        slots = np.array([self._free.pop() for _ in incoming], np.int32)
        self._slots.fill(slots, incoming)
        stays = ~np.isin(held.ids, outgoing, assume_unique=True)
        ids = np.concatenate([held.ids[stays], incoming])
        slot_K = np.concatenate([held.slot_K[stays], slots])
        order = np.argsort(ids)
        left = held.slot_K[~stays].tolist()
        reader = weakref.ref(held.readable)
        self.current = self._generation(ids[order], slot_K[order])
        self._retired.append((reader, left))

    def _generation(self, ids: Ids, slot_K: npt.NDArray[np.int32]) -> Generation:
        rank_map = RankMap.from_sorted_ids(ids, self._slots.num_nodes)
        return Generation(ids, rank_map, slot_K, self._slots.readable(rank_map, slot_K))

    def _reclaim(self) -> None:
        """Free the slots of generations that nobody reads; a reader may hold slots of all later ones too."""
        while self._retired and self._retired[0][0]() is None:
            self._free += self._retired.popleft()[1]

    def _stop(self, why: str) -> None:
        self.stats.stopped = 1.0
        _logger.info("dynamic cache: no more updates, %s (%d rows held)", why, len(self.current.ids))
