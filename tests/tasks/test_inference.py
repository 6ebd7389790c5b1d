"""Exact inference against one forward pass over the whole graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.mfg import IdArray, Mfg
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import ModelSpec, build_model
from kernels.rank_map import RankMap
from kernels.topology import Topology
from storage.cache.tiers import FeatureTiers
from tasks.inference import ExactInference
from tests.graphs import power_law_graph, topologies

SPEC = ModelSpec("gcn", in_dim=6, hidden=5, num_classes=3, num_layers=2)


def degrees_of(topology: Topology) -> NodeDegrees:
    return NodeDegrees(topology.in_degree(), np.bincount(topology.indices, minlength=topology.num_nodes))


def rows_of(num_nodes: int, width: int, dtype: str = "float32") -> np.ndarray:
    return (np.random.default_rng(1).random((num_nodes, width)) * 4).astype(dtype)


def one_shot(spec: ModelSpec, topology: Topology, rows: np.ndarray, nodes: IdArray) -> torch.Tensor:
    """Every layer over the whole graph as one hop onto itself."""
    whole = Mfg(topology.indptr, topology.indices.astype(np.int32), topology.num_nodes)
    hops = [whole] * spec.num_layers if spec.needs_graph else []
    with torch.no_grad():
        logits = build_model(spec, seed=0)(hops, torch.from_numpy(rows), degrees_of(topology))
    return logits[torch.from_numpy(np.asarray(nodes, np.int64))]


@settings(deadline=None)
@given(
    topologies(),
    st.sampled_from(["sage", "gcn", "gat", "mlp"]),
    st.sampled_from([(6, 5), (3, 5), (5, 5)]),
    st.integers(1, 3),
    st.sampled_from([1, 300, 1500, 1 << 20]),
    st.sampled_from(["float32", "float16", "uint8"]),
    st.data(),
)
def test_equals_one_shot_forward(
    topology: Topology,
    kind: str,
    widths: tuple[int, int],
    num_layers: int,
    chunk_bytes: int,
    dtype: str,
    data: st.DataObject,
) -> None:
    in_dim, hidden = widths
    spec = ModelSpec(kind, in_dim, hidden, 3, num_layers, heads=5 if kind == "gat" else None)  # type: ignore[arg-type]
    nodes = np.array(data.draw(st.lists(st.integers(0, topology.num_nodes - 1), max_size=30)), np.int64)
    rows = rows_of(topology.num_nodes, in_dim, dtype)
    features = FeatureTiers(rows, np.arange(0, topology.num_nodes, 2))
    inference = ExactInference(topology, nodes, spec, degrees=degrees_of(topology), chunk_bytes=chunk_bytes)
    predicted = inference.run(build_model(spec, seed=0), features)
    torch.testing.assert_close(predicted.logits, one_shot(spec, topology, rows, nodes), rtol=1e-5, atol=1e-5)


TOPOLOGY = Topology.in_memory(*power_law_graph(2000, 20_000))


def reach(nodes: set[int]) -> set[int]:
    """The nodes and all their in-neighbors."""
    indptr, indices = TOPOLOGY.indptr, TOPOLOGY.indices
    return nodes | {int(u) for v in nodes for u in indices[indptr[v] : indptr[v + 1]]}


class Spy(FeatureTiers):
    """Remembers the largest gather and all ids."""

    most_rows = 0
    ids: frozenset[int] = frozenset()

    def gather(self, ids: IdArray) -> np.ndarray:
        self.most_rows = max(self.most_rows, len(ids))
        self.ids |= frozenset(ids.tolist())
        return super().gather(ids)


@pytest.mark.parametrize("kind", ["sage", "gcn", "mlp"])
@pytest.mark.parametrize("in_dim", [6, 3])
def test_chunks_keep_to_the_budget(kind: str, in_dim: int) -> None:
    spec = replace(SPEC, kind=kind, in_dim=in_dim)  # type: ignore[arg-type]
    features = Spy(rows_of(2000, in_dim), np.arange(0))
    # The largest neighborhood must fit by itself: one destination is the least.
    chunk_bytes = int(TOPOLOGY.in_degree().max() + 2) * (8 * in_dim + 12)
    inference = ExactInference(TOPOLOGY, np.arange(300), spec, degrees=degrees_of(TOPOLOGY), chunk_bytes=chunk_bytes)
    inference.run(build_model(spec, seed=0), features)
    assert 0 < features.most_rows * 8 * in_dim <= chunk_bytes


def test_reads_only_what_is_needed() -> None:
    spec = replace(SPEC, num_layers=1)
    features = Spy(rows_of(2000, 6), np.arange(0))
    nodes = np.array([3, 77])
    ExactInference(TOPOLOGY, nodes, spec, degrees=degrees_of(TOPOLOGY)).run(build_model(spec, seed=0), features)
    assert features.ids == reach(set(nodes.tolist()))


def test_transforming_layers_read_each_row_once_whatever_the_chunks() -> None:
    features = FeatureTiers(rows_of(2000, 6), np.arange(0))
    spec = replace(SPEC, hidden=2)
    inference = ExactInference(TOPOLOGY, np.arange(300), spec, degrees=degrees_of(TOPOLOGY), chunk_bytes=4000)
    predicted = inference.run(build_model(spec, seed=0), features)
    assert predicted.feature_reads.host_rows <= 2000


def test_counts_what_it_read() -> None:
    features = FeatureTiers(rows_of(2000, 6), np.arange(100))
    inference = ExactInference(TOPOLOGY, np.arange(50), SPEC, degrees=degrees_of(TOPOLOGY))
    model = build_model(SPEC, seed=0)
    first, second = inference.run(model, features), inference.run(model, features)
    assert first.feature_reads == second.feature_reads
    needed = reach(reach(set(range(50))))
    assert first.feature_reads.device_rows == len(needed & set(range(100)))
    assert first.feature_reads.host_rows == len(needed - set(range(100)))
    assert first.adjacency_reads.host_rows == 50 + len(reach(set(range(50))))
    assert torch.equal(first.logits, second.logits)


def test_a_model_of_another_shape_is_refused() -> None:
    inference = ExactInference(TOPOLOGY, np.arange(50), SPEC, degrees=degrees_of(TOPOLOGY))
    deeper = build_model(replace(SPEC, num_layers=3), seed=0)
    with pytest.raises(ValueError, match=r"this inference is for ModelSpec\(.*num_layers=2"):
        inference.run(deeper, FeatureTiers(rows_of(2000, 6), np.arange(100)))


def test_a_row_that_was_not_computed_is_no_other_nodes_row() -> None:
    inference = ExactInference(TOPOLOGY, np.array([3]), SPEC, degrees=degrees_of(TOPOLOGY))
    inference._needed[0] = inference._needed[0][:-1]  # as a mistake in finding them would
    inference._slots[0] = RankMap.from_sorted_ids(inference._needed[0], TOPOLOGY.num_nodes)
    with pytest.raises(ValueError, match=r"node \d+ is not among those whose rows layer 0 needs"):
        inference.run(build_model(SPEC, seed=0), FeatureTiers(rows_of(2000, 6), np.arange(100)))


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match=r"in \[0, 2000\) \(got 5\.\.2000\)"):
        ExactInference(TOPOLOGY, np.array([2000, 5]), SPEC)
    with pytest.raises(ValueError, match="chunk_bytes must be >= 1"):
        ExactInference(TOPOLOGY, np.arange(3), SPEC, chunk_bytes=0)
