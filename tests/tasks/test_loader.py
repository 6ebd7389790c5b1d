"""The loader: order, equality with direct sampling, shutdown, errors and stalls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from kernels.cpu.aligned import is_aligned
from kernels.mfg import IdArray, SuperBatch
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.topology import Topology
from storage.cache.tiers import FeatureTiers
from storage.errors import MachineError
from tasks.epoch_stream import MiniBatch
from tasks.in_flight import bytes_of, most_bytes
from tasks.loader import MiniBatchLoader
from tests.graphs import power_law_graph

NUM_NODES = 500
TOPOLOGY = Topology.in_memory(*power_law_graph(NUM_NODES, 4000))
ROWS = np.random.default_rng(0).standard_normal((NUM_NODES, 5)).astype(np.float32)
BATCHES = shuffled_batches(np.arange(0, NUM_NODES, 3), 16, seed=1, epoch=0)


def sampler() -> NeighborSampler:
    return NeighborSampler(TOPOLOGY, (3, 5), seed=7, purpose=Purpose.TRAIN)


def tiers(cached: int = 50) -> FeatureTiers:
    return FeatureTiers(ROWS, np.arange(cached))


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not set(threading.enumerate()) <= before:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= before


class Slow(NeighborSampler):
    """Takes its time, as an overloaded machine does."""

    delay_s = 1.5

    def sample(self, batches: Sequence[IdArray], *, epoch: int, first_batch: int, batch_step: int = 1) -> SuperBatch:
        time.sleep(self.delay_s)
        return super().sample(batches, epoch=epoch, first_batch=first_batch, batch_step=batch_step)


class Failing(NeighborSampler):
    """Fails at the third super-batch."""

    def sample(self, batches: Sequence[IdArray], *, epoch: int, first_batch: int, batch_step: int = 1) -> SuperBatch:
        if first_batch >= 4:
            raise OSError("the disk went away")
        return super().sample(batches, epoch=epoch, first_batch=first_batch, batch_step=batch_step)


def loaded(superbatch: int, threads: int, *, epoch: int = 0) -> list[MiniBatch]:
    with (
        MiniBatchLoader(sampler(), tiers(), superbatch=superbatch, threads=threads) as loader,
        loader.epoch(BATCHES, epoch=epoch) as stream,
    ):
        return list(stream)


def rows_of(batch: MiniBatch) -> torch.Tensor:
    """Its rows, gathered."""
    assert isinstance(batch.rows, torch.Tensor)
    return batch.rows


@pytest.mark.parametrize(("superbatch", "threads"), [(1, 1), (4, 2), (8, 4), (100, 1)])
def test_batches_equal_direct_sampling(superbatch: int, threads: int) -> None:
    batches = loaded(superbatch, threads, epoch=3)
    assert [batch.sample.batch_index for batch in batches] == list(range(len(BATCHES)))
    for i, batch in enumerate(batches):
        expected = sampler().sample([BATCHES[i]], epoch=3, first_batch=i).samples[0]
        assert np.array_equal(batch.sample.input_nodes, expected.input_nodes)
        for got, wanted in zip(batch.sample.hops, expected.hops, strict=True):
            assert np.array_equal(got.indptr, wanted.indptr)
            assert np.array_equal(got.indices, wanted.indices)
        assert np.array_equal(rows_of(batch).numpy(), ROWS[expected.input_nodes])


def test_rows_start_on_a_cache_line() -> None:
    assert all(is_aligned(rows_of(batch).numpy()) for batch in loaded(4, 2))


def test_one_loader_serves_epoch_after_epoch() -> None:
    with MiniBatchLoader(sampler(), tiers(), superbatch=3) as loader:
        for epoch in range(3):
            with loader.epoch(BATCHES, epoch=epoch) as stream:
                assert len(list(stream)) == len(BATCHES)
            assert stream.stats.adjacency_reads.host_rows > 0
            assert stream.stats.sample_s > 0
            assert stream.stats.gather_s > 0


def test_reads_are_counted_once_an_epoch() -> None:
    features = tiers()
    with MiniBatchLoader(sampler(), features, superbatch=1) as loader, loader.epoch(BATCHES, epoch=0) as stream:
        batches = list(stream)
    reads = features.reads
    assert reads.device_rows + reads.host_rows == sum(len(batch.sample.input_nodes) for batch in batches)
    assert stream.stats.adjacency_reads.host_rows == sum(hop.num_dst for b in batches for hop in b.sample.hops)


@pytest.mark.parametrize("batches", [[], [np.empty(0, np.int64)], [np.array([5, 5, 7])]])
def test_tiny_batches_are_legal(batches: list[IdArray]) -> None:
    with MiniBatchLoader(sampler(), tiers()) as loader, loader.epoch(batches, epoch=0) as stream:
        assert [len(batch.sample.seed_inverse) for batch in stream] == [len(batch) for batch in batches]


def test_leaving_early_stops_the_threads() -> None:
    with MiniBatchLoader(sampler(), tiers(), superbatch=2) as loader:
        with loader.epoch(BATCHES, epoch=0) as stream:
            next(iter(stream))
        with loader.epoch(BATCHES, epoch=0) as stream:
            assert len(list(stream)) == len(BATCHES)


def test_what_is_ahead_is_bounded() -> None:
    """A consumer that stands still lets no more than the promised super-batches be sampled."""
    started = []

    class Counting(NeighborSampler):
        def sample(
            self, batches: Sequence[IdArray], *, epoch: int, first_batch: int, batch_step: int = 1
        ) -> SuperBatch:
            started.append(first_batch)
            return super().sample(batches, epoch=epoch, first_batch=first_batch, batch_step=batch_step)

    counting = Counting(TOPOLOGY, (3,), seed=7, purpose=Purpose.TRAIN)
    many = [np.arange(4)] * 200
    with (
        MiniBatchLoader(counting, tiers(), superbatch=2, threads=2, prefetch=2) as loader,
        loader.epoch(many, epoch=0) as stream,
    ):
        next(iter(stream))
        time.sleep(0.3)
        assert len(started) <= 2 + 1 + 3  # ready or handed out, being gathered, sampled ahead


class Tracking(NeighborSampler):
    """Keeps the bytes of each super-batch and of its rows, by its first batch."""

    def __init__(self) -> None:
        super().__init__(TOPOLOGY, (3, 5), seed=7, purpose=Purpose.TRAIN)
        self.sampled: dict[int, int] = {}

    def sample(self, batches: Sequence[IdArray], *, epoch: int, first_batch: int, batch_step: int = 1) -> SuperBatch:
        sampled = super().sample(batches, epoch=epoch, first_batch=first_batch, batch_step=batch_step)
        self.sampled[first_batch] = bytes_of(sampled, ROWS.shape[1] * ROWS.itemsize)
        return sampled


def most_bytes_ahead(in_flight_bytes: int) -> tuple[int, int]:
    """Bytes of the super-batches not yet begun by a slow consumer, at their most; and what the loader counted."""
    tracking, superbatch, most = Tracking(), 2, 0
    with (
        MiniBatchLoader(
            tracking, tiers(), superbatch=superbatch, threads=3, prefetch=4, in_flight_bytes=in_flight_bytes
        ) as loader,
        loader.epoch(BATCHES, epoch=0) as stream,
    ):
        for batch in stream:
            time.sleep(0.01)
            later = [n for first, n in tracking.sampled.copy().items() if first > batch.sample.batch_index]
            most = max(most, sum(later))
    return most, stream.in_flight.peak_bytes


def test_bytes_in_flight_are_bounded() -> None:
    reserved = most_bytes(sampler(), BATCHES[:2], ROWS.shape[1] * ROWS.itemsize)
    limit = 2 * reserved
    most, counted = most_bytes_ahead(limit)
    assert 0 < most <= counted <= limit
    unbounded, _ = most_bytes_ahead(1 << 30)
    assert unbounded > most  # the bound is what kept it low


def test_one_super_batch_at_a_time_is_the_least() -> None:
    most, counted = most_bytes_ahead(1)
    assert counted == most_bytes(sampler(), BATCHES[:2], ROWS.shape[1] * ROWS.itemsize)
    assert most <= counted


def test_what_is_reserved_suffices() -> None:
    row_bytes = ROWS.shape[1] * ROWS.itemsize
    for fanouts in ((3, 5), (-1,), (-1, 2), ()):
        for replace in (False, True):
            drawing = NeighborSampler(TOPOLOGY, fanouts, seed=7, purpose=Purpose.TRAIN, replace=replace)
            sampled = drawing.sample(BATCHES[:3], epoch=0, first_batch=0)
            assert bytes_of(sampled, row_bytes) <= most_bytes(drawing, BATCHES[:3], row_bytes)


def test_each_worker_loads_its_share() -> None:
    """Every third mini-batch from the second on is what one process would have drawn at those positions."""
    with (
        MiniBatchLoader(sampler(), tiers(), superbatch=2) as loader,
        loader.epoch(BATCHES[1::3], epoch=2, first_batch=1, batch_step=3) as stream,
    ):
        for position, batch in zip(range(1, len(BATCHES), 3), stream, strict=True):
            expected = sampler().sample([BATCHES[position]], epoch=2, first_batch=position).samples[0]
            assert batch.sample.batch_index == position
            assert np.array_equal(batch.sample.input_nodes, expected.input_nodes)


def test_error_while_sampling_reaches_the_consumer() -> None:
    failing = Failing(TOPOLOGY, (3,), seed=7, purpose=Purpose.TRAIN)
    with (
        MiniBatchLoader(failing, tiers(), superbatch=2) as loader,
        loader.epoch(BATCHES, epoch=0) as stream,
        pytest.raises(OSError, match="the disk went away"),
    ):
        list(stream)


def test_error_while_gathering_reaches_the_consumer() -> None:
    few_rows = FeatureTiers(ROWS[:10], np.arange(0))
    with (
        MiniBatchLoader(sampler(), few_rows) as loader,
        loader.epoch(BATCHES, epoch=0) as stream,
        pytest.raises(ValueError, match=r"outside \[0, 10\)"),
    ):
        list(stream)


def test_stalled_sampling_ends_with_a_message() -> None:
    slow = Slow(TOPOLOGY, (3,), seed=7, purpose=Purpose.TRAIN)
    with (
        MiniBatchLoader(slow, tiers(), stall_timeout_s=0.3) as loader,
        loader.epoch(BATCHES, epoch=4) as stream,
        pytest.raises(MachineError, match=r"epoch 4 has taken over 0\.3 s"),
    ):
        list(stream)


def test_stalled_gathering_ends_with_a_message() -> None:
    class SlowTiers(FeatureTiers):
        def gather_group(self, batches: Sequence[IdArray]) -> Iterator[np.ndarray]:
            time.sleep(0.5)
            return super().gather_group(batches)

    with (
        MiniBatchLoader(sampler(), SlowTiers(ROWS, np.arange(0)), stall_timeout_s=0.1) as loader,
        loader.epoch(BATCHES, epoch=2) as stream,
        pytest.raises(MachineError, match="no mini-batch of epoch 2"),
    ):
        list(stream)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="threads must be >= 1"):
        MiniBatchLoader(sampler(), tiers(), threads=0)


def test_matrix_products_need_aligned_rows() -> None:
    """Why rows are aligned at all: the loader's tensors multiply to the same bits as torch's own."""
    weight = torch.randn(5, 3)
    for batch in loaded(8, 2):
        assert torch.equal(rows_of(batch) @ weight, rows_of(batch).clone() @ weight)
