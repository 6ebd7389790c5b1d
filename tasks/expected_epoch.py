"""What an epoch of training will take: seconds and bytes, from sizes and rates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from storage.blocks.probe import DiskSpeed
from storage.graph_store import FEATURES, INDICES
from tasks.batch_sizes import BatchSizes
from tasks.hyperbatch_size import Traffic
from tasks.machine_rates import cores
from tasks.storage_memory import StoragePlan


@dataclass(frozen=True)
class Expected:
    """What is expected of an epoch, or of its evaluation."""

    seconds: float
    """From its beginning to its end."""
    read_bytes: float = 0.0
    """Read from disk."""


@dataclass(frozen=True)
class BatchSeconds:
    """What a mini-batch takes a core, wherever its data are."""

    sampling: float
    """Drawing its edges."""
    rows: float
    """Copying its rows, once."""
    step: float
    """A training step."""


def epoch_in_memory(num_batches: int, batch: BatchSeconds, threads: int) -> Expected:
    """An epoch whose mini-batches are loaded beside the model."""
    beside = max(1, min(threads, cores() - 1))
    loading = batch.sampling / beside
    return Expected(num_batches * max(batch.step + batch.rows, loading) if cores() > 1 else num_batches * _all(batch))


def epoch_from_disk(
    plan: StoragePlan, sizes: BatchSizes, num_batches: int, batch: BatchSeconds, disk: DiskSpeed, threads: int
) -> Expected:
    """An epoch in hyperbatches: one is sampled while the one before is gathered and the one before that trains."""
    traffic = _kept_in_buffers(plan, plan.traffic(sizes))
    lists_s = traffic.lists / disk.streamed_bytes_per_s
    rows_s = (traffic.rows + traffic.spilled + traffic.samples) / disk.streamed_bytes_per_s
    rows_s += traffic.written / disk.written_bytes_per_s
    sampling = max(lists_s, batch.sampling / min(threads, cores()))
    gathering = max(rows_s, 2 * batch.rows)
    stages = (sampling, gathering, batch.step)
    hyperbatches = math.ceil(num_batches / plan.hyperbatch)
    slowest = max(*stages, lists_s + rows_s, _all(batch) / cores())
    seconds = num_batches * (slowest * (hyperbatches - 1) + sum(stages)) / hyperbatches
    return Expected(seconds, num_batches * traffic.read)


def _kept_in_buffers(plan: StoragePlan, traffic: Traffic) -> Traffic:
    """What is left to read where the blocks of a small graph stay in the buffers from one epoch to the next."""
    store = plan.hyperbatches.store
    return replace(
        traffic,
        lists=0.0 if store.nbytes(INDICES) <= plan.topology.buffer else traffic.lists,
        rows=0.0 if store.nbytes(FEATURES) <= plan.feature_buffer else traffic.rows,
    )


def _all(batch: BatchSeconds) -> float:
    return batch.sampling + batch.rows + batch.step
