"""What mini-batches reach, without their samples, is what their samples hold."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.bits import mark_bits, no_bits, take_ids
from kernels.mfg import IdArray
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.topology import Topology
from storage.blocks.hyperbatch import FRONTIER_BYTES, HyperbatchSampler
from storage.blocks.reached import drawn_in_pieces, ids_in_pieces, visit_reached
from storage.blocks.stored_topology import StoredTopology
from storage.graph_store import INDICES
from tests.graphs import graphs, power_law_graph, seed_batches
from tests.storage.blocks.recut import store_of

FANOUTS = st.lists(st.sampled_from([-1, 1, 2, 3, 5, 70]), max_size=3)
Counts = npt.NDArray[np.int64]


def reached(sampler: HyperbatchSampler, batches: Sequence[IdArray], work_bytes: int) -> Counts:
    """(hops + 1, N): mini-batches that reach each node within so many hops."""
    counts = np.zeros((len(sampler.fanouts) + 1, sampler.topology.num_nodes), np.int64)

    def visit(hops: int, nodes: IdArray) -> None:
        np.add.at(counts[hops], nodes, 1)

    visit_reached(sampler, batches, visit, epoch=2, first_batch=5, work_bytes=work_bytes)
    return counts


def counted(sampler: NeighborSampler, batches: Sequence[IdArray], num_nodes: int) -> Counts:
    """The same, of samples."""
    counts = np.zeros((len(sampler.fanouts) + 1, num_nodes), np.int64)
    for sample in sampler.sample(batches, epoch=2, first_batch=5).samples:
        for hops, hop in enumerate(sample.hops):
            counts[hops, sample.input_nodes[: hop.num_dst]] += 1
        counts[-1, sample.input_nodes] += 1
    return counts


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_equals_the_samples(data: st.DataObject) -> None:
    """Any block size, buffer, work space and number of threads; lists span blocks of two or four ids."""
    indptr, indices = data.draw(graphs())
    num_nodes, fanouts, batches = len(indptr) - 1, data.draw(FANOUTS), data.draw(seed_batches(len(indptr) - 1))
    options: dict[str, Any] = {"seed": data.draw(st.integers(0, 2**64 - 1)), "purpose": Purpose.PROFILE}
    options["replace"] = data.draw(st.booleans())
    expected = counted(NeighborSampler(Topology.in_memory(indptr, indices), fanouts, **options), batches, num_nodes)
    block_bytes = data.draw(st.sampled_from([8, 16, 64, 4096]))
    indptr_blocks = data.draw(st.none() | st.integers(2, 9))
    with tempfile.TemporaryDirectory() as folder:
        store = store_of(Path(folder) / "graph.h5", block_bytes, indptr=indptr, indices=indices)
        with StoredTopology(
            store,
            np.empty(0, np.int64),
            buffer_bytes=block_bytes * data.draw(st.integers(2, 9)),
            indptr_buffer_bytes=None if indptr_blocks is None else indptr_blocks * block_bytes,
            threads=data.draw(st.integers(1, 3)),
        ) as topology:
            found = reached(HyperbatchSampler(topology, fanouts, **options), batches, data.draw(st.integers(0, 5000)))
    np.testing.assert_array_equal(found, expected)


def test_each_block_is_read_once_a_hop(tmp_path: Path) -> None:
    indptr, indices = power_law_graph(20_000, 200_000, seed=3)
    store = store_of(tmp_path / "graph.h5", 4096, indptr=indptr, indices=indices)
    batches, windows = [np.arange(start, 20_000, 400) for start in range(40)], 10
    with StoredTopology(store, np.empty(0, np.int64), buffer_bytes=2 * 4096) as topology:
        sampler, before = HyperbatchSampler(topology, (3, 3), seed=0, purpose=Purpose.PROFILE), topology.stats.counts()
        expanded = reached(sampler, batches, 1 << 30)[:2].sum()
        at_once = topology.stats.counts().since(before).read_blocks
        reached(sampler, batches, 2 * FRONTIER_BYTES * int(expanded) // windows)
        in_windows = topology.stats.counts().since(before).read_blocks - at_once
    assert at_once <= 2 * store.extent(INDICES).num_blocks
    assert 0 < in_windows - at_once <= 2 * 2 * windows  # blocks at the ends of windows are met twice


@pytest.mark.parametrize("fanout", [-1, 7])
def test_no_more_is_drawn_at_once_than_said(tmp_path: Path, fanout: int) -> None:
    """A hub's list, of which all is taken, comes in parts; parts of several mini-batches are told apart."""
    indptr = np.array([0, 3, 10_003, 10_003, 10_010])
    indices = np.random.default_rng(0).integers(0, 4, 10_010).astype(np.int32)
    store, most = store_of(tmp_path / "graph.h5", 4096, indptr=indptr, indices=indices), 1000
    uniq, ptr = np.array([1, 3, 0, 1, 2]), np.array([0, 2, 2, 5])
    keys = np.arange(3, dtype=np.uint64)
    found: list[list[int]] = [[], [], []]
    with StoredTopology(store, np.empty(0, np.int64), buffer_bytes=2 * 4096) as topology:
        row_ptr, neighbors, _, _ = topology.sample_neighbors(uniq, ptr, fanout, stream_keys=keys)
        options: dict[str, Any] = {"stream_keys": keys, "replace": False, "most_edges": most if fanout < 0 else 10}
        for edge_ptr, piece in drawn_in_pieces(topology, uniq, ptr, fanout, **options):
            assert edge_ptr[-1] == len(piece) <= options["most_edges"]
            for h in range(3):
                found[h] += piece[edge_ptr[h] : edge_ptr[h + 1]].tolist()
    assert found == [neighbors[row_ptr[ptr[h]] : row_ptr[ptr[h + 1]]].tolist() for h in range(3)]


def test_a_mini_batch_takes_a_bit_a_node_and_the_ids_it_expands(tmp_path: Path) -> None:
    num_nodes, work = 1_000_000, 1 << 18
    indptr = np.arange(0, 20 * num_nodes + 1, 20)
    indices = np.random.default_rng(0).integers(0, num_nodes, 20 * num_nodes).astype(np.int32)
    store = store_of(tmp_path / "graph.h5", 4096, indptr=indptr, indices=indices)
    batches = [np.arange(start, num_nodes, 10_000) for start in range(16)]
    with StoredTopology(store, np.empty(0, np.int64), buffer_bytes=2 * 4096, indptr_buffer_bytes=2 * 4096) as topology:
        sampler = HyperbatchSampler(topology, (10, 10), seed=0, purpose=Purpose.PROFILE)
        visit_reached(sampler, batches[:1], lambda *_: None, epoch=0, first_batch=0, work_bytes=work)  # compiled
        tracemalloc.start()
        visit_reached(sampler, batches, lambda *_: None, epoch=0, first_batch=0, work_bytes=work)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    block_table = 3 * 8 * store.extent(INDICES).num_blocks
    assert (
        num_nodes // 8 * 16 < peak <= 16 * (num_nodes // 8 + 4 * 1100 + FRONTIER_BYTES) + work + block_table + (1 << 18)
    )


@settings(deadline=None)
@given(st.lists(st.integers(0, 400), unique=True), st.integers(1, 40))
def test_bits_give_back_what_was_marked(ids: list[int], room: int) -> None:
    bits, out, start, found = no_bits(1, 401)[0], np.empty(room, np.int32), 0, []
    mark_bits(bits, np.array(ids, np.int64))
    while True:
        count, start = take_ids(bits, start, out)
        if not count:
            break
        found += out[:count].tolist()
    assert found == sorted(ids)
    assert [v for piece in ids_in_pieces(bits) for v in piece.tolist()] == sorted(ids)
