"""Mini-batches made on the device: the next super-batch is made on a stream of its own while one trains."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from kernels.cuda.current import to_torch
from kernels.cuda.device_rows import DeviceRows
from kernels.cuda.launch import DeviceLauncher
from kernels.cuda.tiers import DeviceTiers, RowGroup
from kernels.mfg import IdArray, SuperBatch
from storage.errors import MachineError
from tasks.epoch_stream import POLL_S, LoadStats, MiniBatch, StoppedError, put_unless_stopped

_MOST_LOADED = 2
"""Super-batches whose rows are on the device: the one that trains and the one that is made or waits."""
_FULL = ("OutOfMemoryError",)
"""Name of the error in PyTorch and in CuPy, which is not imported here."""


@contextlib.contextmanager
def device_memory() -> Iterator[None]:
    """Say what to do where the GPU's memory is full.

    Raises
    ------
    MachineError
        In place of PyTorch's and CuPy's own errors.
    """
    try:
        yield
    except Exception as error:
        if type(error).__name__ not in _FULL:
            raise
        raise MachineError(
            "the GPU's memory is full: lower sampling.superbatch, sampling.batch_size or cache.device_budget "
            f"({str(error).splitlines()[0]})"
        ) from error


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One super-batch on the device, and the event after which it may be read."""

    super_batch: SuperBatch
    seeds: list[IdArray]
    group: RowGroup
    ready: Any


class Sampler(Protocol):
    """What draws super-batches on the device."""

    def sample(self, batches: Sequence[IdArray], *, epoch: int, first_batch: int, batch_step: int = 1) -> SuperBatch:
        """As `CudaSampler.sample`."""


class DeviceLoader:
    """Samples and gathers on the device, ahead of the model; use as a context manager.

    Sampling and gathering have a stream each. While one super-batch trains, the next is gathered and the one after that
    is sampled: two lie on the device with their rows at most, and one without.

    Parameters
    ----------
    launcher : DeviceLauncher
    sampler : Sampler
    tiers : DeviceTiers
    in_place : bool
        Leave rows that are on the device where they are, for a model that reads them there.
    superbatch : int
        K: mini-batches sampled and fetched as one.
    stall_timeout_s : float
        Give up, with a message, when nothing has arrived for so long.
    """

    def __init__(
        self,
        launcher: DeviceLauncher,
        sampler: Sampler,
        tiers: DeviceTiers,
        *,
        in_place: bool = False,
        superbatch: int = 4,
        stall_timeout_s: float = 600.0,
    ) -> None:
        self.launcher, self.sampler, self.tiers, self.in_place = launcher, sampler, tiers, in_place
        self.superbatch, self.stall_timeout_s = superbatch, stall_timeout_s

    def epoch(
        self, batches: Sequence[IdArray], *, epoch: int, first_batch: int = 0, batch_step: int = 1
    ) -> DeviceStream:
        """Start loading one epoch, as `MiniBatchLoader.epoch` does."""
        return DeviceStream(
            self, batches, epoch, range(first_batch, first_batch + len(batches) * batch_step, batch_step)
        )

    def close(self) -> None:
        """Nothing outlives an epoch's stream."""

    def __enter__(self) -> DeviceLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class DeviceStream:
    """The mini-batches of one epoch, in order; errors of the loading thread are raised at the consumer."""

    def __init__(self, loader: DeviceLoader, batches: Sequence[IdArray], epoch: int, indices: range) -> None:
        self.stats = LoadStats()
        self._loader, self._batches, self._epoch, self._indices = loader, batches, epoch, indices
        self._ready: queue.Queue[_Loaded | BaseException | None] = queue.Queue(_MOST_LOADED)
        self._stopped, self._free = threading.Event(), threading.Semaphore(_MOST_LOADED)
        self._is_in_hand, self._taken = False, 0
        self._thread = threading.Thread(target=self._produce, name="load", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[MiniBatch]:
        launcher = self._loader.launcher
        while (loaded := self._next()) is not None:
            launcher.wait(loaded.ready)
            self._is_in_hand = True
            try:
                for sample, rows, seeds in zip(
                    loaded.super_batch.samples, loaded.group.rows, loaded.seeds, strict=True
                ):
                    with launcher.stream():  # tensors come in the order of the consumer's stream
                        given = rows if isinstance(rows, DeviceRows) else to_torch(rows)
                    batch = MiniBatch(sample, given, seeds=seeds)
                    yield batch
            finally:
                self._finish()
            del loaded, sample, rows, given, batch
            self._free.release()

    def close(self) -> None:
        """Stop loading; safe to call twice, and from the consumer at any time.

        Raises
        ------
        MachineError
            If the loading thread does not end: what it reads must not be given back.
        """
        self._stopped.set()
        # A thread that compiles takes its time.
        self._thread.join(self._loader.stall_timeout_s)
        if self._thread.is_alive():
            raise MachineError(f"loading has not ended for {self._loader.stall_timeout_s:g} s: does the GPU hang?")
        self._finish()
        if self._taken < len(self._batches):  # rows that nobody took may still be on their way
            with self._loader.launcher.on("gather"):
                self._loader.launcher.finish(self._loader.launcher.record())  # synchronize!
            self._taken = len(self._batches)

    def _finish(self) -> None:
        """Wait for the super-batch in hand: what another stream made must not be given back before this has read it."""
        if self._is_in_hand:
            self._is_in_hand = False
            launcher = self._loader.launcher
            launcher.finish(launcher.record())  # synchronize!

    def __enter__(self) -> DeviceStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next(self) -> _Loaded | None:
        start, limit_s = time.perf_counter(), self._loader.stall_timeout_s
        try:
            item = self._ready.get(timeout=limit_s)
        except queue.Empty:
            raise MachineError(f"no super-batch of epoch {self._epoch} arrived for {limit_s:g} s") from None
        finally:
            self.stats.wait_s += time.perf_counter() - start
        if isinstance(item, BaseException):
            raise item
        self._taken += len(item.seeds) if item is not None else 0
        return item

    def _produce(self) -> None:
        try:
            with device_memory():
                for first in range(0, len(self._batches), self._loader.superbatch):
                    group = slice(first, first + self._loader.superbatch)
                    sampled = self._sample(group)
                    if not self._may_load():
                        return
                    self._put(self._gather(group, *sampled))
                    del sampled
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _may_load(self) -> bool:
        """Wait until the rows of one super-batch more may lie on the device; not so once loading is to stop."""
        while not self._stopped.is_set():
            if self._free.acquire(timeout=POLL_S):
                return True
        return False

    def _sample(self, group: slice) -> tuple[SuperBatch, Any]:
        """A super-batch, and the event after which it may be read."""
        start, indices, launcher = time.perf_counter(), self._indices[group], self._loader.launcher
        with launcher.on("sample"):
            super_batch = self._loader.sampler.sample(
                self._batches[group], epoch=self._epoch, first_batch=indices.start, batch_step=indices.step
            )
            sampled = launcher.record()
        self.stats.sample_s += time.perf_counter() - start
        self.stats.adjacency_reads.add(super_batch.adjacency_reads)
        return super_batch, sampled

    def _gather(self, batches: slice, super_batch: SuperBatch, sampled: Any) -> _Loaded:
        start, launcher, tiers = time.perf_counter(), self._loader.launcher, self._loader.tiers
        with launcher.on("gather"):
            launcher.wait(sampled)
            ids = [sample.input_nodes for sample in super_batch.samples]
            group = tiers.locate_group(ids) if self._loader.in_place else tiers.gather_group(ids)
            ready = launcher.record()
        self.stats.gather_s += time.perf_counter() - start
        return _Loaded(super_batch, [_unique(seeds) for seeds in self._batches[batches]], group, ready)

    def _put(self, item: _Loaded | BaseException | None) -> None:
        with contextlib.suppress(StoppedError):
            put_unless_stopped(self._ready, item, self._stopped)


def _unique(seeds: IdArray) -> IdArray:
    """Each seed once, in order of first appearance, as the sampler has them."""
    _, first = np.unique(seeds, return_index=True)
    return seeds[np.sort(first)]
