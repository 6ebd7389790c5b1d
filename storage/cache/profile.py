"""Access profiles: how often epochs of the real sampler read each node's features and adjacency list."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from kernels.cpu.count import count_accesses
from kernels.mfg import IdArray, Sample
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.topology import Topology
from storage.blocks.hyperbatch import HyperbatchSampler
from storage.blocks.stored_topology import StoredTopology
from storage.cache.files import ArrayRecord
from storage.cache.inclusion import expected_accesses, smoothed_counts

CountArray = npt.NDArray[np.int64]
Counting = Literal["smoothed", "input", "full_link"]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class AccessProfile(ArrayRecord):
    """Access counts a node: some epochs choose what is cached, further ones (held out) judge the choice."""

    KIND: ClassVar[str] = "access profile"
    VERSION: ClassVar[int] = 2

    feature_count_N: CountArray
    """(N,) batches that needed the node's features."""
    full_link_count_N: CountArray
    """(N,) GARDEN Eq. 4 with hop weights of 1."""
    adjacency_count_N: CountArray
    """(N,) reads of the node's adjacency list: one a batch and hop that has it as a destination."""
    smoothed_feature_N: CountArray
    """(N,) `feature_count_N` drawn toward the inclusion probabilities, in parts of 1/256."""
    smoothed_adjacency_N: CountArray
    """(N,) `adjacency_count_N` likewise."""
    heldout_feature_count_N: CountArray
    """(N,) as `feature_count_N`, over the held-out epochs."""
    heldout_adjacency_count_N: CountArray
    """(N,) as `adjacency_count_N`, over the held-out epochs."""
    epochs: int
    """Epochs behind the counts that choose."""
    heldout_epochs: int
    """Epochs behind the held-out counts."""
    num_batches: int
    """Mini-batches an epoch."""

    def counts(self, counting: Counting) -> tuple[CountArray, CountArray]:
        """Counts that rank feature rows and adjacency lists under a counting rule, both in one unit.

        Raises
        ------
        ValueError
            If the rule is unknown.
        """
        if counting == "smoothed":
            return self.smoothed_feature_N, self.smoothed_adjacency_N
        if counting not in ("input", "full_link"):
            raise ValueError(f"counting must be 'smoothed', 'input' or 'full_link' (got {counting!r})")
        return (self.feature_count_N if counting == "input" else self.full_link_count_N), self.adjacency_count_N


def profile_accesses(
    topology: Topology | StoredTopology,
    train_nodes: IdArray,
    fanouts: Sequence[int],
    *,
    batch_size: int,
    superbatch: int,
    seed: int,
    epochs: int,
    heldout_epochs: int,
    replace: bool,
    threads: int,
    progress: Progress | None = None,
) -> AccessProfile:
    """Count accesses over epochs of the sampler that training uses (GARDEN §IV-B, pre-sampling).

    Batches and neighbors come from streams of their own, so what training draws is never seen
    here. The counts do not depend on `superbatch` and `threads`.

    Parameters
    ----------
    topology, train_nodes, fanouts, batch_size, replace
        What training will sample, fanouts from the input layer to the seed layer; from memory or from disk.
    superbatch
        Mini-batches sampled at once (K; from disk H, of which one call's are in memory).
    epochs, heldout_epochs
        Epochs for the counts that choose and for the held-out ones.
    threads
        Sampling threads; each holds one super-batch and the sampler's scratch.
    progress
        Called in the calling thread with the mini-batches done and in all.

    Returns
    -------
    AccessProfile

    Raises
    ------
    ValueError
        If a size is out of range.
    """
    for name, size, least in (
        ("batch_size", batch_size, 1),
        ("superbatch", superbatch, 1),
        ("threads", threads, 1),
        ("epochs", epochs, 0),
        ("heldout_epochs", heldout_epochs, 0),
    ):
        if size < least:
            raise ValueError(f"{name} must be >= {least} (got {size})")
    num_batches = -(-len(train_nodes) // batch_size)
    report = _Report(progress, num_batches * (epochs + heldout_epochs))

    def count(purpose: Purpose, num_epochs: int) -> _Counts:
        jobs = _jobs(train_nodes, batch_size, superbatch, seed, purpose, num_epochs)
        if isinstance(topology, Topology):
            sampler = NeighborSampler(topology, fanouts, seed=seed, purpose=purpose, replace=replace)
            return _count_jobs(sampler, jobs, threads, report)
        # It has threads of its own.
        stored = HyperbatchSampler(topology, fanouts, seed=seed, purpose=purpose, replace=replace)
        return _count_jobs(stored, jobs, 1, report)

    chosen, heldout = count(Purpose.PROFILE, epochs), count(Purpose.HELDOUT, heldout_epochs)
    expected = expected_accesses(topology, train_nodes, fanouts, batch_size, replace=replace)
    return AccessProfile(
        feature_count_N=chosen.feature_N,
        full_link_count_N=chosen.full_link(),
        adjacency_count_N=chosen.adjacency_N,
        smoothed_feature_N=smoothed_counts(chosen.feature_N, expected[0], epochs, num_batches),
        smoothed_adjacency_N=smoothed_counts(chosen.adjacency_N, expected[1], epochs, num_batches * len(fanouts)),
        heldout_feature_count_N=heldout.feature_N,
        heldout_adjacency_count_N=heldout.adjacency_N,
        epochs=epochs,
        heldout_epochs=heldout_epochs,
        num_batches=num_batches,
    )


class _Report:
    """Adds up finished batches for the progress callback."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._done, self._total = progress, 0, total

    def add(self, num_batches: int) -> None:
        self._done += num_batches
        if self._progress is not None:
            self._progress(self._done, self._total)


class _Counts:
    """Running counts over sampled batches; one thread at a time may add."""

    def __init__(self, num_nodes: int) -> None:
        self.feature_N = np.zeros(num_nodes, np.int64)
        self.adjacency_N = np.zeros(num_nodes, np.int64)
        self._seed_N = np.zeros(num_nodes, np.int64)

    def add(self, sample: Sample) -> None:
        count_accesses(self.feature_N, sample.input_nodes)
        count_accesses(self._seed_N, sample.seed_nodes)
        for hop in sample.hops:
            count_accesses(self.adjacency_N, sample.input_nodes[: hop.num_dst])

    def full_link(self) -> CountArray:
        """Eq. 4 with weights of 1: `1(v in inputs) + sum over hops of 1(v in src) + 1(v in dst)`.

        The sources of a hop are the destinations of the next, and the last hop's are the inputs.
        So the sum over src is the sum over dst, less the first hop's destinations (the seeds), plus the inputs.
        """
        return 2 * self.feature_N + 2 * self.adjacency_N - self._seed_N


@dataclass(frozen=True, slots=True)
class _Job:
    """One super-batch to sample."""

    epoch: int
    first_batch: int
    batches: list[IdArray]


def _jobs(
    nodes: IdArray, batch_size: int, superbatch: int, seed: int, purpose: Purpose, num_epochs: int
) -> Iterator[_Job]:
    for epoch in range(num_epochs):
        # The high bits give each purpose epoch orders of its own; training's are the plain epochs.
        batches = shuffled_batches(nodes, batch_size, seed=seed, epoch=(int(purpose) << 32) + epoch)
        for first in range(0, len(batches), superbatch):
            yield _Job(epoch, first, batches[first : first + superbatch])


def _count_jobs(
    sampler: NeighborSampler | HyperbatchSampler, jobs: Iterator[_Job], threads: int, report: _Report
) -> _Counts:
    """Sample in threads, count under a lock: one set of counts, at most `threads` super-batches in memory."""
    counts, lock = _Counts(sampler.topology.num_nodes), Lock()

    def run(job: _Job) -> int:
        sampled = sampler.sample(job.batches, epoch=job.epoch, first_batch=job.first_batch)
        with lock:
            for sample in sampled.samples:
                counts.add(sample)
        return len(job.batches)

    pending: deque[Future[int]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="profile") as pool:
        for job in jobs:
            pending.append(pool.submit(run, job))
            if len(pending) > threads:
                report.add(pending.popleft().result())
        while pending:
            report.add(pending.popleft().result())
    return counts
