"""DGL as the oracle of our layers, and our sampler in DGL's `DataLoader`; skipped where DGL is not installed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

interop = pytest.importorskip("kernels.interop_dgl", exc_type=ImportError)
dgl = pytest.importorskip("dgl")

from kernels.mfg import Mfg, Sample  # noqa: E402
from kernels.nn.gcn import GcnLayer, expansion, inverse_sqrt  # noqa: E402
from kernels.nn.layers import NodeDegrees  # noqa: E402
from kernels.nn.sage import SageLayer  # noqa: E402
from kernels.rng import Purpose  # noqa: E402
from kernels.sampler import NeighborSampler  # noqa: E402
from kernels.topology import Topology  # noqa: E402
from tests.graphs import csc_from_edges, power_law_graph  # noqa: E402
from tests.kernels.nn.mfgs import mfgs, random_mfg, whole_graph  # noqa: E402

# Every pass over DGL's loader on a CPU warns that the process is not bound to cores.
pytestmark = pytest.mark.filterwarnings("ignore:Dataloader CPU affinity opt is not enabled")

NUM_NODES = 300
TOPOLOGY = Topology.in_memory(*power_law_graph(NUM_NODES, 2500))
SAMPLER = NeighborSampler(TOPOLOGY, [3, 4], seed=5, purpose=Purpose.TRAIN)
FANOUTS = [3, 4]
WIDTHS = [(6, 3), (3, 6), (4, 4)]

Batches = list[tuple[Tensor, Tensor, list[Any]]]


def dgl_graph() -> Any:
    """A DGL graph of the topology with a feature and a label a node."""
    dst = np.repeat(np.arange(NUM_NODES), np.diff(TOPOLOGY.indptr))
    graph = dgl.graph((torch.from_numpy(TOPOLOGY.indices.astype(np.int64)), torch.from_numpy(dst)), num_nodes=NUM_NODES)
    graph.ndata["feat"] = torch.arange(NUM_NODES).float()[:, None] * torch.tensor([1.0, -1.0])
    graph.ndata["label"] = torch.arange(NUM_NODES) % 7
    return graph


def sample_of(seeds: object, fanouts: list[int]) -> Sample:
    sampler = NeighborSampler(TOPOLOGY, fanouts, seed=5, purpose=Purpose.TRAIN)
    return sampler.sample([np.asarray(seeds, np.int64)], epoch=0, first_batch=0).samples[0]


def loaded(sampler: Any, indices: Tensor, **options: Any) -> Batches:
    options = {"batch_size": 32, "shuffle": False, **options}
    return list(dgl.dataloading.DataLoader(dgl_graph(), indices, sampler, **options))


def is_equal(left: Batches, right: Batches) -> bool:
    return len(left) == len(right) and all(
        torch.equal(a[0], b[0])
        and torch.equal(a[1], b[1])
        and all(
            torch.equal(x, y)
            for block_a, block_b in zip(a[2], b[2], strict=True)
            for x, y in zip(block_a.edges(), block_b.edges(), strict=True)
        )
        for a, b in zip(left, right, strict=True)
    )


def outputs_and_gradients(layer: torch.nn.Module, run: Any, h: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """Output of a layer, and the gradients of a weighted sum of it."""
    h = h.clone().requires_grad_()
    out = run(h)
    (out * torch.arange(1, out.numel() + 1).view(out.shape).cos()).sum().backward()
    return [out.detach(), h.grad, *(p.grad for p in parameters)]


class TestBlocks:
    @settings(deadline=None)
    @given(mfgs())
    def test_block_has_the_edges_in_order(self, mfg: Mfg) -> None:
        block = interop.to_dgl_block(mfg)
        assert block.is_block
        assert (block.num_src_nodes(), block.num_dst_nodes(), block.num_edges()) == (
            mfg.num_src,
            mfg.num_dst,
            mfg.num_edges,
        )
        src, dst = block.edges(order="eid")
        assert src.tolist() == mfg.indices.tolist()
        assert dst.tolist() == np.repeat(np.arange(mfg.num_dst), np.diff(mfg.indptr)).tolist()

    @pytest.mark.parametrize("seeds", [[], [4], [9, 9, 2], list(range(50))])
    def test_blocks_of_a_sample(self, seeds: list[int]) -> None:
        sample = sample_of(seeds, FANOUTS)
        blocks = interop.to_dgl_blocks(sample)
        assert blocks[0].srcdata[dgl.NID].tolist() == sample.input_nodes.tolist()
        assert blocks[-1].dstdata[dgl.NID][torch.from_numpy(sample.seed_inverse)].tolist() == seeds
        assert torch.equal(blocks[0].dstdata[dgl.NID], blocks[1].srcdata[dgl.NID])
        for block, mfg in zip(blocks, reversed(sample.hops), strict=True):
            assert (block.num_src_nodes(), block.num_edges()) == (mfg.num_src, mfg.num_edges)

    def test_topology_of_a_dgl_graph(self) -> None:
        topology = interop.topology_from_dgl(dgl_graph())
        assert np.array_equal(topology.indptr, TOPOLOGY.indptr)
        assert np.array_equal(topology.indices, TOPOLOGY.indices)

    def test_topology_needs_one_kind_of_edge(self) -> None:
        graph = dgl.heterograph({("a", "to", "b"): ([0], [1])})
        with pytest.raises(ValueError, match=r"heterogeneous.*to_homogeneous"):
            interop.topology_from_dgl(graph)


class TestLayers:
    """DGL's layers on our blocks are the oracle of ours."""

    @pytest.mark.parametrize(("in_dim", "out_dim"), WIDTHS)
    @settings(deadline=None, max_examples=25)
    @given(mfg=mfgs(), seed=st.integers(0, 2**31))
    def test_sage_equals_dgl(self, in_dim: int, out_dim: int, mfg: Mfg, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        ours = SageLayer(in_dim, out_dim, generator=generator)
        h = torch.randn(mfg.num_src, in_dim, generator=generator)
        theirs, block = sage_conv(ours), interop.to_dgl_block(mfg)
        want = outputs_and_gradients(
            theirs,
            lambda h: theirs(block, h),
            h,
            [theirs.fc_self.weight, theirs.fc_neigh.weight, theirs.fc_self.bias],
        )
        got = outputs_and_gradients(
            ours, lambda h: ours(mfg, h), h, [ours.weight_self, ours.weight_neighbor, ours.bias]
        )
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(("in_dim", "out_dim"), WIDTHS)
    def test_gcn_equals_dgl_on_the_whole_graph(self, in_dim: int, out_dim: int) -> None:
        """One block of all nodes and edges, self connections as edges: its degrees are the whole graph's."""
        mfg, degrees, _ = whole_graph(60, 5)
        compare_gcn(with_self_edges(mfg), mfg, degrees, in_dim, out_dim)

    @pytest.mark.parametrize(("in_dim", "out_dim"), WIDTHS)
    def test_gcn_equals_dgl_on_any_block_by_the_degrees_in_it(self, in_dim: int, out_dim: int) -> None:
        """`GraphConv` knows a block's own degrees only; given those, our layer computes the same."""
        mfg = random_mfg(40, 90, 6)
        compare_gcn(with_self_edges(mfg), mfg, degrees_within(mfg), in_dim, out_dim)

    @pytest.mark.parametrize("fanout", [4, -1])
    def test_sampled_gcn_equals_dgl_given_our_edge_weights(self, fanout: int) -> None:
        """By whole-graph degrees it is DGL's convolution without a norm of its own over weighted edges."""
        degrees = NodeDegrees(TOPOLOGY.in_degree(), np.bincount(TOPOLOGY.indices, minlength=NUM_NODES))
        sample = sample_of(np.arange(0, NUM_NODES, 3), [fanout])
        mfg, degrees_S = sample.hops[0], degrees.take(sample.input_nodes)
        block = with_self_edges(mfg)
        src, dst = (ends.numpy() for ends in block.edges())
        weight_E = inverse_sqrt(degrees_S.out_degree)[src] * inverse_sqrt(degrees_S.in_degree)[dst]
        weight_E[: mfg.num_edges] *= expansion(mfg, degrees_S.in_degree[: mfg.num_dst])[dst[: mfg.num_edges]]
        compare_gcn(block, mfg, degrees_S, 4, 4, edge_weight=torch.from_numpy(weight_E).float())

    def test_gcn_differs_from_dgl_by_the_degrees_of_the_whole_graph(self) -> None:
        mfg = random_mfg(40, 90, 6)
        within = degrees_within(mfg)
        with pytest.raises(AssertionError):
            compare_gcn(with_self_edges(mfg), mfg, NodeDegrees(within.in_degree, within.out_degree + 3), 4, 4)


def sage_conv(ours: SageLayer) -> Any:
    theirs = dgl.nn.SAGEConv(ours.in_dim, ours.out_dim, "mean")
    with torch.no_grad():
        theirs.fc_self.weight.copy_(ours.weight_self)
        theirs.fc_self.bias.copy_(ours.bias)
        theirs.fc_neigh.weight.copy_(ours.weight_neighbor)
    return theirs


def with_self_edges(mfg: Mfg) -> Any:
    """The block with an edge from each destination to itself."""
    src, dst = interop.to_dgl_block(mfg).edges()
    own = torch.arange(mfg.num_dst)
    edges = torch.cat([src, own]), torch.cat([dst, own])
    return dgl.create_block(edges, num_src_nodes=mfg.num_src, num_dst_nodes=mfg.num_dst)


def degrees_within(mfg: Mfg) -> NodeDegrees:
    """Degrees such that our `degree + 1` is the degree in the block with self edges (all sources must have an edge)."""
    out_degree = np.bincount(mfg.indices, minlength=mfg.num_src)
    out_degree[mfg.num_dst :] -= 1
    in_degree = np.zeros(mfg.num_src, np.int64)
    in_degree[: mfg.num_dst] = np.diff(mfg.indptr)
    return NodeDegrees(in_degree, np.maximum(out_degree, 0))


def compare_gcn(
    block: Any, mfg: Mfg, degrees: NodeDegrees, in_dim: int, out_dim: int, *, edge_weight: Tensor | None = None
) -> None:
    """Outputs and gradients of our layer and of `GraphConv`, which normalises by itself unless it gets edge weights."""
    generator = torch.Generator().manual_seed(1)
    ours = GcnLayer(in_dim, out_dim, generator=generator)
    h = torch.randn(mfg.num_src, in_dim, generator=generator)
    theirs = dgl.nn.GraphConv(in_dim, out_dim, norm="both" if edge_weight is None else "none")
    with torch.no_grad():
        theirs.weight.copy_(ours.weight.T)
        theirs.bias.copy_(ours.bias)
    want = outputs_and_gradients(
        theirs, lambda h: theirs(block, h, edge_weight=edge_weight), h, [theirs.weight, theirs.bias]
    )
    got = outputs_and_gradients(ours, lambda h: ours(mfg, h, degrees), h, [ours.weight, ours.bias])
    want[2] = want[2].T
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


class TestDataLoader:
    def test_batches_are_whole_and_true(self) -> None:
        sampler = interop.DglNeighborSampler(TOPOLOGY, FANOUTS, prefetch_node_feats=["feat"], prefetch_labels=["label"])
        indices = torch.arange(0, NUM_NODES, 2)
        batches = loaded(sampler, indices)
        assert torch.cat([output for _, output, _ in batches]).equal(indices)
        for inputs, outputs, blocks in batches:
            assert len(blocks) == 2
            assert blocks[0].srcdata[dgl.NID].equal(inputs)
            assert blocks[0].srcdata["feat"][:, 0].equal(inputs.float())
            assert blocks[-1].dstdata["label"].equal(outputs % 7)
            for block, fanout in zip(blocks, FANOUTS, strict=True):
                degree = np.diff(TOPOLOGY.indptr)[block.dstdata[dgl.NID].numpy()]
                assert block.in_degrees().tolist() == np.minimum(degree, fanout).tolist()

    def test_edges_are_edges_of_the_graph(self) -> None:
        graph = dgl_graph()
        for _, _, blocks in loaded(interop.DglNeighborSampler(TOPOLOGY, FANOUTS), torch.arange(100)):
            for block in blocks:
                src, dst = block.edges()
                assert graph.has_edges_between(block.srcdata[dgl.NID][src], block.dstdata[dgl.NID][dst]).all()

    def test_neither_workers_nor_order_change_a_batch(self) -> None:
        sampler = interop.DglNeighborSampler(TOPOLOGY, FANOUTS, seed=3)
        here = loaded(sampler, torch.arange(128))
        by_workers = loaded(sampler, torch.arange(128), num_workers=2)  # each has a half, they take turns
        assert is_equal(sorted(by_workers, key=lambda batch: int(batch[1][0])), here)
        later_first = loaded(sampler, torch.cat([torch.arange(64, 128), torch.arange(64)]))
        assert is_equal(later_first[2:] + later_first[:2], here)

    def test_epochs_and_seeds_draw_afresh(self) -> None:
        sampler = interop.DglNeighborSampler(TOPOLOGY, FANOUTS, seed=3)
        first = loaded(sampler, torch.arange(64))
        sampler.set_epoch(1)
        assert not is_equal(loaded(sampler, torch.arange(64)), first)
        sampler.set_epoch(0)
        assert is_equal(loaded(sampler, torch.arange(64)), first)
        assert not is_equal(loaded(interop.DglNeighborSampler(TOPOLOGY, FANOUTS, seed=4), torch.arange(64)), first)

    def test_persistent_workers_see_the_epoch(self) -> None:
        sampler = interop.DglNeighborSampler(TOPOLOGY, FANOUTS)
        loader = dgl.dataloading.DataLoader(
            dgl_graph(), torch.arange(64), sampler, batch_size=32, num_workers=1, persistent_workers=True
        )
        epochs = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs.append(list(loader))
        assert is_equal(epochs[1], loaded(sampler, torch.arange(64)))
        assert not is_equal(epochs[1], epochs[0])

    def test_batches_of_other_seeds_draw_apart(self) -> None:
        """A node's neighbors in one batch say nothing about those in another."""
        hub = Topology.in_memory(*csc_from_edges(1000, np.arange(2, 1000), np.zeros(998, np.int64)))
        sampler = interop.DglNeighborSampler(hub, [20])
        graph = dgl.graph(([], []), num_nodes=1000)
        drawn = [set(sampler.sample(graph, torch.tensor([0, other]))[0].tolist()) for other in range(1, 30)]
        overlap = np.mean([len(a & b) - 1 for a, b in pairwise(drawn)])
        assert overlap < 2  # 0.4 expected

    def test_duplicate_seeds_share_a_row(self) -> None:
        sampler = interop.DglNeighborSampler(TOPOLOGY, FANOUTS)
        inputs, outputs, blocks = sampler.sample(dgl_graph(), torch.tensor([8, 3, 8]))
        assert outputs.tolist() == [8, 3] == inputs[:2].tolist()
        assert blocks[-1].num_dst_nodes() == 2

    def test_empty_batch(self) -> None:
        inputs, outputs, blocks = interop.DglNeighborSampler(TOPOLOGY, FANOUTS).sample(
            dgl_graph(), torch.empty(0, dtype=torch.int64)
        )
        assert len(inputs) == len(outputs) == blocks[0].num_edges() == 0

    @pytest.mark.parametrize("seeds", [[0, NUM_NODES], [-1]])
    def test_seeds_outside_the_graph_are_refused(self, seeds: list[int]) -> None:
        with pytest.raises(ValueError, match=r"seed node (300|-1) .* outside \[0, 300\)"):
            interop.DglNeighborSampler(TOPOLOGY, FANOUTS).sample(dgl_graph(), torch.tensor(seeds))

    def test_what_cannot_be_sampled_is_refused(self) -> None:
        sampler, seeds = interop.DglNeighborSampler(TOPOLOGY, FANOUTS), torch.tensor([1])
        with pytest.raises(ValueError, match="has 5 nodes, the sampled topology 300"):
            sampler.sample(dgl.graph(([], []), num_nodes=5), seeds)
        with pytest.raises(ValueError, match="exclude edges"):
            sampler.sample(dgl_graph(), seeds, exclude_eids=torch.tensor([0]))
        with pytest.raises(ValueError, match=r"one tensor of node ids \(got dict\)"):
            sampler.sample(dgl_graph(), {"_N": seeds})
        with pytest.raises(ValueError, match="at least one fanout"):
            interop.DglNeighborSampler(TOPOLOGY, [])

    def test_identity_is_of_the_set(self) -> None:
        ids = np.array([3, 1, 2])
        assert interop.batch_identity(ids) == interop.batch_identity(ids[::-1])
        others = [interop.batch_identity(np.array(other)) for other in ([3, 1], [3, 1, 2, 2], [6], [])]
        assert len({interop.batch_identity(ids), *others}) == 5
