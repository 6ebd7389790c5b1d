"""Mini-batches from disk: hyperbatch h + 1 is sampled while h is gathered and h - 1 trains; queues bounded in bytes."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.cpu.aligned import aligned
from kernels.mfg import IdArray, Sample
from kernels.tiered_rows import TieredRows
from storage.blocks.gathering import Gatherer, GatherOptions
from storage.blocks.hyperbatch import HyperbatchSampler
from storage.blocks.row_group import Gathers, RowGroup
from storage.blocks.sample_file import HeldSample, SampleFile, WaitingSample, saved_bytes
from storage.blocks.stored_features import StoredFeatures
from storage.errors import MachineError
from tasks.epoch_stream import CLOSE_S, POLL_S, LoadStats, MiniBatch, StoppedError
from tasks.hyperbatch_options import GENERATIONS, HyperbatchOptions


class HyperbatchLoader:
    """Loads epochs of a graph on disk, hyperbatch by hyperbatch; use as a context manager.

    Three threads: one samples a hyperbatch ahead, one gathers, one reads what was spilled, one mini-batch ahead.
    The mini-batches are those of `tasks.loader.MiniBatchLoader`.

    Parameters
    ----------
    sampler : HyperbatchSampler
    features : StoredFeatures
    options : HyperbatchOptions
    """

    def __init__(self, sampler: HyperbatchSampler, features: StoredFeatures, options: HyperbatchOptions) -> None:
        if options.hyperbatch < 1:
            raise ValueError(f"hyperbatch must be >= 1 (got {options.hyperbatch})")
        self.sampler, self.features, self.options = sampler, features, options
        self._last: weakref.ref[HyperbatchStream] | None = None

    def epoch(
        self, batches: Sequence[IdArray], *, epoch: int, first_batch: int = 0, batch_step: int = 1
    ) -> HyperbatchStream:
        """Start loading one epoch; parameters are those of `MiniBatchLoader.epoch`.

        Raises
        ------
        RuntimeError
            If another one is open: memory and disk are planned for one at a time.
        """
        last = None if self._last is None else self._last()
        if last is not None and not last.is_closed:
            raise RuntimeError(
                f"epoch {last.epoch} of this loader is still open, and from disk one at a time has the memory: end its "
                "loop, or drop its iterator, before the next one"
            )
        indices = range(first_batch, first_batch + len(batches) * batch_step, batch_step)
        stream = HyperbatchStream(self, batches, epoch, indices)
        self._last = weakref.ref(stream)
        return stream

    def gatherer(self, options: GatherOptions, check_stop: Callable[[], None]) -> Gathers:
        """What gets the rows of an epoch's hyperbatches, within a share of the memory."""
        return Gatherer(self.features, options, check_stop)

    def close(self) -> None:
        """Nothing is left between epochs."""

    def __enter__(self) -> HyperbatchLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Ready:
    """A mini-batch for the consumer, and the group to close once it is used."""

    batch: MiniBatch
    last_of: RowGroup | None


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A hyperbatch between sampling and use."""

    samples: list[WaitingSample]
    file: SampleFile | None

    def add(self, sample: Sample) -> None:
        self.samples.append(HeldSample(sample) if self.file is None else self.file.save(sample))


class HyperbatchStream:
    """The mini-batches of one epoch, in order; errors of the threads are raised at the consumer."""

    def __init__(self, loader: HyperbatchLoader, batches: Sequence[IdArray], epoch: int, indices: range) -> None:
        self.stats = LoadStats()
        self._loader, self._batches, self.epoch, self._indices = loader, batches, epoch, indices
        held = GENERATIONS if len(batches) > loader.options.hyperbatch else 1
        self._gather_options = loader.options.gather.split(held)
        self._ids_held, self._rows_held = threading.Semaphore(GENERATIONS), threading.Semaphore(held)
        self._ahead = threading.Semaphore(1)
        self._sampled: queue.Queue[Any] = queue.Queue()
        self._groups: queue.Queue[Any] = queue.Queue()
        self._ready: queue.Queue[Any] = queue.Queue()
        self._open: set[RowGroup | SampleFile] = set()
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(body, out), name=name, daemon=True)
            for name, body, out in (
                ("sample", self._sample, self._sampled),
                ("gather", self._gather, self._groups),
                ("read-spill", self._deliver, self._ready),
            )
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[MiniBatch]:
        while True:
            start = time.perf_counter()
            item = self._take(self._ready, 2 * self._loader.options.stall_timeout_s, "no mini-batch")
            self.stats.wait_s += time.perf_counter() - start
            if item is None:
                return
            self._ahead.release()
            # Whoever takes it alone holds it: its rows lie in a cache that may be given back once it is used.
            last_of, given = item.last_of, [item.batch]
            del item
            yield given.pop()
            if last_of is not None:
                last_of.close()
                self._open.discard(last_of)
                del last_of
                self._rows_held.release()

    @property
    def is_closed(self) -> bool:
        """Whether loading has been stopped."""
        return self._stopped.is_set()

    def close(self) -> None:
        """Stop loading; safe to call twice, and from the consumer at any time."""
        self._stopped.set()
        deadline = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return  # it may still read a group: that one's file is closed when nobody refers to it any more
        while self._open:
            self._open.pop().close()

    def __enter__(self) -> HyperbatchStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sample(self, out: queue.Queue[Any]) -> None:
        """Sample one hyperbatch after the other; the next one once the last but one is used up."""
        first = 0
        while first < len(self._batches):
            self._acquire(self._ids_held)
            start = time.perf_counter()
            sampled = self._sampled_from(first)
            self.stats.sample_s += time.perf_counter() - start
            first += len(sampled.samples)
            out.put(sampled)

    def _sampled_from(self, first: int) -> _Sampled:
        """One hyperbatch: as many mini-batches as asked for, or as memory holds."""
        options, group = self._loader.options, slice(first, first + self._loader.options.hyperbatch)
        sampled = (
            _Sampled([], SampleFile(options.gather.directory, self._loader.features.stats))
            if (options.spills_samples)
            else _Sampled([], None)
        )
        if sampled.file is not None:
            self._open.add(sampled.file)
        kept, most = 0, math.inf if options.memory is None else options.memory.kept_bytes
        room = math.inf if options.sample_room is None else options.sample_room.nbytes // GENERATIONS
        for sample, reads in self._loader.sampler.each(
            self._batches[group],
            epoch=self.epoch,
            first_batch=self._indices[first],
            batch_step=self._indices.step,
            memory=options.memory,
            check_stop=self._check_stop,
        ):
            options.check_bytes(sample)
            kept += sample.input_nodes.nbytes if options.spills_samples else sample.nbytes
            needed = 0 if sampled.file is None else sampled.file.nbytes + saved_bytes(sample)
            if sampled.samples and (kept > most or needed > room):
                break
            if needed > room and options.sample_room is not None:
                raise options.sample_room.short("a mini-batch's sample takes", GENERATIONS * needed)
            self.stats.adjacency_reads.add(reads)
            sampled.add(sample)
        return sampled

    def _gather(self, out: queue.Queue[Any]) -> None:
        """Gather each hyperbatch in one group or several; another one as soon as there is room for its rows."""
        gatherer = self._loader.gatherer(self._gather_options, self._check_stop)
        while (sampled := self._take(self._sampled)) is not None:
            samples = sampled.samples
            done, groups = 0, gatherer.groups([sample.input_nodes for sample in samples])
            while done < len(samples):
                self._acquire(self._rows_held)
                start = time.perf_counter()
                group = next(groups)
                self._open.add(group)
                self.stats.gather_s += time.perf_counter() - start
                own = samples[done : done + len(group)]
                done += len(own)
                out.put((group, own, sampled if done == len(samples) else None))
                del group, own
            del sampled, samples, groups

    def _deliver(self, out: queue.Queue[Any]) -> None:
        """Read what was spilled of one mini-batch after the other, one ahead of the consumer."""
        while (item := self._take(self._groups)) is not None:
            group, samples, ends = item
            for number, sample in enumerate(samples):
                self._acquire(self._ahead)
                start = time.perf_counter()
                rows: TieredRows = group.rows(number)
                if self._loader.options.check_rows is not None:
                    self._loader.options.check_rows(sample.input_nodes, rows)
                given = rows if self._loader.options.in_place else torch.from_numpy(aligned(rows.gather()))
                loaded = sample.load()
                self.stats.gather_s += time.perf_counter() - start
                last = number == len(samples) - 1
                out.put(_Ready(MiniBatch(loaded, given), group if last else None))
                del loaded, rows, given
            if ends is not None:
                if ends.file is not None:
                    ends.file.close()
                    self._open.discard(ends.file)
                self._ids_held.release()
            del item, samples, group, ends

    def _guarded(self, body: Callable[[queue.Queue[Any]], None], out: queue.Queue[Any]) -> None:
        try:
            body(out)
            out.put(None)
        except StoppedError:
            pass
        except BaseException as error:
            out.put(error)

    def _take(self, source: queue.Queue[Any], timeout_s: float | None = None, what: str = "") -> Any:
        """Next item of a queue; an error of the thread behind it is raised here, and so goes on to the consumer."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Empty):
                item = source.get(timeout=POLL_S)
                if isinstance(item, BaseException):
                    raise item
                return item
            if deadline is not None and time.monotonic() > deadline:
                raise MachineError(
                    f"{what} of epoch {self.epoch} arrived for {timeout_s:g} s: reading the disk is stalled; "
                    "is it, or the machine, overloaded?"
                )
        raise StoppedError

    def _check_stop(self) -> None:
        if self._stopped.is_set():
            raise StoppedError

    def _acquire(self, semaphore: threading.Semaphore) -> None:
        while not semaphore.acquire(timeout=POLL_S):
            if self._stopped.is_set():
                raise StoppedError
