"""Access traces: what was sampled is what is read back, for any super-batch and threads; damage is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.topology import Topology
from storage.cache import trace as trace_module
from storage.cache.drift import Segment
from storage.cache.pre_sampling import profile_accesses
from storage.cache.trace import TraceFile, record_trace
from storage.errors import FormatVersionError, InputError, StorageError
from tests.drifts import next_snapshot
from tests.graphs import power_law_graph

TOPOLOGY = Topology.in_memory(*power_law_graph(400, 3000))
BATCHES = [*shuffled_batches(np.arange(0, 400, 2), 30, seed=1, epoch=0), np.empty(0, np.int64)]
SEGMENTS = (Segment(TOPOLOGY, BATCHES), Segment(next_snapshot(TOPOLOGY, 0.3, seed=2), BATCHES[:3]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    record_trace(tmp_path / "trace.h5", SEGMENTS, (3, 4), seed=5)
    return tmp_path / "trace.h5"


def test_a_trace_is_what_sampling_asks_for(path: Path) -> None:
    with TraceFile(path) as file:
        trace = file.read()
    number = 0
    for epoch, segment in enumerate(SEGMENTS):
        sampler = NeighborSampler(segment.topology, (3, 4), seed=5, purpose=Purpose.TRAIN)
        for index, batch in enumerate(segment.batches):
            sample = sampler.sample([batch], epoch=epoch, first_batch=index).samples[0]
            np.testing.assert_array_equal(trace.batch(number), sample.input_nodes)
            assert trace.num_dst_BH[number].tolist() == [hop.num_dst for hop in sample.hops]
            number += 1
    assert number == trace.num_batches
    assert trace.nodes.dtype == np.int32


def test_superbatch_threads_and_chunks_change_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "CHUNK_ACCESSES", 64)
    record_trace(tmp_path / "other.h5", SEGMENTS, (3, 4), seed=5, superbatch=1, threads=1)
    with TraceFile(path) as one, TraceFile(tmp_path / "other.h5") as other:
        whole = one.read()
        np.testing.assert_array_equal(whole.nodes, other.read().nodes)
        parts = list(other.parts(100))
    assert len(parts) > 5
    assert max(part.num_batches for part in parts) >= 1
    np.testing.assert_array_equal(np.concatenate([part.nodes for part in parts]), whole.nodes)
    np.testing.assert_array_equal(whole.part(2, 5).nodes, np.concatenate([whole.batch(b) for b in (2, 3, 4)]))


def test_its_counts_are_those_of_a_profile(tmp_path: Path) -> None:
    nodes = np.arange(0, 400, 2)
    sizes: dict[str, Any] = {"batch_size": 30, "superbatch": 3, "epochs": 2, "heldout_epochs": 0, "seed": 1}
    profile = profile_accesses(TOPOLOGY, nodes, (3, 4), replace=False, threads=1, **sizes)
    # The profile's own streams, so that both see the same samples.
    counted_f_N, counted_a_N = np.zeros(400, np.int64), np.zeros(400, np.int64)
    for epoch in range(2):
        batches = shuffled_batches(nodes, 30, seed=1, epoch=(int(Purpose.PROFILE) << 32) + epoch)
        sampler = NeighborSampler(TOPOLOGY, (3, 4), seed=1, purpose=Purpose.PROFILE)
        with trace_module.TraceWriter(tmp_path / f"{epoch}.h5", 400, 2) as writer:
            for sample in sampler.sample(batches, epoch=epoch, first_batch=0).samples:
                writer.add(sample)
        with TraceFile(tmp_path / f"{epoch}.h5") as file:
            counted_f_N += file.read().feature_counts()
            counted_a_N += file.read().adjacency_counts()
    np.testing.assert_array_equal(counted_f_N, profile.feature_count_N)
    np.testing.assert_array_equal(counted_a_N, profile.adjacency_count_N)


def test_an_empty_trace_is_legal(tmp_path: Path) -> None:
    record_trace(tmp_path / "empty.h5", [Segment(TOPOLOGY, [])], (3,), seed=0)
    with TraceFile(tmp_path / "empty.h5") as file:
        assert file.num_batches == 0
        assert list(file.parts(10)) == []
        assert file.read().feature_counts().sum() == 0


def test_damage_is_named(path: Path, tmp_path: Path) -> None:
    with h5py.File(path, "r+") as file:
        offset = file["nodes"].id.get_chunk_info(0).byte_offset
    damaged = bytearray(path.read_bytes())
    damaged[offset + 9] ^= 1
    (tmp_path / "damaged.h5").write_bytes(damaged)
    with TraceFile(tmp_path / "damaged.h5") as trace, pytest.raises(StorageError, match="are damaged; record it again"):
        trace.read()
    for name, position in (("num_dst", 3), ("batch_ptr", 9)):
        with h5py.File(path) as file:
            offset = file[name].id.get_chunk_info(0).byte_offset
        damaged = bytearray(path.read_bytes())
        damaged[offset + position] ^= 1
        (tmp_path / "damaged.h5").write_bytes(damaged)
        with pytest.raises(StorageError, match="not a readable access trace"):
            TraceFile(tmp_path / "damaged.h5")
    for name, change, error, message in (
        ("kind", "store", StorageError, "expected an access trace"),
        ("format_version", 99, FormatVersionError, "format version 99"),
        ("num_nodes", 3, StorageError, "outside"),
    ):
        (tmp_path / "other.h5").write_bytes(path.read_bytes())
        with h5py.File(tmp_path / "other.h5", "r+") as file:
            file.attrs[name] = change
        with pytest.raises(error, match=message), TraceFile(tmp_path / "other.h5") as trace:
            trace.read()
    with h5py.File(tmp_path / "other.h5", "r+") as file:
        file.attrs["num_nodes"] = 400
        file["batch_ptr"][1] = 10**6
    with pytest.raises(StorageError, match="contradict"):
        TraceFile(tmp_path / "other.h5")
    (tmp_path / "other.h5").write_bytes(b"nothing")
    with pytest.raises(StorageError, match="not a readable access trace"):
        TraceFile(tmp_path / "other.h5")
    with pytest.raises(FileNotFoundError):
        TraceFile(tmp_path / "absent.h5")


def test_graphs_of_other_sizes_do_not_make_one_trace(tmp_path: Path) -> None:
    other = Topology.in_memory(*power_law_graph(30, 60))
    with pytest.raises(InputError, match="same nodes"):
        record_trace(tmp_path / "x.h5", [SEGMENTS[0], Segment(other, [])], (3,), seed=0)
