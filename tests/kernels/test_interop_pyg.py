"""Samples in PyG's two conventions: the sample's edges and no others, each node's neighbors once, trimming for free."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.interop_pyg import PygBatch, to_pyg, to_pyg_layers
from kernels.mfg import Sample
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.topology import Topology
from tests.graphs import csc_from_edges, power_law_graph, topologies

NUM_NODES = 400
TOPOLOGY = Topology.in_memory(*power_law_graph(NUM_NODES, 3000))
FANOUTS = st.lists(st.sampled_from([1, 2, 3, -1]), max_size=3)


def sampled(topology: Topology, seeds: object, fanouts: list[int], *, seed: int = 0) -> Sample:
    sampler = NeighborSampler(topology, fanouts, seed=seed, purpose=Purpose.TRAIN)
    return sampler.sample([np.asarray(seeds, np.int64)], epoch=0, first_batch=0).samples[0]


@dataclass(frozen=True)
class Drawn:
    """What to sample; the sampling itself is the test's, since compiled code may have to be loaded for it."""

    topology: Topology
    seeds: list[int]
    fanouts: list[int]
    seed: int

    def sample(self) -> Sample:
        return sampled(self.topology, self.seeds, self.fanouts, seed=self.seed)


@st.composite
def drawn_samples(draw: st.DrawFn) -> Drawn:
    topology = draw(topologies())
    seeds = draw(st.lists(st.integers(0, topology.num_nodes - 1), max_size=12))
    return Drawn(topology, seeds, draw(FANOUTS), draw(st.integers(0, 2**64 - 1)))


def hops_of(batch: PygBatch) -> list[tuple[np.ndarray, np.ndarray]]:
    """Source and destination rows, hop by hop."""
    bounds = [0, *accumulate(batch.num_sampled_edges)]
    edges = batch.edge_index.numpy()
    return [(edges[0, a:b], edges[1, a:b]) for a, b in pairwise(bounds)]


def mean_layers(batch: PygBatch, x: Tensor, *, trim: bool) -> Tensor:
    """As many layers `h + mean of the neighbors' h` as there are hops; with `trim`, as PyG's `trim_to_layer` does."""
    num_hops, edge_index = len(batch.num_sampled_edges), batch.edge_index
    for layer in range(num_hops):
        if trim and layer:
            x = x[: len(x) - batch.num_sampled_nodes[num_hops + 1 - layer]]
            edge_index = edge_index[:, : edge_index.shape[1] - batch.num_sampled_edges[num_hops - layer]]
        src, dst = edge_index
        degree = torch.bincount(dst, minlength=len(x)).clamp(min=1)
        x = x + torch.zeros_like(x).index_add(0, dst, x[src]) / degree[:, None]
    return x[: batch.batch_size]


@settings(deadline=None)
@given(drawn_samples())
def test_layers_are_the_hops(drawn: Drawn) -> None:
    sample = drawn.sample()
    layers = to_pyg_layers(sample)
    assert len(layers) == len(sample.hops)
    for layer, mfg in zip(layers, reversed(sample.hops), strict=True):
        assert layer.size == (mfg.num_src, mfg.num_dst)
        assert layer.edge_index.dtype == torch.int64
        assert layer.edge_index[0].tolist() == mfg.indices.tolist()
        assert layer.edge_index[1].tolist() == np.repeat(np.arange(mfg.num_dst), np.diff(mfg.indptr)).tolist()


@settings(deadline=None)
@given(drawn_samples())
def test_batch_is_one_that_neighbor_loader_could_draw(drawn: Drawn) -> None:
    """Each node is expanded in the hop after it was found, by its fanout, with edges that the graph has."""
    topology, sample = drawn.topology, drawn.sample()
    batch = to_pyg(sample)
    ids = batch.n_id.numpy()
    assert np.array_equal(ids, sample.input_nodes[batch.input_rows.numpy()])
    assert len(set(ids.tolist())) == len(ids) == sum(batch.num_sampled_nodes)
    assert batch.batch_size == sample.num_seed_rows == batch.num_sampled_nodes[0]
    assert np.array_equal(ids[: batch.batch_size], sample.seed_nodes)
    assert sum(batch.num_sampled_edges) == batch.edge_index.shape[1]
    begin = [0, *accumulate(batch.num_sampled_nodes)]
    for hop, ((src, dst), fanout) in enumerate(zip(hops_of(batch), reversed(drawn.fanouts), strict=True)):
        assert np.all((dst >= begin[hop]) & (dst < begin[hop + 1]))
        assert set(range(begin[hop + 1], begin[hop + 2])) <= set(src.tolist())
        assert np.all(src < begin[hop + 2])
        for row in range(begin[hop], begin[hop + 1]):
            neighbors = topology.indices[topology.indptr[ids[row]] : topology.indptr[ids[row] + 1]]
            drawn_ids = np.sort(ids[src[dst == row]])
            assert len(drawn_ids) == (len(neighbors) if fanout == -1 else min(fanout, len(neighbors)))
            counts = dict(zip(*np.unique(neighbors, return_counts=True), strict=True))
            assert all(np.count_nonzero(drawn_ids == v) <= counts.get(v, 0) for v in drawn_ids)


@settings(deadline=None)
@given(drawn_samples())
def test_trimming_changes_nothing(drawn: Drawn) -> None:
    batch = to_pyg(drawn.sample())
    x = torch.sin(batch.n_id.double()[:, None] * torch.arange(1, 4))
    assert torch.allclose(mean_layers(batch, x, trim=True), mean_layers(batch, x, trim=False), atol=1e-12)


@pytest.mark.parametrize("fanouts", [[-1], [-1, -1], [4], [-1, -1, -1]])
def test_both_conventions_compute_the_same_where_draws_cannot_differ(fanouts: list[int]) -> None:
    sample = sampled(TOPOLOGY, np.arange(0, NUM_NODES, 9), fanouts)
    batch, x = to_pyg(sample), torch.randn(len(sample.input_nodes), 3, dtype=torch.float64)
    h = x
    for layer in to_pyg_layers(sample):
        src, dst = layer.edge_index
        degree = torch.bincount(dst, minlength=layer.size[1]).clamp(min=1)
        own = h[: layer.size[1]]
        h = own + torch.zeros_like(own).index_add(0, dst, h[src]) / degree[:, None]
    assert torch.allclose(mean_layers(batch, x[batch.input_rows], trim=False), h, atol=1e-12)


def test_what_only_later_draws_reached_is_left_out() -> None:
    """Node 0 has many neighbors: its second draw, as a destination of the outer hop, is not part of the batch."""
    topology = Topology.in_memory(*csc_from_edges(50, np.arange(1, 50), np.zeros(49, np.int64)))
    sample = sampled(topology, [0], [5, 5])
    batch = to_pyg(sample)
    assert len(sample.input_nodes) > 6
    assert batch.num_sampled_nodes == [1, 5, 0]
    assert batch.num_sampled_edges == [5, 0]


@pytest.mark.parametrize("seeds", [[], [7, 7, 7], [3, 5, 3]])
def test_empty_batches_and_duplicate_seeds(seeds: list[int]) -> None:
    sample = sampled(TOPOLOGY, seeds, [2, 2])
    batch = to_pyg(sample)
    assert batch.batch_size == len(set(seeds))
    assert batch.n_id[: batch.batch_size][torch.from_numpy(sample.seed_inverse)].tolist() == seeds
    assert batch.edge_index.shape == (2, sum(batch.num_sampled_edges))
