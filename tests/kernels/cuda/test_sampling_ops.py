from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.cpu import sample as ops
from kernels.cpu.draw import new_shuffle
from kernels.cuda.launch import Launcher
from kernels.cuda.sample import busy_share, group_shape
from kernels.cuda.topology import DeviceTopology
from kernels.mfg import IdArray
from kernels.topology import Topology
from tests.cudasim.instances import FANOUTS
from tests.gpu.ops import CudaOps
from tests.graphs import csc_from_edges, seed_batches, topologies

DRAWN = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _same(one: np.ndarray, other: np.ndarray) -> None:
    assert one.dtype == other.dtype
    assert np.array_equal(one, other)


def _unique_batches(data: st.DataObject, topology: Topology) -> tuple[IdArray, np.ndarray]:
    batches = data.draw(seed_batches(topology.num_nodes))
    nodes = np.concatenate([topology.indices[:0], *(b.astype(topology.indices.dtype) for b in batches)])
    ptr = np.cumsum([0, *map(len, batches)], dtype=np.int64)
    uniq, uniq_ptr, _ = reference.unique_per_batch(nodes, ptr)
    return uniq, uniq_ptr


@DRAWN
@given(data=st.data(), topology=topologies())
def test_unique_per_batch(launcher: Launcher, data: st.DataObject, topology: Topology) -> None:
    batches = data.draw(seed_batches(topology.num_nodes))
    nodes = np.concatenate([topology.indices[:0], *(b.astype(topology.indices.dtype) for b in batches)])
    ptr = np.cumsum([0, *map(len, batches)], dtype=np.int64)
    got = CudaOps(launcher).unique_per_batch(launcher.to_device(nodes), launcher.to_device(ptr))
    for one, other in zip(got, reference.unique_per_batch(nodes, ptr), strict=True):
        _same(launcher.to_host(one), other)


@DRAWN
@given(
    data=st.data(),
    topology=topologies(),
    fanout=st.sampled_from([-1, *FANOUTS, 70, 1200]),
    replacing=st.booleans(),
    keys=st.lists(st.integers(0, 2**64 - 1), min_size=5, max_size=5),
)
def test_sample_neighbors(
    launcher: Launcher, data: st.DataObject, topology: Topology, fanout: int, replacing: bool, keys: list[int]
) -> None:
    uniq, uniq_ptr = _unique_batches(data, topology)
    stream_keys = np.array(keys[: len(uniq_ptr) - 1], np.uint64)
    numbered = fanout in (-1, 2, 70)
    expected = reference.sample_neighbors(
        topology, uniq, uniq_ptr, fanout, stream_keys=stream_keys, replace=replacing, edge_ids=numbered
    )
    device = DeviceTopology.place(launcher, topology)
    got = CudaOps(launcher).sample_neighbors(
        device, launcher.to_device(uniq), launcher.to_device(uniq_ptr), fanout,
        stream_keys=launcher.to_device(stream_keys), replace=replacing, edge_ids=numbered,
    )  # fmt: skip
    for one, other in zip(got[:3], expected[:3], strict=True):
        _same(launcher.to_host(one), other)
    assert got[3] == expected[3]


@DRAWN
@given(data=st.data(), topology=topologies(), fanout=st.sampled_from([-1, 1, 3, 7]), replacing=st.booleans())
def test_classify_by_degree(
    launcher: Launcher, data: st.DataObject, topology: Topology, fanout: int, replacing: bool
) -> None:
    uniq, uniq_ptr = _unique_batches(data, topology)
    degree_U = topology.in_degree()[uniq]
    expected = reference.classify_by_degree(uniq, uniq_ptr, degree_U, fanout, replace=replacing)
    on_device = (launcher.to_device(uniq), launcher.to_device(uniq_ptr), launcher.to_device(degree_U))
    got = CudaOps(launcher).classify_by_degree(*on_device, fanout, replace=replacing)
    for one, other in zip(got, expected, strict=True):
        _same(launcher.to_host(one), other)


@DRAWN
@given(data=st.data(), topology=topologies())
def test_relabel(launcher: Launcher, data: st.DataObject, topology: Topology) -> None:
    uniq, uniq_ptr = _unique_batches(data, topology)
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=len(uniq_ptr) - 1, max_size=len(uniq_ptr) - 1))
    edge_ptr = np.cumsum([0, *lengths], dtype=np.int64)
    node = st.integers(0, topology.num_nodes - 1)
    drawn = data.draw(st.lists(node, min_size=int(edge_ptr[-1]), max_size=int(edge_ptr[-1])))
    neighbors: Any = np.array(drawn, uniq.dtype)
    on_device = [launcher.to_device(array) for array in (uniq, uniq_ptr, neighbors, edge_ptr)]
    got = CudaOps(launcher).relabel(*on_device)
    for one, other in zip(got, reference.relabel(uniq, uniq_ptr, neighbors, edge_ptr), strict=True):
        _same(launcher.to_host(one), other)


@pytest.mark.parametrize("fanout", [5, 25])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_positions_of_64_bits_give_the_same_sample(launcher: Launcher, dtype: type, fanout: int) -> None:
    rng = np.random.default_rng(0)
    topology = Topology.in_memory(*csc_from_edges(40, rng.integers(0, 40, 900), rng.integers(0, 9, 900), dtype=dtype))
    device = DeviceTopology.place(launcher, topology)
    wide = replace(device, largest_degree=2**33)
    assert (device.position_type, wide.position_type) == ("u32", "u64")
    uniq, ptr = launcher.to_device(np.arange(40, dtype=dtype)), launcher.to_device(np.array([0, 40]))
    keys = launcher.to_device(np.array([77], np.uint64))
    narrow_rows, wide_rows = (
        launcher.to_host(CudaOps(launcher).sample_neighbors(each, uniq, ptr, fanout, stream_keys=keys)[1])
        for each in (device, wide)
    )
    assert np.array_equal(narrow_rows, wide_rows)


@pytest.mark.parametrize("fanout", [1025, 1400, 20_000])
def test_fanouts_beyond_shared_memory(launcher: Launcher, fanout: int) -> None:
    """Traced back step by step, the largest would take minutes on the shim."""
    rng, num_nodes = np.random.default_rng(2), 9
    targets = np.concatenate([np.repeat(np.arange(3), [fanout + 1, fanout + 300, 2 * fanout]), np.arange(3, 9)])
    topology = Topology.in_memory(*csc_from_edges(num_nodes, rng.integers(0, num_nodes, len(targets)), targets))
    uniq, ptr, keys = np.array([2, 5, 0, 1, 2], np.int32), np.array([0, 3, 5]), np.array([3, 2**63], np.uint64)
    got = CudaOps(launcher).sample_neighbors(
        DeviceTopology.place(launcher, topology), launcher.to_device(uniq), launcher.to_device(ptr), fanout,
        stream_keys=launcher.to_device(keys), edge_ids=True,
    )  # fmt: skip
    arguments: dict[str, Any] = {"stream_keys": keys, "edge_ids": True}
    expected = ops.sample_neighbors(topology, uniq, ptr, fanout, shuffle=new_shuffle(), **arguments)
    for one, other in zip(got[:3], expected[:3], strict=True):
        _same(launcher.to_host(one), other)
    if fanout < 1400:
        traced = reference.sample_neighbors(topology, uniq, ptr, fanout, **arguments)
        _same(launcher.to_host(got[1]), traced[1])


def test_groups_leave_few_lanes_idle() -> None:
    for fanout in range(1, 65):
        shape = group_shape(fanout)
        assert shape.lanes * shape.rounds >= fanout
        assert busy_share(shape, fanout) >= 0.87  # one group of 17 lanes keeps 0.53 busy


def test_offsets_above_two_to_the_31(launcher: Launcher) -> None:
    """Edges numbered from 2**33 on, read through a base address so far below: 32-bit offsets would miss."""
    rng, first = np.random.default_rng(1), 2**33
    topology = Topology.in_memory(*csc_from_edges(50, rng.integers(0, 50, 700), rng.integers(0, 50, 700)))
    near = DeviceTopology.place(launcher, topology)
    far = replace(near, indptr=near.indptr + first, indices_address=(near.indices_address - first * 4) % 2**64)
    uniq, ptr = launcher.to_device(np.arange(50, dtype=np.int32)), launcher.to_device(np.array([0, 20, 50]))
    keys = launcher.to_device(np.array([7, 8], np.uint64))
    for fanout in (-1, 2, 70):
        row_ptr, neighbors, ids, _ = (
            CudaOps(launcher).sample_neighbors(far, uniq, ptr, fanout, stream_keys=keys, edge_ids=True)
        )  # fmt: skip
        expected = CudaOps(launcher).sample_neighbors(near, uniq, ptr, fanout, stream_keys=keys, edge_ids=True)
        assert np.array_equal(launcher.to_host(row_ptr), launcher.to_host(expected[0]))
        assert np.array_equal(launcher.to_host(neighbors), launcher.to_host(expected[1]))
        assert np.array_equal(launcher.to_host(ids), launcher.to_host(expected[2]) + first)
