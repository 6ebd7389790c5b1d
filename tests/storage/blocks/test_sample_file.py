from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.mfg import IdArray, Sample, SuperBatch, TierReads
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.topology import Topology
from storage.blocks.io_stats import IoStats
from storage.blocks.sample_file import SampleFile
from storage.errors import ChecksumMismatchError, MachineError
from tests.graphs import graphs, power_law_graph, seed_batches
from tests.storage.blocks.test_hyperbatch import same


def samples_of(topology: Topology, fanouts: Sequence[int], batches: Sequence[IdArray]) -> tuple[Sample, ...]:
    return (
        NeighborSampler(topology, fanouts, seed=1, purpose=Purpose.TRAIN)
        .sample(batches, epoch=0, first_batch=3)
        .samples
    )


def together(samples: Iterable[Sample]) -> SuperBatch:
    return SuperBatch(tuple(samples), TierReads())


@settings(deadline=None, max_examples=50)
@given(graphs(), st.lists(st.sampled_from([-1, 1, 5]), max_size=3), st.data())
def test_what_was_saved_comes_back(
    graph: tuple[np.ndarray, np.ndarray], fanouts: list[int], data: st.DataObject
) -> None:
    batches = data.draw(seed_batches(len(graph[0]) - 1))
    samples = samples_of(Topology.in_memory(*graph), fanouts, batches)
    stats = IoStats()
    with tempfile.TemporaryDirectory() as folder:
        file = SampleFile(Path(folder), stats)
        waiting = [file.save(sample) for sample in samples]
        same(
            SuperBatch(tuple(one.load() for one in reversed(waiting)), TierReads()),
            SuperBatch(samples[::-1], TierReads()),
        )
        file.close()
    assert stats.counts().write_bytes >= sum(hop.nbytes for sample in samples for hop in sample.hops)


def large_sample() -> Sample:
    """A sample of several pieces."""
    return samples_of(Topology.in_memory(*power_law_graph(40_000, 900_000)), [-1, -1], [np.arange(2000)])[0]


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    sample, file = large_sample(), SampleFile(tmp_path, IoStats())
    assert sum(hop.nbytes for hop in sample.hops) > 2 << 20
    waiting = file.save(sample)
    same(together([waiting.load()]), together([sample]))
    descriptor = os.open(f"/proc/self/fd/{file._file.spill._descriptor}", os.O_RDWR)
    os.pwrite(descriptor, bytes([os.pread(descriptor, 1, 1_500_000)[0] ^ 1]), 1_500_000)
    os.fsync(descriptor)
    os.close(descriptor)
    with pytest.raises(ChecksumMismatchError):
        waiting.load()
    file.close()


def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    file, sample = SampleFile(tmp_path, IoStats()), large_sample()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(MachineError, match="the disk is full"):
        file.save(sample)
    file.close()
