from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.cuda.gather import TierTable, check_rows, count_accesses, gather_rows, row_addresses
from kernels.cuda.launch import Launcher
from kernels.cuda.sampler import CudaSampler
from kernels.cuda.tiers import DeviceTiers
from kernels.cuda.topology import DeviceTopology
from kernels.mfg import SuperBatch
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.topology import Topology
from storage.cache.tiers import FeatureTiers
from tests.graphs import cached_topology, power_law_graph, seed_batches, topologies

DRAWN = settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _same_samples(launcher: Launcher, device: SuperBatch, host: SuperBatch) -> None:
    assert device.adjacency_reads == host.adjacency_reads
    for one, other in zip(device.samples, host.samples, strict=True):
        assert (one.batch_index, one.num_seed_rows) == (other.batch_index, other.num_seed_rows)
        pairs = [(one.input_nodes, other.input_nodes), (one.seed_inverse, other.seed_inverse)]
        for mfg, expected in zip(one.hops, other.hops, strict=True):
            assert mfg.num_src == expected.num_src
            pairs += [(mfg.indptr, expected.indptr), (mfg.indices, expected.indices)]
            assert (mfg.edge_ids is None) == (expected.edge_ids is None)
            if expected.edge_ids is not None:
                pairs.append((mfg.edge_ids, expected.edge_ids))
        for got, wanted in pairs:
            assert got.dtype == wanted.dtype
            assert np.array_equal(launcher.to_host(got), wanted)


@DRAWN
@given(
    data=st.data(),
    topology=topologies(),
    fanouts=st.lists(st.sampled_from([-1, 2, 70]), max_size=3),
    replace=st.booleans(),
    edge_ids=st.booleans(),
)
def test_drawn_samples_equal_the_cpus(
    launcher: Launcher, data: st.DataObject, topology: Topology, fanouts: list[int], replace: bool, edge_ids: bool
) -> None:
    batches = data.draw(seed_batches(topology.num_nodes))
    cpu = NeighborSampler(topology, fanouts, seed=3, purpose=Purpose.TRAIN, replace=replace, edge_ids=edge_ids)
    sampler = CudaSampler(launcher, DeviceTopology.place(launcher, topology), cpu)
    sampled = sampler.sample(batches, epoch=1, first_batch=4, batch_step=2)
    _same_samples(launcher, sampled, cpu.sample(batches, epoch=1, first_batch=4, batch_step=2))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_super_batch_equals_the_cpus_through_all_tiers(launcher: Launcher, dtype: type) -> None:
    """K = 8, three hops, adjacency cache; rows from the device cache, the dynamic cache, staging and host memory."""
    num_nodes = 2000
    rng = np.random.default_rng(5)
    topology = cached_topology(*power_law_graph(num_nodes, 20_000, seed=5), np.arange(0, num_nodes, 3))
    batches = shuffled_batches(np.arange(400), 50, seed=1, epoch=0)
    assert len(batches) == 8
    cpu = NeighborSampler(topology, [5, 2, 20], seed=9, purpose=Purpose.TRAIN)
    expected = cpu.sample(batches, epoch=0, first_batch=0)
    sampler = CudaSampler(launcher, DeviceTopology.place(launcher, topology), cpu)
    sampled = sampler.sample(batches, epoch=0, first_batch=0)
    _same_samples(launcher, sampled, expected)
    features = rng.standard_normal((num_nodes, 24)).astype(dtype)
    planned, dynamic = np.arange(0, num_nodes, 4), np.arange(1, num_nodes, 7)
    dynamic = dynamic[dynamic % 4 != 0]
    tiers = DeviceTiers(launcher, features, planned)
    tiers.replace_dynamic(dynamic)
    groups = [sample.input_nodes for sample in sampled.samples]
    for rows, sample in zip(tiers.gather_group(groups), expected.samples, strict=True):
        assert np.array_equal(launcher.to_host(rows).view(np.uint8), features[sample.input_nodes].view(np.uint8))
    on_cpu = FeatureTiers(features, np.union1d(planned, dynamic))
    assert len(list(on_cpu.gather_group([sample.input_nodes for sample in expected.samples]))) == 8
    assert tiers.reads == on_cpu.reads
    assert tiers.device_bytes >= (len(planned) + len(dynamic)) * tiers.row_bytes


@DRAWN
@given(data=st.data(), width=st.sampled_from([1, 3, 4, 8, 70]), dtype=st.sampled_from(["u1", "f2", "f4", "f8"]))
def test_gather_rows(launcher: Launcher, data: st.DataObject, width: int, dtype: str) -> None:
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any))
    rng = np.random.default_rng(0)
    tiers = [rng.integers(0, 256, (size, width * np.dtype(dtype).itemsize), np.uint8).view(dtype) for size in sizes]
    place = st.sampled_from([(t, row) for t, size in enumerate(sizes) for row in range(size)])
    places = data.draw(st.lists(place, max_size=40))
    tier_n, slot_n = np.array([t for t, _ in places], np.uint8), np.array([row for _, row in places], np.int64)
    expected, out = np.zeros((len(places), width), dtype), launcher.xp.zeros((len(places), width), dtype)
    reference.gather_rows(tiers, tier_n, slot_n, expected)
    on_device = [launcher.to_device(tier) for tier in tiers]
    table = TierTable.of(launcher, on_device)
    where = launcher.to_device(tier_n), launcher.to_device(slot_n)
    check_rows(launcher, gather_rows(launcher, table, *where, out), *where)
    assert launcher.to_host(out).tobytes() == expected.tobytes()
    address_n, _ = row_addresses(launcher, table, *where)
    bases = [launcher.address(on_device[t]) + int(row) * on_device[t].strides[0] for t, row in places]
    assert launcher.to_host(address_n).tolist() == bases


def test_a_row_outside_its_tier_is_refused(launcher: Launcher) -> None:
    table = TierTable.of(launcher, [launcher.xp.ones((3, 2), np.float32)])
    for tier, slot in ((0, 3), (0, -1), (1, 0)):
        tier_n = launcher.to_device(np.array([0, tier], np.uint8))
        slot_n = launcher.to_device(np.array([1, slot], np.int64))
        out = launcher.xp.zeros((2, 2), np.float32)
        bad = gather_rows(launcher, table, tier_n, slot_n, out)
        with pytest.raises(ValueError, match=f"row 1 asks for slot {slot} of tier {tier}"):
            check_rows(launcher, bad, tier_n, slot_n)
        assert launcher.to_host(out).tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_count_accesses(launcher: Launcher, dtype: type) -> None:
    ids = np.random.default_rng(0).integers(0, 9, 1000).astype(dtype)
    counts, expected = launcher.xp.zeros(9, np.int64), np.zeros(9, np.int64)
    for part in (ids, ids[:0], ids[:7]):
        count_accesses(launcher, counts, launcher.to_device(part))
        reference.count_accesses(expected, part)
    assert np.array_equal(launcher.to_host(counts), expected)
