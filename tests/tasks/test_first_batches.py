"""The sizes of the first mini-batches are those of the sampler, found in little memory; memory is planned by them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.mfg import IdArray
from kernels.nn.model import GnnModel, ModelSpec, build_model
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.topology import Topology
from storage.blocks.hyperbatch import HyperbatchSampler
from storage.blocks.stored_topology import StoredTopology
from storage.graph_store import GraphStore, write_store
from tasks import first_batches, step_costs
from tasks.batch_sizes import BatchSizes, sizes_of
from tasks.first_batches import FirstBatches, measure_first
from tasks.step_costs import HopShape, step_bytes
from tests.graphs import graphs, power_law_graph
from tests.storage.blocks.recut import store_of

NONE = np.empty(0, np.int64)
DRAWN: dict[str, Any] = {"seed": 3, "purpose": Purpose.TRAIN}


def measured(
    store: GraphStore,
    seeds: Sequence[IdArray],
    fanouts: tuple[int, ...],
    *,
    replace: bool = False,
    spec: ModelSpec | None = None,
    cached: npt.NDArray[np.int64] = NONE,
    all_seeds: npt.NDArray[np.int64] = NONE,
) -> FirstBatches:
    def sampler(topology: StoredTopology) -> HyperbatchSampler:
        return HyperbatchSampler(topology, fanouts, replace=replace, **DRAWN)

    return measure_first(store, seeds, cached, sampler, threads=2, spec=spec, all_seeds=all_seeds)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    graph=graphs(),
    fanouts=st.lists(st.sampled_from([-1, 1, 2, 5]), max_size=3),
    piece=st.integers(1, 6),
    replace=st.booleans(),
    drawn=st.data(),
)
def test_sizes_are_those_of_the_sampler(
    tmp_path: Path, graph: tuple[Any, Any], fanouts: list[int], piece: int, *, replace: bool, drawn: st.DataObject
) -> None:
    indptr, indices = graph[0], graph[1].astype(np.int32)
    node = st.integers(0, len(indptr) - 2)
    seeds = [np.array(drawn.draw(st.lists(node, max_size=8)), np.int64) for _ in range(drawn.draw(st.integers(1, 2)))]
    topology = Topology.in_memory(indptr, indices)
    sampler = NeighborSampler(topology, fanouts, replace=replace, **DRAWN)
    samples = sampler.sample(seeds, epoch=0, first_batch=0).samples
    spec = ModelSpec("gat", 3, 8, 2, max(1, len(fanouts)))
    path = tmp_path / "graph.h5"
    path.unlink(missing_ok=True)
    store = store_of(path, 64, indptr=indptr, indices=indices, features=np.zeros((len(indptr) - 1, 1), np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first_batches, "_PIECE_NODES", piece)
        patch.setattr(first_batches, "_PIECE_EDGES", piece)
        found = measured(store, seeds, tuple(fanouts), replace=replace, spec=spec)
    assert found.sizes == BatchSizes.largest([sizes_of(sample, spec) for sample in samples])
    inputs = [set(sample.input_nodes.tolist()) for sample in samples]
    assert found.shared_nodes == (len(inputs[0] & inputs[1]) if len(inputs) > 1 else 0)
    for sample in samples:
        assert sizes_of(sample).sample_bytes == sample.nbytes


@pytest.mark.parametrize("fanouts", [(-1, -1), (3, -1), (-1,)])
def test_the_seeds_with_the_longest_lists_are_measured_where_all_neighbors_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fanouts: tuple[int, ...]
) -> None:
    indptr, indices = power_law_graph(2000, 30_000)
    write_store(tmp_path / "graph.h5", indptr=indptr, indices=indices, block_bytes=4096)
    monkeypatch.setattr(first_batches, "_PIECE_NODES", 64)
    store, degree = GraphStore.open(tmp_path / "graph.h5"), np.diff(indptr)
    by_length = np.argsort(-degree, kind="stable")
    all_seeds = np.random.default_rng(0).permutation(by_length[5:])  # those before are no seeds
    first, second = np.sort(by_length[-20:-10]), np.sort(by_length[-10:])
    without = measured(store, [first, second], fanouts)
    found = measured(store, [first, second], fanouts, all_seeds=all_seeds)
    longest = np.append(first[:-2], by_length[5:7])
    assert found.sizes == measured(store, [first, second, longest], fanouts).sizes
    assert found.sizes.edges > 1.15 * without.sizes.edges
    assert found.shared_nodes == without.shared_nodes
    assert measured(store, [first[:1]], fanouts, all_seeds=all_seeds).shared_nodes == 0
    drawn = (*fanouts[:-1], 3)
    assert measured(store, [first], drawn, all_seeds=all_seeds) == measured(store, [first], drawn)


def hub_graph(path: Path, num_nodes: int, num_edges: int) -> GraphStore:
    """One node that names every other many times, and everybody names it."""
    indptr = np.full(num_nodes + 1, num_edges, np.int64)
    indptr[0], indptr[1:] = 0, num_edges - num_nodes + np.arange(1, num_nodes + 1)
    indices = np.arange(num_edges, dtype=np.int32) % num_nodes
    indices[indptr[1] :] = 0
    write_store(path, indptr=indptr, indices=indices, block_bytes=1 << 16)
    return GraphStore.open(path)


@pytest.mark.parametrize("fanouts", [(-1, -1), (-1, 5), (4_000_000, 4_000_000)])
def test_a_mini_batch_that_is_the_whole_graph_takes_a_bit_a_node(tmp_path: Path, fanouts: tuple[int, ...]) -> None:
    num_nodes, num_edges = 200_000, 3_000_000
    store = hub_graph(tmp_path / "graph.h5", num_nodes, num_edges)
    seeds = [np.array([1, 2]), np.array([0])]
    measured(store, [np.array([5])], (2, -1))  # compiled
    tracemalloc.start()
    found = measured(store, seeds, fanouts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.sizes.nodes == num_nodes
    assert found.shared_nodes == num_nodes
    assert found.sizes.edges > num_edges - num_nodes
    assert peak < 4 * num_nodes / 8 + (8 << 20)


def test_lists_to_be_cached_are_measured_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    indptr, indices = power_law_graph(500, 4000)
    write_store(tmp_path / "graph.h5", indptr=indptr, indices=indices, block_bytes=4096)
    monkeypatch.setattr(first_batches, "_PIECE_NODES", 7)
    cached = np.arange(0, 500, 3)
    store = GraphStore.open(tmp_path / "graph.h5")
    found = measured(store, [np.array([1])], (2,), cached=cached)
    with StoredTopology(store, cached, buffer_bytes=1 << 16) as topology:
        assert found.list_bytes == topology.cache_bytes


def test_a_model_is_built_once_for_all_mini_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    built = list[ModelSpec]()

    def building(spec: ModelSpec, **options: Any) -> GnnModel:
        built.append(spec)
        return build_model(spec, **options)

    monkeypatch.setattr(step_costs, "build_model", building)
    spec, shapes = ModelSpec("sage", 17, 19, 23, 2), [HopShape(2, 5, 6), HopShape(5, 9, 10)]
    sizes = {step_bytes(spec, shapes, 9) for _ in range(5)}
    assert built == [spec]
    assert len(sizes) == 1
