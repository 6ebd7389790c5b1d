from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.mfg import IdArray, Sample, SuperBatch
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.topology import Topology
from tests.graphs import cached_topology, csc_from_edges, power_law_graph, seed_batches, topologies

FANOUTS = st.lists(st.sampled_from([-1, 1, 2, 3, 5, 70]), max_size=3)


def _same_sample(one: Sample, other: Sample) -> None:
    assert one.batch_index == other.batch_index
    assert one.num_seed_rows == other.num_seed_rows
    _same_array(one.input_nodes, other.input_nodes)
    _same_array(one.seed_inverse, other.seed_inverse)
    for a, b in zip(one.hops, other.hops, strict=True):
        assert a.num_src == b.num_src
        _same_array(a.indptr, b.indptr)
        _same_array(a.indices, b.indices)


def _same_array(one: np.ndarray, other: np.ndarray) -> None:
    assert one.dtype == other.dtype
    assert np.array_equal(one, other)


def _same(one: SuperBatch, other: SuperBatch) -> None:
    for a, b in zip(one.samples, other.samples, strict=True):
        _same_sample(a, b)


def _check_against_references(
    data: st.DataObject, topology: Topology, fanouts: list[int], replace: bool, seed: int
) -> None:
    batches = data.draw(seed_batches(topology.num_nodes))
    sampler = NeighborSampler(topology, fanouts, seed=seed, purpose=Purpose.TRAIN, replace=replace)
    fast = sampler.sample(batches, epoch=2, first_batch=5)
    slow = sampler.sample_reference(batches, epoch=2, first_batch=5)
    _same(fast, slow)
    assert fast.adjacency_reads == slow.adjacency_reads
    for i, seeds in enumerate(batches):
        alone = reference.sample_batch(
            topology, seeds, fanouts, seed=seed, purpose=Purpose.TRAIN, epoch=2, batch_index=5 + i, replace=replace
        )
        _same_sample(fast.samples[i], alone)


@settings(deadline=None, max_examples=200)
@given(st.data(), topologies(), FANOUTS, st.booleans(), st.integers(0, 2**64 - 1))
def test_fast_equals_reference_equals_one_batch_alone(
    data: st.DataObject, topology: Topology, fanouts: list[int], replace: bool, seed: int
) -> None:
    _check_against_references(data, topology, fanouts, replace, seed)


@settings(deadline=None)
@given(st.data(), topologies(), FANOUTS, st.booleans(), st.integers(0, 2**64 - 1))
def test_edge_ids_name_the_sampled_edges(
    data: st.DataObject, topology: Topology, fanouts: list[int], replace: bool, seed: int
) -> None:
    batches = data.draw(seed_batches(topology.num_nodes))
    plain, numbered = (
        NeighborSampler(topology, fanouts, seed=seed, purpose=Purpose.TRAIN, replace=replace, edge_ids=asked)
        for asked in (False, True)
    )
    sampled = numbered.sample(batches, epoch=2, first_batch=5)
    _same(sampled, plain.sample(batches, epoch=2, first_batch=5))
    slow = numbered.sample_reference(batches, epoch=2, first_batch=5)
    for sample, expected in zip(sampled.samples, slow.samples, strict=True):
        for hop, slow_hop in zip(sample.hops, expected.hops, strict=True):
            assert hop.edge_ids is not None
            assert slow_hop.edge_ids is not None
            _same_array(hop.edge_ids, slow_hop.edge_ids)
            assert np.array_equal(topology.indices[hop.edge_ids], sample.input_nodes[hop.indices])
            dst = np.repeat(sample.input_nodes[: hop.num_dst], np.diff(hop.indptr))
            assert (hop.edge_ids >= topology.indptr[dst]).all()
            assert (hop.edge_ids < topology.indptr[dst + 1]).all()
            assert replace or len(np.unique(hop.edge_ids)) == hop.num_edges


@pytest.mark.full
@settings(deadline=None, max_examples=4000, suppress_health_check=list(HealthCheck))
@given(st.data(), topologies(max_edges=400), FANOUTS, st.booleans(), st.integers(0, 2**64 - 1))
def test_fast_equals_references_at_length(
    data: st.DataObject, topology: Topology, fanouts: list[int], replace: bool, seed: int
) -> None:
    _check_against_references(data, topology, fanouts, replace, seed)


@settings(deadline=None, max_examples=60)
@given(st.data(), topologies(), st.lists(st.sampled_from([-1, 1, 2, 3]), min_size=1, max_size=3), st.booleans())
def test_a_sample_is_of_the_graph(data: st.DataObject, topology: Topology, fanouts: list[int], replace: bool) -> None:
    batches = data.draw(seed_batches(topology.num_nodes))
    sampler = NeighborSampler(topology, fanouts, seed=0, purpose=Purpose.TRAIN, replace=replace)
    for seeds, sample in zip(batches, sampler.sample(batches, epoch=0, first_batch=0).samples, strict=True):
        assert np.array_equal(sample.seed_nodes[sample.seed_inverse], seeds)
        assert len(set(sample.input_nodes.tolist())) == len(sample.input_nodes) == sample.hops[-1].num_src
        num_dst = sample.num_seed_rows
        for mfg, fanout in zip(sample.hops, reversed(fanouts), strict=True):
            assert mfg.num_dst == num_dst
            num_dst = mfg.num_src
            for row in range(mfg.num_dst):
                drawn = sample.input_nodes[mfg.indices[mfg.indptr[row] : mfg.indptr[row + 1]]]
                _check_row(topology, int(sample.input_nodes[row]), drawn, fanout, replace)


def _check_row(topology: Topology, node: int, drawn: IdArray, fanout: int, replace: bool) -> None:
    row = topology.indices[topology.indptr[node] : topology.indptr[node + 1]]
    if fanout == -1 or (len(row) <= fanout and not replace):
        assert np.array_equal(drawn, row)
    elif replace:
        assert len(drawn) == (fanout if len(row) else 0)
        assert set(drawn) <= set(row)
    else:
        assert len(drawn) == fanout
        values, counts = np.unique(drawn, return_counts=True)  # multi-edges may be drawn as often as they are stored
        assert all(count <= (row == value).sum() for value, count in zip(values, counts, strict=True))


@pytest.fixture(scope="module")
def graph() -> tuple[np.ndarray, IdArray]:
    return power_law_graph(3000, 60_000, seed=3)


@pytest.mark.parametrize("fanouts", [[15, 10, 5], [-1, 2], [4, 100]])
def test_a_sample_does_not_depend_on_grouping_or_cache(graph: tuple[np.ndarray, IdArray], fanouts: list[int]) -> None:
    batches = shuffled_batches(np.arange(1000), 90, seed=0, epoch=0)
    assert len(batches[-1]) == 10
    plain = NeighborSampler(Topology.in_memory(*graph), fanouts, seed=9, purpose=Purpose.TRAIN)
    alone = SuperBatch(
        tuple(plain.sample([batch], epoch=1, first_batch=i).samples[0] for i, batch in enumerate(batches)),
        plain.sample([], epoch=1, first_batch=0).adjacency_reads,
    )
    for held in (np.arange(0), np.arange(0, 3000, 3), np.arange(3000)):
        sampler = NeighborSampler(cached_topology(*graph, held), fanouts, seed=9, purpose=Purpose.TRAIN)
        _same(sampler.sample(batches, epoch=1, first_batch=0), alone)
    for size in (1, 4, 8):
        groups = [plain.sample(batches[i : i + size], epoch=1, first_batch=i) for i in range(0, len(batches), size)]
        assert [s.batch_index for group in groups for s in group.samples] == list(range(len(batches)))
        for one, other in zip((s for group in groups for s in group.samples), alone.samples, strict=True):
            _same_sample(one, other)


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_threads_share_a_sampler(graph: tuple[np.ndarray, IdArray], num_threads: int) -> None:
    sampler = NeighborSampler(Topology.in_memory(*graph), [10, 5], seed=0, purpose=Purpose.TRAIN)
    batches = shuffled_batches(np.arange(3000), 100, seed=0, epoch=0)
    expected = [sampler.sample([batch], epoch=0, first_batch=i) for i, batch in enumerate(batches)]
    together = threading.Barrier(num_threads)

    def sample(worker: int) -> list[tuple[int, SuperBatch]]:
        together.wait()
        mine = range(worker, len(batches), num_threads)
        return [(i, sampler.sample([batches[i]], epoch=0, first_batch=i)) for i in mine]

    with ThreadPoolExecutor(num_threads) as pool:
        for found in pool.map(sample, range(num_threads)):
            for i, super_batch in found:
                _same(super_batch, expected[i])


def test_every_part_of_the_identity_changes_the_sample(graph: tuple[np.ndarray, IdArray]) -> None:
    topology, seeds = Topology.in_memory(*graph), np.arange(200)

    def sources(seed: int, purpose: Purpose, epoch: int, first_batch: int) -> bytes:
        sampler = NeighborSampler(topology, [3], seed=seed, purpose=purpose)
        return sampler.sample([seeds], epoch=epoch, first_batch=first_batch).samples[0].input_nodes.tobytes()

    identities = [
        (0, Purpose.TRAIN, 0, 0),
        (1, Purpose.TRAIN, 0, 0),
        (0, Purpose.PROFILE, 0, 0),
        (0, Purpose.TRAIN, 1, 0),
        (0, Purpose.TRAIN, 0, 1),
    ]
    assert len({sources(*identity) for identity in identities}) == len(identities)
    assert sources(*identities[0]) == sources(*identities[0])


def test_hops_draw_anew() -> None:
    # One node that is its own only source: both hops expand the same row.
    indptr, indices = csc_from_edges(40, np.arange(40), np.zeros(40, int))
    sampler = NeighborSampler(Topology.in_memory(indptr, indices), [8, 8], seed=0, purpose=Purpose.TRAIN)
    sample = sampler.sample([np.array([0])], epoch=0, first_batch=0).samples[0]
    first, second = (sample.input_nodes[hop.indices[:8]] for hop in sample.hops)
    assert set(first.tolist()) != set(second.tolist())


def test_reads_count_one_list_a_destination_and_hop() -> None:
    indptr, indices = csc_from_edges(4, [1, 2, 3, 3, 0], [0, 0, 0, 1, 3])
    sampler = NeighborSampler(cached_topology(indptr, indices, [0, 2]), [-1, 2], seed=0, purpose=Purpose.TRAIN)
    batch = sampler.sample([np.array([0, 2])], epoch=0, first_batch=0)
    reads, sources = batch.adjacency_reads, batch.samples[0].input_nodes
    assert (reads.device_rows, reads.host_rows) == (4, len(sources) - 2)
    assert reads.device_bytes == (2 + 3) * 4
    assert reads.host_bytes == sum(np.diff(indptr)[v] for v in sources if v in (1, 3)) * 4


def test_nothing_to_sample() -> None:
    sampler = NeighborSampler(
        Topology.in_memory(np.zeros(4, np.int64), np.empty(0, np.int32)), [3, 3], seed=0, purpose=Purpose.TRAIN
    )
    assert sampler.sample([], epoch=0, first_batch=0).samples == ()
    empty, isolated = sampler.sample([np.empty(0, np.int64), np.array([2, 2])], epoch=0, first_batch=0).samples
    assert (empty.num_seed_rows, len(empty.input_nodes), [hop.num_dst for hop in empty.hops]) == (0, 0, [0, 0])
    assert (isolated.num_seed_rows, isolated.seed_inverse.tolist()) == (1, [0, 0])
    assert [hop.num_edges for hop in isolated.hops] == [0, 0]


def test_no_hops_are_just_the_seeds(graph: tuple[np.ndarray, IdArray]) -> None:
    sampler = NeighborSampler(Topology.in_memory(*graph), [], seed=0, purpose=Purpose.TRAIN)
    sample = sampler.sample([np.array([7, 3, 7])], epoch=0, first_batch=0).samples[0]
    assert (sample.hops, sample.input_nodes.tolist(), sample.seed_inverse.tolist()) == ((), [7, 3], [0, 1, 0])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.uint64])
def test_seeds_may_have_any_integer_type(graph: tuple[np.ndarray, IdArray], dtype: type) -> None:
    sampler = NeighborSampler(Topology.in_memory(*graph), [4], seed=0, purpose=Purpose.TRAIN)
    expected = sampler.sample([np.arange(50)], epoch=0, first_batch=0)
    _same(sampler.sample([np.arange(50, dtype=dtype)], epoch=0, first_batch=0), expected)


def test_bad_arguments_are_refused(graph: tuple[np.ndarray, IdArray]) -> None:
    topology = Topology.in_memory(*graph)
    for bad_fanout in (0, -2, 2.5, 1 << 63, "5"):
        with pytest.raises(ValueError, match=rf"fanout must be >= 1 or -1 .*\(got {bad_fanout!r}\)"):
            NeighborSampler(topology, [3, bad_fanout], seed=0, purpose=Purpose.TRAIN)  # type: ignore[list-item]
    sampler = NeighborSampler(topology, [3], seed=0, purpose=Purpose.TRAIN)
    for bad in (3000, -1):
        with pytest.raises(ValueError, match=rf"seed node {bad} of batch 1 lies outside \[0, 3000\)"):
            sampler.sample([np.array([0]), np.array([5, bad, 4000])], epoch=0, first_batch=0)
    with pytest.raises(ValueError, match="1-D integer"):
        sampler.sample([np.array([0.5])], epoch=0, first_batch=0)
    with pytest.raises(ValueError, match="batch_size must be >= 1"):
        shuffled_batches(np.arange(3), 0, seed=0, epoch=0)


def test_a_topology_without_nodes() -> None:
    sampler = NeighborSampler(
        Topology.in_memory(np.zeros(1, np.int64), np.empty(0, np.int32)), [3], seed=0, purpose=Purpose.TRAIN
    )
    assert sampler.sample([np.empty(0, np.int64)], epoch=0, first_batch=0).samples[0].hops[0].num_dst == 0


def test_offsets_beyond_32_bits(tmp_path: Path) -> None:
    # A sparse file: its first list is longer than an int32 counts and reads as zeros, its second one lies behind it.
    head, tail = 2**31 + 5, np.array([1, 0, 1, 1, 1], np.int32)
    indices = np.memmap(tmp_path / "indices", np.int32, mode="w+", shape=(head + 5,))
    indices[head:] = tail
    topology = Topology.in_memory(np.array([0, head, head + 5]), np.asarray(indices))
    sampler = NeighborSampler(topology, [5], seed=0, purpose=Purpose.TRAIN)
    mfg = sampler.sample([np.array([1, 0])], epoch=0, first_batch=0).samples[0].hops[0]
    assert mfg.indices.tolist() == [0, 1, 0, 0, 0, 1, 1, 1, 1, 1]
    _same(
        sampler.sample([np.array([0])], epoch=0, first_batch=0),
        sampler.sample_reference([np.array([0])], epoch=0, first_batch=0),
    )


def test_shuffled_batches_cover_an_epoch_in_an_order_of_its_own() -> None:
    nodes = np.arange(100, 203)
    first, again, second, other = (
        shuffled_batches(nodes, 10, seed=seed, epoch=epoch) for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    assert [len(batch) for batch in first] == [10] * 10 + [3]
    assert sorted(np.concatenate(first).tolist()) == nodes.tolist()
    assert np.array_equal(np.concatenate(first), np.concatenate(again))
    assert not np.array_equal(np.concatenate(first), np.concatenate(second))
    assert not np.array_equal(np.concatenate(first), np.concatenate(other))
    backwards = shuffled_batches(nodes[::-1], 10, seed=0, epoch=0)
    assert np.array_equal(np.concatenate(first), np.concatenate(backwards))
    assert shuffled_batches(nodes[:0], 10, seed=0, epoch=0) == []
