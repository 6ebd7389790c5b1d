from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.cuda.gather import TierTable, check_rows, count_accesses, gather_rows, row_addresses
from kernels.cuda.host_rows import PageableRows, PinnedRows
from kernels.cuda.launch import DeviceLauncher, Launcher
from kernels.cuda.sampler import CudaSampler
from kernels.cuda.tiers import DeviceTiers
from kernels.cuda.topology import DeviceTopology
from kernels.mfg import Mfg, SuperBatch
from kernels.nn.aggregate import Reduce, aggregate_tiers
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.tiered_rows import TieredRows
from kernels.topology import Topology
from storage.cache.device_slots import DeviceSlots
from storage.cache.dynamic import DynamicCache
from storage.cache.hotset import DynamicOptions
from storage.cache.tiers import FeatureTiers
from tests.cudasim.build import GXX
from tests.cudasim.launcher import SimLauncher
from tests.gpu.checks import held_tier
from tests.graphs import cached_topology, power_law_graph, seed_batches, topologies

DRAWN = settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _same_samples(launcher: Launcher, device: SuperBatch, host: SuperBatch) -> None:
    assert device.adjacency_reads == host.adjacency_reads
    for one, other in zip(device.samples, host.samples, strict=True):
        assert (one.batch_index, one.num_seed_rows) == (other.batch_index, other.num_seed_rows)
        pairs: list[tuple[Any, Any]] = [(one.input_nodes, other.input_nodes), (one.seed_inverse, other.seed_inverse)]
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


@pytest.mark.parametrize(("dtype", "is_pinned"), [(np.float32, True), (np.float16, True), (np.float32, False)])
def test_a_super_batch_equals_the_cpus_through_all_tiers(launcher: DeviceLauncher, dtype: Any, is_pinned: bool) -> None:
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
    on_cpu = FeatureTiers(features, planned, dynamic_rows=len(dynamic), dynamic=DynamicOptions(share=1))
    assert on_cpu.dynamic is not None
    on_cpu.dynamic.is_watching = True
    on_cpu.dynamic.observe(1, lambda _, score_N, weight: score_N.__setitem__(dynamic, weight))
    on_cpu.dynamic.update()
    on_cpu.dynamic.is_watching = False
    host = (PinnedRows if is_pinned else PageableRows)(launcher, launcher.reach(features))
    held = held_tier(launcher, host, dynamic)
    tiers = DeviceTiers(launcher, host, planned, held)
    groups = [sample.input_nodes for sample in sampled.samples]
    copied, in_place = tiers.gather_group(groups), tiers.locate_group(groups)
    for rows, places, sample in zip(copied.rows, in_place.rows, expected.samples, strict=True):
        wanted = features[sample.input_nodes]
        assert launcher.to_host(rows).tobytes() == wanted.tobytes()
        assert places.tensor().cpu().numpy().tobytes() == wanted.tobytes()
        assert (len(places), len(places.head(5).tensor())) == (len(wanted), 5)
    host_groups = [sample.input_nodes for sample in expected.samples]
    for _ in range(2):
        assert len(list(on_cpu.gather_group(host_groups))) == 8
    assert tiers.reads == on_cpu.reads
    assert tiers.reads.dynamic_rows > 0
    assert tiers.planned_bytes + held.nbytes == on_cpu.device_bytes


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
def test_the_first_layer_reads_rows_where_they_lie(launcher: DeviceLauncher, dtype: Any, reduce: Reduce) -> None:
    """To the bit what the CPU sums up."""
    rng, features = np.random.default_rng(2), np.random.default_rng(1).integers(0, 200, (300, 20)).astype(dtype)
    host = PinnedRows(launcher, launcher.reach(features))
    tiers = DeviceTiers(launcher, host, np.arange(0, 300, 3), held_tier(launcher, host, np.arange(1, 300, 9)))
    batches = [rng.permutation(300)[:size] for size in (200, 0, 90)]
    group = tiers.locate_group([launcher.to_device(ids) for ids in batches])
    for ids, rows in zip(batches, group.rows, strict=True):
        num_dst = len(ids) // 2
        indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 6, num_dst))])
        indices = rng.integers(0, max(1, len(ids)), indptr[-1]).astype(np.int32)
        weight = torch.from_numpy(rng.random(len(ids), np.float32)) if reduce == "sum" else None
        on_cpu = TieredRows([features], np.zeros(len(ids), np.uint8), ids)
        expected = aggregate_tiers(Mfg(indptr, indices, len(ids)), on_cpu, weight_S=weight, reduce=reduce, beside=True)
        mfg = Mfg(launcher.to_device(indptr), launcher.to_device(indices), len(ids))
        on_device = None if weight is None else weight.to(launcher.torch_device)
        found = aggregate_tiers(mfg, rows, weight_S=on_device, reduce=reduce, beside=True)
        assert torch.equal(found.cpu(), expected)


def test_scores_of_the_dynamic_cache_are_the_cpus(launcher: DeviceLauncher) -> None:
    """Bit for bit, so that it comes to hold the same rows."""
    features = np.random.default_rng(0).random((400, 6), np.float32)
    planned, options = np.arange(40), DynamicOptions(share=1, gamma=0.9, epochs=9)
    on_cpu = FeatureTiers(features, planned, dynamic_rows=30, dynamic=options)
    host = PinnedRows(launcher, launcher.reach(features))
    slots = DeviceSlots(launcher, host, on_cpu.dynamic_layout)
    held = DynamicCache(slots, on_cpu.dynamic_layout, options)
    tiers, rng = DeviceTiers(launcher, host, planned, held), np.random.default_rng(3)
    assert on_cpu.dynamic is not None
    for epoch in range(3):
        with on_cpu.watched_epoch(epoch), held.watch(epoch):
            for _ in range(4):
                group = [rng.permutation(400)[: rng.integers(0, 60)] for _ in range(3)]
                for rows, ids in zip(
                    tiers.gather_group([launcher.to_device(ids) for ids in group]).rows, group, strict=True
                ):
                    assert np.array_equal(launcher.to_host(rows), features[ids])
                list(on_cpu.gather_group(group))
        held.wait()
        on_cpu.dynamic.wait()
        assert slots.copied_scores().tobytes() == on_cpu.dynamic._slots.copied_scores().tobytes()
        assert held.current.ids.tolist() == on_cpu.dynamic.current.ids.tolist()
        assert len(held.current.ids) > 10
    assert tiers.reads == on_cpu.reads


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


@pytest.mark.skipif(GXX is None, reason="g++ is not installed: the CUDA kernels are NOT tested here")
@pytest.mark.parametrize(
    ("width", "dtype", "word", "lanes"),
    [(64, "f4", "uint4", 16), (128, "f4", "uint4", 32), (6, "f4", "u64", 4), (1, "f8", "u64", 1), (3, "f2", "u8", 8)],
)
def test_a_request_brings_as_much_of_a_row_as_it_can(
    width: int, dtype: str, word: str, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, asked = SimLauncher(), list[tuple[str, ...]]()
    monkeypatch.setattr(launcher, "run", lambda kernel, *_: asked.append(kernel.template))
    rows = np.empty(4096, np.uint8)
    tier = rows[-rows.ctypes.data % 16 :][: 2 * width * np.dtype(dtype).itemsize].view(dtype).reshape(2, width)
    where = np.zeros(1, np.uint8), np.zeros(1, np.int64)
    gather_rows(launcher, TierTable.of(launcher, [tier]), *where, tier[:1])
    assert asked == [(word, str(lanes))]


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
def test_count_accesses(launcher: Launcher, dtype: Any) -> None:
    ids = np.random.default_rng(0).integers(0, 9, 1000).astype(dtype)
    counts, expected = launcher.xp.zeros(9, np.int64), np.zeros(9, np.int64)
    for part in (ids, ids[:0], ids[:7]):
        count_accesses(launcher, counts, launcher.to_device(part))
        reference.count_accesses(expected, part)
    assert np.array_equal(launcher.to_host(counts), expected)
