"""Pre-sampling: epochs of the real sampler, whose accesses make a profile (GARDEN §IV-B)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from kernels.cpu.count import count_accesses
from kernels.mfg import IdArray, Sample
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, join_seeds, shuffled_batches
from kernels.topology import Topology
from storage.blocks.hyperbatch import HyperbatchSampler
from storage.blocks.reached import visit_reached
from storage.blocks.stored_topology import StoredTopology
from storage.cache.files import write_arrays
from storage.cache.inclusion import expected_accesses, smoothed_counts
from storage.cache.profile import AccessProfile, CountArray, count_dtype

Progress = Callable[[int, int], None]

WORK_BYTES = 16 << 20
"""Memory for neighbors that are drawn: with more, hardly any block would be met less often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """What is sampled for a profile; `superbatch`, `threads` and `work_bytes` do not change a count."""

    batch_size: int
    """Seed nodes a mini-batch."""
    superbatch: int
    """Mini-batches sampled at once (K; from disk H)."""
    seed: int
    """Seed of order and draws."""
    epochs: int
    """Epochs for the counts that choose."""
    heldout_epochs: int
    """Epochs for the held-out counts."""
    replace: bool
    """Draw neighbors with replacement."""
    threads: int
    """Sampling threads; each holds one super-batch and the sampler's scratch."""
    work_bytes: int = WORK_BYTES
    """Memory from disk while neighbors are drawn."""

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("superbatch", 1), ("threads", 1), ("epochs", 0), ("heldout_epochs", 0)):
            if (size := getattr(self, name)) < least:
                raise ValueError(f"{name} must be >= {least} (got {size})")

    def num_batches(self, num_seeds: int) -> int:
        """Mini-batches an epoch."""
        return -(-num_seeds // self.batch_size)


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
    work_bytes: int = WORK_BYTES,
    progress: Progress | None = None,
) -> AccessProfile:
    """Count accesses over epochs of the sampler that training uses (GARDEN §IV-B, pre-sampling).

    Batches and neighbors come from streams of their own, so what training draws is never seen
    here. The counts do not depend on `superbatch`, `threads` and `work_bytes`.

    Parameters
    ----------
    topology, train_nodes, fanouts
        What training will sample, fanouts from the input layer to the seed layer; from memory or from disk.
    batch_size, superbatch, seed, epochs, heldout_epochs, replace, threads, work_bytes
        As `ProfileOptions`.
    progress
        Called in the calling thread with the mini-batches done and in all.

    Returns
    -------
    AccessProfile
        28 bytes a node, and no more while it is made, where counts are int32 (`count_dtype`).

    Raises
    ------
    ValueError
        If a size is out of range.
    """
    options = ProfileOptions(
        batch_size=batch_size,
        superbatch=superbatch,
        seed=seed,
        epochs=epochs,
        heldout_epochs=heldout_epochs,
        replace=replace,
        threads=threads,
        work_bytes=work_bytes,
    )
    return take_profile(topology, train_nodes, fanouts, options, progress)


def take_profile(
    topology: Topology | StoredTopology,
    train_nodes: IdArray,
    fanouts: Sequence[int],
    options: ProfileOptions,
    progress: Progress | None = None,
) -> AccessProfile:
    """As `profile_accesses`, with the options in one."""
    arrays: dict[str, Any] = dict(_counts(topology, train_nodes, fanouts, options, progress))
    return AccessProfile(**arrays | _scalars(options, len(train_nodes)))


def write_profile(
    path: Path,
    topology: Topology | StoredTopology,
    train_nodes: IdArray,
    fanouts: Sequence[int],
    options: ProfileOptions,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """As `profile_accesses`, into a file: counts are written as they are complete, so it takes 20 bytes a node.

    Returns
    -------
    feature_accesses, adjacency_accesses : int
        Counted in the epochs that choose.
    """
    totals = {}

    def counted() -> Iterator[tuple[str, CountArray]]:
        for name, count_N in _counts(topology, train_nodes, fanouts, options, progress):
            totals[name] = int(count_N.sum())
            yield name, count_N
            del count_N

    scalars = _scalars(options, len(train_nodes))
    write_arrays(path, kind=AccessProfile.KIND, version=AccessProfile.VERSION, arrays=counted(), scalars=scalars)
    return totals["feature_count_N"], totals["adjacency_count_N"]


def _scalars(options: ProfileOptions, num_seeds: int) -> dict[str, int]:
    """Numbers of a profile."""
    num_batches = options.num_batches(num_seeds)
    return {"epochs": options.epochs, "heldout_epochs": options.heldout_epochs, "num_batches": num_batches}


def _counts(
    topology: Topology | StoredTopology,
    train_nodes: IdArray,
    fanouts: Sequence[int],
    options: ProfileOptions,
    progress: Progress | None,
) -> Iterator[tuple[str, CountArray]]:
    """Arrays of a profile by name, each given up as soon as it is taken."""
    join_seeds([train_nodes], topology.num_nodes, train_nodes.dtype)  # refuses what are no nodes
    num_batches, epochs, hops = options.num_batches(len(train_nodes)), options.epochs, len(fanouts)
    report = _Report(progress, num_batches * (epochs + options.heldout_epochs))
    dtype = count_dtype(num_batches, epochs, options.heldout_epochs, hops)

    def count(purpose: Purpose, num_epochs: int) -> _Counts:
        counts = _Counts(topology.num_nodes, dtype, with_seeds=purpose == Purpose.PROFILE)
        jobs = _jobs(train_nodes, options.batch_size, options.superbatch, options.seed, purpose, num_epochs)
        drawn: dict[str, Any] = {"seed": options.seed, "purpose": purpose, "replace": options.replace}
        if isinstance(topology, Topology):
            _count_jobs(counts, NeighborSampler(topology, fanouts, **drawn), jobs, options.threads, report)
        else:
            _count_reached(counts, HyperbatchSampler(topology, fanouts, **drawn), jobs, options.work_bytes, report)
        return counts

    expected_f_N, expected_a_N = expected_accesses(
        topology, train_nodes, fanouts, options.batch_size, replace=options.replace
    )
    chosen = count(Purpose.PROFILE, epochs)
    yield "smoothed_feature_N", smoothed_counts(chosen.feature_N, expected_f_N, epochs, num_batches)
    del expected_f_N
    yield "smoothed_adjacency_N", smoothed_counts(chosen.adjacency_N, expected_a_N, epochs, num_batches * hops)
    del expected_a_N
    yield "full_link_count_N", chosen.full_link()
    yield "feature_count_N", chosen.feature_N
    yield "adjacency_count_N", chosen.adjacency_N
    del chosen
    heldout = count(Purpose.HELDOUT, options.heldout_epochs)
    yield "heldout_feature_count_N", heldout.feature_N
    yield "heldout_adjacency_count_N", heldout.adjacency_N


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

    def __init__(self, num_nodes: int, dtype: np.dtype[Any], *, with_seeds: bool) -> None:
        self.feature_N: CountArray = np.zeros(num_nodes, dtype)
        self.adjacency_N: CountArray = np.zeros(num_nodes, dtype)
        self._seed_N: CountArray | None = np.zeros(num_nodes, dtype) if with_seeds else None

    def add(self, sample: Sample) -> None:
        count_accesses(self.feature_N, sample.input_nodes)
        if self._seed_N is not None:
            count_accesses(self._seed_N, sample.seed_nodes)
        for hop in sample.hops:
            count_accesses(self.adjacency_N, sample.input_nodes[: hop.num_dst])

    def add_reached(self, hops: int, nodes: IdArray, *, is_last: bool) -> None:
        """Count some nodes that a mini-batch reaches within so many hops."""
        if is_last:
            count_accesses(self.feature_N, nodes)
        else:
            count_accesses(self.adjacency_N, nodes)
        if hops == 0 and self._seed_N is not None:
            count_accesses(self._seed_N, nodes)

    def full_link(self) -> CountArray:
        """Eq. 4 with weights of 1: `1(v in inputs) + sum over hops of 1(v in src) + 1(v in dst)`.

        The sources of a hop are the destinations of the next, and the last hop's are the inputs.
        So the sum over src is the sum over dst, less the first hop's destinations (the seeds), plus the inputs.
        It takes the place of the count of seeds: to be asked for once.
        """
        full_link_N, self._seed_N = self._seed_N, None
        assert full_link_N is not None  # of epochs that choose, once
        np.negative(full_link_N, out=full_link_N)
        for count_N in (self.feature_N, self.adjacency_N):
            full_link_N += count_N
            full_link_N += count_N
        return full_link_N


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
    counts: _Counts,
    sampler: NeighborSampler,
    jobs: Iterator[_Job],
    threads: int,
    report: _Report,
) -> None:
    """Sample in threads, count under a lock: one set of counts, at most `threads` super-batches in memory."""
    lock = Lock()

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


def _count_reached(
    counts: _Counts, sampler: HyperbatchSampler, jobs: Iterator[_Job], work_bytes: int, report: _Report
) -> None:
    """Count what mini-batches reach, without a sample of any; the topology has threads of its own."""

    def visit(hops: int, nodes: IdArray) -> None:
        counts.add_reached(hops, nodes, is_last=hops == len(sampler.fanouts))

    for job in jobs:
        visit_reached(sampler, job.batches, visit, epoch=job.epoch, first_batch=job.first_batch, work_bytes=work_bytes)
        report.add(len(job.batches))
