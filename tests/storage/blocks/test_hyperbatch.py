from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.mfg import IdArray, Sample, SuperBatch, TierReads
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.topology import Topology
from storage.blocks import wide_rows
from storage.blocks.array_file import ArrayFile
from storage.blocks.drawn_hop import DrawnHop, most_waiting_bytes
from storage.blocks.hyperbatch import FRONTIER_BYTES, HyperbatchSampler, SamplingMemory, edge_bytes
from storage.blocks.io_stats import IoStats
from storage.blocks.stored_topology import StoredTopology
from storage.cache.cached_topology import cached_topology
from storage.errors import ChecksumMismatchError, StorageError
from storage.graph_store import INDICES, GraphStore
from tests.graphs import graphs, power_law_graph, seed_batches
from tests.spilling import SpillMeter
from tests.storage.blocks.recut import recut_store, store_of

FANOUTS = st.lists(st.sampled_from([-1, 1, 2, 3, 5, 70]), max_size=3)


def same(one: SuperBatch, other: SuperBatch) -> None:
    for a, b in zip(one.samples, other.samples, strict=True):
        assert (a.batch_index, a.num_seed_rows) == (b.batch_index, b.num_seed_rows)
        pairs: list[tuple[Any, Any]] = [(a.input_nodes, b.input_nodes), (a.seed_inverse, b.seed_inverse)]
        for hop, other_hop in zip(a.hops, b.hops, strict=True):
            assert hop.num_src == other_hop.num_src
            pairs += [(hop.indptr, other_hop.indptr), (hop.indices, other_hop.indices)]
            assert (hop.edge_ids is None) == (other_hop.edge_ids is None)
            if hop.edge_ids is not None:
                pairs.append((hop.edge_ids, other_hop.edge_ids))
        for array, other_array in pairs:
            assert array.dtype == other_array.dtype
            assert np.array_equal(array, other_array)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_equals_the_sampler_in_memory(data: st.DataObject) -> None:
    """Any block size, buffer, number of threads, cache and hyperbatch; lists span blocks of two or four ids.

    Rows are wide from one, some or very many draws on.
    """
    indptr, indices = data.draw(graphs())
    num_nodes, fanouts = len(indptr) - 1, data.draw(FANOUTS)
    replace, numbered, seed = data.draw(st.booleans()), data.draw(st.booleans()), data.draw(st.integers(0, 2**64 - 1))
    cached = np.array(data.draw(st.lists(st.integers(0, num_nodes - 1), unique=True).map(sorted)), np.int64)
    batches = data.draw(seed_batches(num_nodes))
    block_bytes = data.draw(st.sampled_from([8, 16, 64, 4096]))
    indptr_blocks = data.draw(st.none() | st.integers(2, 9))
    options: dict[str, Any] = {"seed": seed, "purpose": Purpose.TRAIN, "replace": replace, "edge_ids": numbered}
    memory = NeighborSampler(cached_topology(indptr, indices, cached), fanouts, **options)
    expected = memory.sample(batches, epoch=2, first_batch=5, batch_step=2)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(wide_rows, "_WIDE_DRAWS", data.draw(st.sampled_from([0, 4, 1 << 18])))
        patched.setattr(wide_rows, "_DRAWN_AT_ONCE", data.draw(st.sampled_from([1, 7, 1 << 18])))
        store = store_of(Path(folder) / "graph.h5", block_bytes, indptr=indptr, indices=indices)
        with StoredTopology(
            store,
            cached,
            buffer_bytes=block_bytes * data.draw(st.integers(2, 9)),
            indptr_buffer_bytes=None if indptr_blocks is None else indptr_blocks * block_bytes,
            threads=data.draw(st.integers(1, 3)),
        ) as topology:
            sampler = HyperbatchSampler(topology, fanouts, **options)
            found = sampler.sample(batches, epoch=2, first_batch=5, batch_step=2)
            same(found, expected)
            assert found.adjacency_reads == expected.adjacency_reads
            cut = data.draw(st.integers(0, len(batches)))
            parts = (
                sampler.sample(batches[:cut], epoch=2, first_batch=5, batch_step=2),
                sampler.sample(batches[cut:], epoch=2, first_batch=5 + 2 * cut, batch_step=2),
            )
            same(SuperBatch(parts[0].samples + parts[1].samples, found.adjacency_reads), expected)
            waits = data.draw(st.sampled_from([None, Path(folder)]))
            limits = SamplingMemory(data.draw(st.integers(0, 5000)), data.draw(st.integers(0, 5000)), waits)
            assert joined_in_turns(sampler, batches, limits) == expected.adjacency_reads
            same(SuperBatch(tuple(in_turns(sampler, batches, limits)), expected.adjacency_reads), expected)


@pytest.mark.parametrize("replace", [False, True])
def test_drawing_most_of_a_list_of_many_blocks_takes_no_quadratic_time(tmp_path: Path, replace: bool) -> None:
    """Drawn anew for each of its blocks, this list would take eight seconds and more."""
    degree, fanout = 1_600_000, 1_200_000
    indptr, indices = np.array([0, degree, *([degree] * 20)]), np.random.default_rng(0).integers(0, 20, degree)
    store = store_of(tmp_path / "graph.h5", 4096, indptr=indptr, indices=indices.astype(np.int32))
    options: dict[str, Any] = {"seed": 4, "purpose": Purpose.TRAIN, "replace": replace, "edge_ids": True}
    batches = [np.array([0, 3]), np.array([0])]
    expected = NeighborSampler(cached_topology(indptr, indices.astype(np.int32), np.arange(0)), [fanout], **options)
    with StoredTopology(store, np.arange(0), buffer_bytes=1 << 20) as topology:
        sampler = HyperbatchSampler(topology, [fanout], **options)
        sampler.sample([np.array([1])], epoch=0, first_batch=0)  # compiled
        start = time.process_time()
        found = sampler.sample(batches, epoch=0, first_batch=0)
        assert time.process_time() - start < 2
    same(found, expected.sample(batches, epoch=0, first_batch=0))


def in_turns(sampler: HyperbatchSampler, batches: list[IdArray], memory: SamplingMemory) -> list[Sample]:
    """All mini-batches, in as many hyperbatches as memory makes of them."""
    return [sample for sample, _ in each_in_turns(sampler, batches, memory)]


def joined_in_turns(sampler: HyperbatchSampler, batches: list[IdArray], memory: SamplingMemory) -> TierReads:
    reads = TierReads()
    for _, one in each_in_turns(sampler, batches, memory):
        reads.add(one)
    return reads


def each_in_turns(
    sampler: HyperbatchSampler, batches: list[IdArray], memory: SamplingMemory
) -> Iterator[tuple[Sample, TierReads]]:
    done = 0
    while done < len(batches):
        found = list(sampler.each(batches[done:], epoch=2, first_batch=5 + 2 * done, batch_step=2, memory=memory))
        assert found  # else it would never end
        yield from found
        done += len(found)


def test_memory_ends_a_hyperbatch_and_bounds_what_is_expanded(
    hubs: tuple[GraphStore, Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [np.arange(start, 2000, 40) for start in range(10)]
    with StoredTopology(hubs[0], np.arange(0), buffer_bytes=1 << 20) as topology:
        sampler = HyperbatchSampler(topology, [4, 12], seed=3, purpose=Purpose.TRAIN)
        whole = len(list(sampler.each(batches, epoch=0, first_batch=0, memory=SamplingMemory(1 << 30, 1 << 30))))
        kept = sampler.sample(batches[:3], epoch=0, first_batch=0).samples
        most = sum(sample.nbytes for sample in kept)
        cut = len(list(sampler.each(batches, epoch=0, first_batch=0, memory=SamplingMemory(1 << 30, most))))
        assert whole == len(batches)
        assert 3 <= cut < 10  # one hop of more than three fits
        expanded: list[tuple[int, int]] = []

        def counted(uniq: IdArray, ptr: npt.NDArray[np.int64], *arguments: Any, **options: Any) -> Any:
            expanded.append((len(ptr) - 1, len(uniq)))
            return StoredTopology.sample_neighbors(topology, uniq, ptr, *arguments, **options)

        monkeypatch.setattr(topology, "sample_neighbors", counted)
        most = 200 * (FRONTIER_BYTES + 12 * 12)
        list(sampler.each(batches, epoch=0, first_batch=0, memory=SamplingMemory(most, 1 << 30)))
        assert expanded[:3] == [(4, 200), (4, 200), (2, 100)]
        assert sum(count for count, _ in expanded[3:]) == 10
        assert all(count == 1 or nodes * (FRONTIER_BYTES + 12 * 4) <= most for count, nodes in expanded[3:])


def test_a_hop_that_does_not_fit_reads_each_block_once(
    hubs: tuple[GraphStore, Topology], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [np.arange(start, 2000, 40) for start in range(10)]
    most, expanded = 100 * (FRONTIER_BYTES + 12 * edge_bytes(4)), list[int]()
    with StoredTopology(hubs[0], np.arange(0), buffer_bytes=2 * 4096) as topology:
        sampler = HyperbatchSampler(topology, [4, 12], seed=3, purpose=Purpose.TRAIN)
        expected = sampler.sample(batches, epoch=0, first_batch=0)

        def counted(uniq: IdArray, *arguments: Any, **options: Any) -> Any:
            expanded.append(len(uniq))
            return StoredTopology.sample_neighbors(topology, uniq, *arguments, **options)

        def read_blocks(memory: SamplingMemory) -> int:
            before = topology.stats.counts()
            found = list(sampler.each(batches, epoch=0, first_batch=0, memory=memory))
            same(SuperBatch(tuple(sample for sample, _ in found), TierReads()), expected)
            assert sum(reads.host_rows for _, reads in found) == expected.adjacency_reads.host_rows
            return topology.stats.counts().since(before).read_blocks

        monkeypatch.setattr(topology, "sample_neighbors", counted)
        again, once = (read_blocks(SamplingMemory(most, 1 << 30, where)) for where in (None, tmp_path))
        whole = read_blocks(SamplingMemory(1 << 30, 1 << 30, tmp_path))
    num_windows = len(expanded) // 3
    assert again > 2 * whole
    assert once <= whole + 2 * num_windows  # blocks at the ends of windows are met twice
    assert max(expanded[:-2]) <= max(300, most // (FRONTIER_BYTES + 4 * edge_bytes(4)))


@pytest.mark.parametrize(("share", "waits"), [(1.0, True), (0.999, False)])
def test_neighbors_wait_on_disk_where_it_holds_the_most_that_they_take(
    hubs: tuple[GraphStore, Topology], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, share: float, waits: bool
) -> None:
    batches = [np.arange(start, 2000, 40) for start in range(10)]
    most_nodes, meter = 100, SpillMeter(monkeypatch)
    room = int(share * most_waiting_bytes(sum(map(len, batches)), len(batches), most_nodes, 12, 4))
    memory = SamplingMemory(most_nodes * (FRONTIER_BYTES + 12 * edge_bytes(4)), 1 << 30, tmp_path, room)
    with StoredTopology(hubs[0], np.arange(0), buffer_bytes=2 * 4096) as topology:
        sampler = HyperbatchSampler(topology, [12], seed=3, purpose=Purpose.TRAIN)
        expected = sampler.sample(batches, epoch=0, first_batch=0)
        found = list(sampler.each(batches, epoch=0, first_batch=0, memory=memory))
    same(SuperBatch(tuple(sample for sample, _ in found), TierReads()), expected)
    assert (meter.peak_bytes > 0) == waits
    assert meter.peak_bytes <= room


@settings(deadline=None, max_examples=50)
@given(frontiers=seed_batches(300), most_nodes=st.integers(0, 400), fanout=st.integers(1, 9))
def test_what_waits_takes_no_more_than_is_stated(frontiers: list[IdArray], most_nodes: int, fanout: int) -> None:
    distinct: Any = [np.unique(frontier) for frontier in frontiers]
    frontiers = [np.empty(0, np.int64), *distinct]

    def draw(uniq: IdArray, ptr: npt.NDArray[np.int64]) -> Any:
        """As many neighbors as may be."""
        return np.arange(len(uniq) + 1) * fanout, np.repeat(uniq, fanout), None, [TierReads() for _ in ptr[1:]]

    with tempfile.TemporaryDirectory() as folder, ArrayFile(Path(folder), IoStats()) as file:
        drawn = DrawnHop(file, frontiers, most_nodes, draw)
        for number, frontier in enumerate(frontiers):
            assert np.array_equal(drawn.of(number, frontier)[1], np.repeat(frontier, fanout))
        num_nodes = sum(map(len, frontiers))
        assert file.nbytes <= most_waiting_bytes(num_nodes, len(frontiers), most_nodes, fanout, 8)


def test_whole_lists_are_taken_for_as_many_mini_batches_as_fit(
    hubs: tuple[GraphStore, Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [np.arange(start, 2000, 40) for start in range(10)]
    expanded: list[tuple[int, int]] = []
    with StoredTopology(hubs[0], np.arange(0), buffer_bytes=1 << 20) as topology:

        def counted(uniq: IdArray, ptr: npt.NDArray[np.int64], *arguments: Any, **options: Any) -> Any:
            found = StoredTopology.sample_neighbors(topology, uniq, ptr, *arguments, **options)
            expanded.append((len(ptr) - 1, len(uniq) * FRONTIER_BYTES + len(found[1]) * edge_bytes(4)))
            return found

        monkeypatch.setattr(topology, "sample_neighbors", counted)
        sampler = HyperbatchSampler(topology, [-1], seed=3, purpose=Purpose.TRAIN)
        list(sampler.each(batches, epoch=0, first_batch=0, memory=SamplingMemory(1 << 30, 1 << 30)))
        ((count, most),) = expanded
        assert count == 10
        expanded.clear()
        list(sampler.each(batches, epoch=0, first_batch=0, memory=SamplingMemory(most - 1, 1 << 30)))
        assert len(expanded) == 2
        assert sum(count for count, _ in expanded) == 10
        assert all(nbytes < most for _, nbytes in expanded)


def test_mini_batches_that_will_not_be_kept_are_not_expanded(
    hubs: tuple[GraphStore, Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [np.arange(start, 2000, 40) for start in range(10)]
    expanded: list[int] = []
    with StoredTopology(hubs[0], np.arange(0), buffer_bytes=1 << 20) as topology:

        def counted(uniq: IdArray, ptr: npt.NDArray[np.int64], *arguments: Any, **options: Any) -> Any:
            expanded.append(len(ptr) - 1)
            return StoredTopology.sample_neighbors(topology, uniq, ptr, *arguments, **options)

        monkeypatch.setattr(topology, "sample_neighbors", counted)
        sampler = HyperbatchSampler(topology, [4, 12], seed=3, purpose=Purpose.TRAIN)
        found = list(sampler.each(batches, epoch=0, first_batch=0, memory=SamplingMemory(1, 1)))
    assert len(found) == 1
    assert expanded == [1, 1]


@pytest.fixture(scope="module")
def hubs(tmp_path_factory: pytest.TempPathFactory) -> tuple[GraphStore, Topology]:
    """Lists of up to several thousand ids, in blocks of 1024."""
    indptr, indices = power_law_graph(2000, 60_000, exponent=1.4)
    assert np.diff(indptr).max() > 3 * 1024
    path = tmp_path_factory.mktemp("hubs") / "graph.h5"
    return store_of(path, 4096, indptr=indptr, indices=indices), Topology.in_memory(indptr, indices)


def test_reads_each_block_once_a_hop_and_keeps_it(hubs: tuple[GraphStore, Topology]) -> None:
    store, memory = hubs
    batches = [np.arange(start, 2000, 40) for start in range(10)]
    expected = NeighborSampler(memory, [4, 12], seed=3, purpose=Purpose.TRAIN).sample(batches, epoch=0, first_batch=0)
    with StoredTopology(store, np.arange(0), buffer_bytes=1 << 20) as topology:
        before = topology.stats.counts()
        sampler = HyperbatchSampler(topology, [4, 12], seed=3, purpose=Purpose.TRAIN)
        same(sampler.sample(batches, epoch=0, first_batch=0), expected)
        counts = topology.stats.counts().since(before)
        num_blocks = store.extent(INDICES).num_blocks
        assert counts.read_blocks <= num_blocks  # none twice: the second hop finds those of the first
        assert counts.hit_blocks + counts.read_blocks <= 2 * num_blocks


def test_a_split_list_touches_only_the_blocks_of_what_is_drawn(tmp_path: Path) -> None:
    indices = np.arange(100_000, dtype=np.int32) % 50
    indptr = np.concatenate([[0], np.full(50, 100_000)])
    store = store_of(tmp_path / "graph.h5", 4096, indptr=indptr, indices=indices)
    with StoredTopology(store, np.arange(0), buffer_bytes=1 << 20) as topology:
        before = topology.stats.counts()
        sampler = HyperbatchSampler(topology, [3], seed=0, purpose=Purpose.TRAIN)
        sampler.sample([np.array([0])], epoch=0, first_batch=0)
        assert topology.stats.counts().since(before).read_blocks <= 3


def test_damage_is_an_error(hubs: tuple[GraphStore, Topology], tmp_path: Path) -> None:
    content = bytearray(hubs[0].path.read_bytes())
    content[hubs[0].extent(INDICES).offset + 5000] ^= 1
    path = tmp_path / "graph.h5"
    path.write_bytes(content)
    batches = [np.arange(2000)]
    with (
        StoredTopology(GraphStore.open(path), np.arange(0), buffer_bytes=1 << 20) as topology,
        pytest.raises(ChecksumMismatchError, match=INDICES),
    ):
        HyperbatchSampler(topology, [-1], seed=0, purpose=Purpose.TRAIN).sample(batches, epoch=0, first_batch=0)


@pytest.mark.parametrize("value", [-1, 2000])
def test_ids_outside_the_graph_are_an_error(hubs: tuple[GraphStore, Topology], tmp_path: Path, value: int) -> None:
    content = bytearray(hubs[0].path.read_bytes())
    at = hubs[0].extent(INDICES).offset + 8000
    content[at : at + 4] = np.int32(value).tobytes()
    path = tmp_path / "graph.h5"
    path.write_bytes(content)
    store = recut_store(GraphStore.open(path), 4096)  # with the checksums of these bytes: crafted, not damaged
    with (
        StoredTopology(store, np.arange(0), buffer_bytes=1 << 20) as topology,
        pytest.raises(StorageError, match=f"holds {value} at position 2000"),
    ):
        HyperbatchSampler(topology, [-1], seed=0, purpose=Purpose.TRAIN).sample(
            [np.arange(2000)], epoch=0, first_batch=0
        )


def test_offsets_that_descend_are_an_error(tmp_path: Path) -> None:
    indptr = np.array([0, 3, 1, 3])
    store = store_of(
        tmp_path / "graph.h5", 16, indptr=indptr, indices=np.zeros(3, np.int32), out_degree=np.zeros(3, np.int64)
    )
    with (
        StoredTopology(store, np.arange(0), buffer_bytes=32, indptr_buffer_bytes=32) as topology,
        pytest.raises(StorageError, match="list of node 1 ends before its start"),
    ):
        topology.lists(np.arange(3))
