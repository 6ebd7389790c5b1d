"""Expected mini-batches against sampled ones."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.mfg import IdArray
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.topology import Topology
from storage.degree_sample import DegreeSample, EdgeRules, sample_degrees
from tasks.expected_batches import expected_batch
from tasks.first_batches import LONGEST
from tests.graphs import power_law_graph


def degrees_of(indptr: np.ndarray, indices: IdArray) -> DegreeSample:
    dst = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return sample_degrees(
        lambda: iter([(indices, dst)]),
        EdgeRules(),
        num_nodes=len(indptr) - 1,
        approx_edges=len(indices),
        seconds=60,
    )


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", [(3, 4), (5, 10, 15), (-1,), ()])
def test_sizes_on_a_power_law_graph(fanouts: tuple[int, ...], replace: bool) -> None:
    indptr, indices = power_law_graph(60_000, 600_000, seed=3)
    expected = expected_batch(degrees_of(indptr, indices), fanouts, 50, replace=replace)
    sampler = NeighborSampler(
        Topology.in_memory(indptr, indices), fanouts, seed=0, purpose=Purpose.TRAIN, replace=replace
    )
    rng = np.random.default_rng(1)
    samples = sampler.sample([rng.permutation(60_000)[:50] for _ in range(40)], epoch=0, first_batch=0).samples
    for hop, shape in enumerate(expected.shapes):
        found = [sample.hops[hop] for sample in samples]
        assert shape.num_edges == pytest.approx(np.mean([one.num_edges for one in found]), rel=0.1)
        assert shape.num_dst == pytest.approx(np.mean([one.num_dst for one in found]), rel=0.1)
        assert shape.num_src == pytest.approx(np.mean([one.num_src for one in found]), rel=0.1)
    assert expected.num_inputs == pytest.approx(np.mean([len(one.input_nodes) for one in samples]), rel=0.1)
    if len(fanouts) == 3:  # hubs: the mean degree alone is far off
        mean = DegreeSample(np.array([60_000.0]), np.array([10.0]), np.array([10.0]), 600_000)
        assert expected_batch(mean, fanouts, 50).num_inputs > 1.5 * expected.num_inputs


@pytest.mark.parametrize("share", [1.0, 0.02])
@pytest.mark.parametrize("fanouts", [(10, -1), (-1, -1), (-1,)])
def test_seeds_with_the_longest_lists(fanouts: tuple[int, ...], share: float) -> None:
    """As large as the mini-batch that holds those of an epoch's; shorter where fewer nodes are seeds."""
    indptr, indices = power_law_graph(20_000, 200_000, seed=1, exponent=2.1)
    topology, found = Topology.in_memory(indptr, indices), list[int]()
    sampler = NeighborSampler(topology, fanouts, seed=0, purpose=Purpose.TRAIN)
    for seed in range(8):
        drawn = np.random.default_rng(seed).permutation(20_000)[: round(share * 20_000)]
        longest = drawn[np.argsort(-topology.in_degree()[drawn])[:LONGEST]]
        nodes = np.unique(np.append(longest, drawn[: 16 - LONGEST]))
        sample = sampler.sample([nodes], epoch=0, first_batch=0).samples[0]
        found.append(sum(hop.num_edges for hop in sample.hops))
    degrees = degrees_of(indptr, indices)
    expected = expected_batch(degrees, fanouts, 16, longest=LONGEST, all_seeds=share * 20_000)
    edges = sum(shape.num_edges for shape in expected.shapes)
    assert edges > 1.5 * sum(shape.num_edges for shape in expected_batch(degrees, fanouts, 16).shapes)
    assert np.quantile(found, 0.75) <= 1.15 * edges
    assert edges <= 3 * np.max(found)


def test_what_two_have_in_common() -> None:
    indptr, indices = power_law_graph(20_000, 300_000, seed=4)
    expected = expected_batch(degrees_of(indptr, indices), (10, 10), 100)
    sampler = NeighborSampler(Topology.in_memory(indptr, indices), (10, 10), seed=0, purpose=Purpose.TRAIN)
    rng = np.random.default_rng(1)
    samples = sampler.sample([rng.permutation(20_000)[:100] for _ in range(20)], epoch=0, first_batch=0).samples
    pairs = zip(samples[::2], samples[1::2], strict=True)
    shared = np.mean([len(np.intersect1d(a.input_nodes, b.input_nodes)) for a, b in pairs])
    assert expected.shared_nodes == pytest.approx(shared, rel=0.25)


def test_nothing_is_drawn_from_a_graph_without_edges() -> None:
    alone = expected_batch(DegreeSample(np.array([5.0]), np.zeros(1), np.zeros(1), 0), (2, -1), 3)
    assert [shape.num_edges for shape in alone.shapes] == [0, 0]
    assert alone.num_inputs == 3
