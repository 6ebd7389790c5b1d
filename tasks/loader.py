"""Mini-batches ahead of the model: sampling threads, one gathering thread, and a bounded queue to the consumer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from kernels.mfg import IdArray
from kernels.sampler import NeighborSampler
from storage.cache.tiers import FeatureTiers
from tasks.epoch_stream import EpochStream, TimedSuperBatch
from tasks.in_flight import DEFAULT_IN_FLIGHT_BYTES


class MiniBatchLoader:
    """Samples and gathers mini-batches in threads of its own, in order; use as a context manager.

    At most `threads` + 1 super-batches are sampled ahead, one more is being gathered, and `prefetch` mini-batches
    stand ready; all of them, with their rows, stay within `in_flight_bytes` (one super-batch is the least; the
    mini-batch that the consumer has in hand does not count). Neither threads, K nor bytes change a mini-batch.

    Parameters
    ----------
    sampler : NeighborSampler
    features : FeatureTiers
    superbatch : int
        K: mini-batches sampled, classified and fetched as one.
    threads : int
        Sampling threads.
    prefetch : int
        Mini-batches that stand ready for the consumer.
    in_flight_bytes : int
        Most bytes of super-batches sampled or being sampled and of their rows. What a super-batch may take at most is
        reserved before it is sampled.
    stall_timeout_s : float
        Give up, with a message, when nothing has arrived for so long.
    in_place : bool
        Locate rows in the tiers for a model that reads them there, instead of gathering them.
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        features: FeatureTiers,
        *,
        superbatch: int = 4,
        threads: int = 2,
        prefetch: int = 2,
        in_flight_bytes: int = DEFAULT_IN_FLIGHT_BYTES,
        stall_timeout_s: float = 600.0,
        in_place: bool = False,
    ) -> None:
        for name, value in (
            ("superbatch", superbatch),
            ("threads", threads),
            ("prefetch", prefetch),
            ("in_flight_bytes", in_flight_bytes),
        ):
            if value < 1:
                raise ValueError(f"{name} must be >= 1 (got {value})")
        self.sampler = sampler
        self.features = features
        self.superbatch = superbatch
        self.threads = threads
        self.prefetch = prefetch
        self.in_flight_bytes = in_flight_bytes
        self.stall_timeout_s = stall_timeout_s
        self.in_place = in_place
        # One pool for all epochs: the sampler keeps a scratch table of 8 bytes a node for each thread.
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="sample")

    def epoch(
        self, batches: Sequence[IdArray], *, epoch: int, first_batch: int = 0, batch_step: int = 1
    ) -> EpochStream:
        """Start loading one epoch.

        Parameters
        ----------
        batches : sequence of (n,) integer arrays
            Seed nodes of each mini-batch, in order.
        epoch : int
            Part of the identity of every draw.
        first_batch, batch_step : int
            Batch indices of `batches`: every `batch_step`-th of the epoch from `first_batch` on.

        Returns
        -------
        EpochStream
            Use it as a context manager: leaving it stops its threads.
        """
        return EpochStream(
            self, batches, epoch, range(first_batch, first_batch + len(batches) * batch_step, batch_step)
        )

    def sample_ahead(self, indices: range, batches: Sequence[IdArray], epoch: int) -> Future[TimedSuperBatch]:
        """Sample one super-batch in the pool; the result brings its seconds along."""
        return self._pool.submit(self._timed_sample, indices, batches, epoch)

    def _timed_sample(self, indices: range, batches: Sequence[IdArray], epoch: int) -> TimedSuperBatch:
        start = time.perf_counter()
        sampled = self.sampler.sample(batches, epoch=epoch, first_batch=indices.start, batch_step=indices.step)
        return sampled, time.perf_counter() - start

    def close(self) -> None:
        """Stop the sampling threads after what they are doing."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> MiniBatchLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
