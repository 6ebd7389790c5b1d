"""The mini-batches of one epoch: super-batches sampled ahead in the loader's pool, their rows gathered in a thread."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from kernels.cpu.aligned import aligned
from kernels.mfg import IdArray, Sample, SuperBatch, TierReads
from kernels.nn.layers import Rows
from storage.errors import MachineError
from tasks.in_flight import InFlight, bytes_of, most_bytes

if TYPE_CHECKING:
    from tasks.loader import MiniBatchLoader

TimedSuperBatch = tuple[SuperBatch, float]
"""A sampled super-batch and the seconds it took."""

POLL_S = 0.05
"""Seconds between two looks at whether the consumer has left."""
CLOSE_S = 10.0
"""Most seconds to wait for threads when a stream is closed."""


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """What the model takes for one step."""

    sample: Sample
    """Hops and node ids."""
    rows: Rows
    """(num_inputs, F) features of the input nodes in the storage dtype: gathered on a cache-line boundary, or located
    in the tiers."""
    held_bytes: int = 0
    """Bytes in flight that its use gives back."""
    seeds: IdArray | None = None
    """(num_seed_rows,) the unique seeds on the host, where the sample is not there."""

    @property
    def seed_nodes(self) -> IdArray:
        """(num_seed_rows,) the unique seeds in order of first appearance, on the host."""
        return self.sample.seed_nodes if self.seeds is None else self.seeds


@dataclass(slots=True)
class LoadStats:
    """Costs of one epoch of loading; complete once the stream has ended."""

    sample_s: float = 0.0
    """Seconds of sampling, added over the threads."""
    gather_s: float = 0.0
    """Seconds of gathering rows."""
    wait_s: float = 0.0
    """Seconds that the consumer waited for a mini-batch."""
    adjacency_reads: TierReads = field(default_factory=TierReads)
    """Adjacency lists read by sampling."""


class EpochStream:
    """The mini-batches of one epoch, in order; errors of the threads are raised at the consumer."""

    def __init__(self, loader: MiniBatchLoader, batches: Sequence[IdArray], epoch: int, indices: range) -> None:
        self.stats = LoadStats()
        self.in_flight = InFlight(loader.in_flight_bytes)
        self._loader = loader
        self._batches = batches
        self._epoch = epoch
        self._indices = indices
        self._row_bytes = loader.features.row_bytes
        self._in_hand_bytes = 0
        self._ready: queue.Queue[MiniBatch | BaseException | None] = queue.Queue(loader.prefetch)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="gather", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[MiniBatch]:
        while True:
            item = self._next()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """Stop loading; safe to call twice, and from the consumer at any time."""
        self._stopped.set()
        self._thread.join(CLOSE_S)

    def __enter__(self) -> EpochStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next(self) -> MiniBatch | BaseException | None:
        start = time.perf_counter()
        self.in_flight.release(self._in_hand_bytes)
        self._in_hand_bytes = 0
        try:
            # Twice the producer's own limit: where sampling stalls, its message is the better one.
            item = self._ready.get(timeout=2 * self._loader.stall_timeout_s)
            self._in_hand_bytes = item.held_bytes if isinstance(item, MiniBatch) else 0
            return item
        except queue.Empty:
            raise MachineError(
                f"no mini-batch of epoch {self._epoch} arrived for {2 * self._loader.stall_timeout_s:g} s: "
                "gathering features is stalled; is the disk or the machine overloaded?"
            ) from None
        finally:
            self.stats.wait_s += time.perf_counter() - start

    def _produce(self) -> None:
        """Gather what the pool samples; the body of the gathering thread."""
        try:
            for super_batch in self._sampled_in_order():
                self._gather(super_batch)
            self._put(None)
        except StoppedError:
            pass
        except BaseException as error:
            self._deliver(error)

    def _gather(self, super_batch: SuperBatch) -> None:
        start = time.perf_counter()
        rows_of_each = self._rows_of_each([sample.input_nodes for sample in super_batch.samples])
        for position, sample in enumerate(super_batch.samples, start=1):
            # The samples share memory, which the last of them gives back.
            shared_bytes = super_batch.nbytes if position == len(super_batch.samples) else 0
            held_bytes = len(sample.input_nodes) * self._row_bytes + shared_bytes
            batch = MiniBatch(sample, next(rows_of_each), held_bytes)
            self.stats.gather_s += time.perf_counter() - start
            self._put(batch)
            start = time.perf_counter()

    def _rows_of_each(self, ids: Sequence[IdArray]) -> Iterator[Rows]:
        features = self._loader.features
        if self._loader.in_place:
            return features.locate_group(ids)
        return (torch.from_numpy(aligned(rows)) for rows in features.gather_group(ids))

    def _sampled_in_order(self) -> Iterator[SuperBatch]:
        pending: deque[tuple[Future[TimedSuperBatch], int]] = deque()
        try:
            for first in range(0, len(self._batches), self._loader.superbatch):
                group = slice(first, first + self._loader.superbatch)
                batches = self._batches[group]
                reserved = most_bytes(self._loader.sampler, batches, self._row_bytes)
                while not self.in_flight.try_reserve(reserved):
                    if pending:
                        yield self._finished(*pending.popleft())
                    else:
                        self._wait_for_consumer()
                pending.append((self._loader.sample_ahead(self._indices[group], batches, self._epoch), reserved))
                if len(pending) > self._loader.threads:
                    yield self._finished(*pending.popleft())
            while pending:
                yield self._finished(*pending.popleft())
        finally:
            for future, _ in pending:
                future.cancel()

    def _wait_for_consumer(self) -> None:
        if self._stopped.is_set():
            raise StoppedError
        self.in_flight.wait_for_release(POLL_S)

    def _finished(self, future: Future[TimedSuperBatch], reserved_bytes: int) -> SuperBatch:
        limit_s = self._loader.stall_timeout_s
        try:
            super_batch, sample_s = future.result(timeout=limit_s)
        except TimeoutError:
            if future.done():  # sampling itself raised it
                raise
            raise MachineError(
                f"sampling a super-batch of epoch {self._epoch} has taken over {limit_s:g} s: "
                "is the machine overloaded or swapping?"
            ) from None
        self.in_flight.release(reserved_bytes - bytes_of(super_batch, self._row_bytes))
        self.stats.sample_s += sample_s
        self.stats.adjacency_reads.add(super_batch.adjacency_reads)
        return super_batch

    def _put(self, item: MiniBatch | BaseException | None) -> None:
        put_unless_stopped(self._ready, item, self._stopped)

    def _deliver(self, error: BaseException) -> None:
        with contextlib.suppress(StoppedError):  # nobody may be listening any more
            self._put(error)


class StoppedError(Exception):
    """The consumer has left."""


def put_unless_stopped(ready: queue.Queue[Any], item: object, stopped: threading.Event) -> None:
    """Put an item as soon as there is room.

    Raises
    ------
    StoppedError
        If nobody takes any more.
    """
    while not stopped.is_set():
        with contextlib.suppress(queue.Full):
            ready.put(item, timeout=POLL_S)
            return
    raise StoppedError
