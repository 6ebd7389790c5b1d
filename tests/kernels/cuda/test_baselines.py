"""The forms that ours is measured against: the same samples where their draws are ours, the same law where not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.cuda.baselines import (
    classify_with_counters,
    sample_by_classes,
    sample_by_edges,
    sample_by_groups,
    sample_by_warps,
)
from kernels.cuda.gather import count_accesses
from kernels.cuda.launch import DeviceLauncher, Launcher
from kernels.cuda.sample import plan_rows
from kernels.cuda.topology import DeviceTopology
from kernels.mfg import IdArray
from kernels.rng import bounded, child
from kernels.topology import Topology
from tests.cudasim.build import GXX
from tests.cudasim.order import OrderLauncher
from tests.cudasim.preload import direct_sectors, preload_limit, whole_sectors
from tests.graphs import graphs, power_law_graph

DRAWN = settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
FANOUT = 5


@DRAWN
@given(graph=graphs(), data=st.data())
def test_forms_with_our_draws_give_our_samples(
    launcher: DeviceLauncher, graph: tuple[np.ndarray, IdArray], data: st.DataObject
) -> None:
    topology = Topology.in_memory(*graph)
    nodes: Any = np.arange(topology.num_nodes, dtype=graph[1].dtype)
    ptr = np.array([0, data.draw(st.integers(0, len(nodes))), len(nodes)])
    keys = np.array([21, 22], np.uint64)
    _, expected, _, _ = reference.sample_neighbors(topology, nodes, ptr, FANOUT, stream_keys=keys)
    device = DeviceTopology.place(launcher, topology)
    uniq, uniq_ptr = launcher.to_device(nodes), launcher.to_device(ptr)
    plan = plan_rows(launcher, device, uniq, uniq_ptr, FANOUT, stream_keys=launcher.to_device(keys))
    assert np.array_equal(launcher.to_host(sample_by_edges(launcher, device, plan, uniq)), expected)
    for preload in (0, 16):
        neighbors = launcher.xp.full(len(expected), -1, nodes.dtype)
        sample_by_groups(launcher, device, plan, len(nodes), launcher.xp.empty(0, np.int64), neighbors, preload=preload)
        assert np.array_equal(launcher.to_host(neighbors), expected)
        got = sample_by_classes(launcher, device, plan, uniq, uniq_ptr, preload=preload)
        assert np.array_equal(launcher.to_host(got), expected)


@pytest.mark.skipif(GXX is None, reason="g++ is not installed: streams are NOT tested here")
def test_the_two_kernels_run_side_by_side_and_touch_nothing_else_unordered() -> None:
    """They write to the same array, each to rows of its own; all else waits for both."""
    launcher, topology = OrderLauncher(), Topology.in_memory(*power_law_graph(300, 3000, seed=2))
    nodes, ptr, keys = np.arange(300, dtype=np.int32), np.array([0, 300]), np.array([4], np.uint64)
    device = DeviceTopology.place(launcher, topology)
    plan = plan_rows(launcher, device, nodes, ptr, FANOUT, stream_keys=keys)
    for _ in range(2):
        found = sample_by_classes(launcher, device, plan, nodes, ptr)
        count_accesses(launcher, np.zeros(300, np.int64), found)
    assert set(launcher.findings) == {"sample_grouped on main and copy_lists on side"}


def test_a_reservoir_keeps_what_its_draws_say(launcher: Launcher) -> None:
    topology = Topology.in_memory(*power_law_graph(200, 3000, seed=2))
    nodes, ptr, keys = np.arange(200, dtype=np.int32), np.array([0, 200]), np.array([4], np.uint64)
    device = DeviceTopology.place(launcher, topology)
    uniq = launcher.to_device(nodes)
    stream_keys = launcher.to_device(keys)
    plan = plan_rows(launcher, device, uniq, launcher.to_device(ptr), FANOUT, stream_keys=stream_keys)
    got, row_ptr = launcher.to_host(sample_by_warps(launcher, plan, uniq)), launcher.to_host(plan.row_ptr)
    for node in nodes:
        row = topology.indices[topology.indptr[node] : topology.indptr[node + 1]]
        kept = np.arange(min(FANOUT, len(row)))
        row_key = child(keys, np.array([node], np.uint64))
        for step in range(FANOUT, len(row)):
            place = int(bounded(child(row_key, np.array([step], np.uint64)), np.array([step + 1], np.uint64))[0])
            if place < FANOUT:
                kept[place] = step
        assert np.array_equal(got[row_ptr[node] : row_ptr[node + 1]], row[kept])


def test_counters_classify_as_scans_do_but_for_the_order(launcher: Launcher) -> None:
    degree_U = np.random.default_rng(0).integers(0, 9, 700)
    batch_ptr = [0, 0, 300, 700]
    classes = classify_with_counters(launcher, launcher.to_device(degree_U), batch_ptr, 4)
    for (full_rows, random_rows), begin, end in zip(classes, batch_ptr[:-1], batch_ptr[1:], strict=True):
        rows = np.arange(begin, end)
        assert set(launcher.to_host(full_rows).tolist()) == set(rows[degree_U[begin:end] <= 4].tolist())
        assert set(launcher.to_host(random_rows).tolist()) == set(rows[degree_U[begin:end] > 4].tolist())


@pytest.mark.parametrize("id_bytes", [4, 8])
def test_preloading_never_moves_less(id_bytes: int) -> None:
    for fanout in (1, 5, 10, 15):
        limit = preload_limit(fanout, id_bytes)
        for degree in range(fanout + 1, 80):
            whole, direct = whole_sectors(degree, id_bytes), direct_sectors(degree, fanout, id_bytes)
            assert whole >= direct - 1e-9
            if degree <= limit:
                assert whole <= 1.1 * direct
    # Five of 64 ids of 8 bytes touch 4.6 sectors, the whole list 16.75.
    assert direct_sectors(64, 5, 8) == pytest.approx(4.6, abs=0.1)
    assert whole_sectors(64, 8) == pytest.approx(16.75)
