"""From profile to plan to tiers on a power-law graph: what is predicted is what training then measures."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.mfg import TierReads
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.topology import Topology
from storage.cache.cached_topology import cached_topology
from storage.cache.plan import CachePlan, build_plan
from storage.cache.pre_sampling import profile_accesses
from storage.cache.profile import AccessProfile, Counting
from storage.cache.tiers import FeatureTiers
from tests.graphs import power_law_graph

NUM_NODES, FANOUTS, WIDTH, BATCH, GROUP = 20_000, (5, 5), 8, 250, 4
INDPTR, INDICES = power_law_graph(NUM_NODES, 200_000, seed=1)
TRAIN = np.random.default_rng(2).permutation(NUM_NODES)[:2000]
DATA_BYTES = NUM_NODES * WIDTH * 4 + INDICES.nbytes + INDPTR.nbytes


@pytest.fixture(scope="module")
def profile() -> AccessProfile:
    return profile_accesses(
        Topology.in_memory(INDPTR, INDICES),
        TRAIN,
        FANOUTS,
        batch_size=BATCH,
        superbatch=GROUP,
        seed=7,
        epochs=4,
        heldout_epochs=12,
        replace=False,
        threads=2,
    )


def plan_for(profile: AccessProfile, budget: int, counting: Counting = "input") -> CachePlan:
    return build_plan(
        profile,
        np.diff(INDPTR),
        row_bytes=WIDTH * 4,
        id_bytes=INDICES.itemsize,
        device_budget=budget,
        counting=counting,
        max_fanout=max(FANOUTS),
    )


def train_reads(plan: CachePlan, epochs: int) -> tuple[TierReads, TierReads]:
    """(feature, adjacency) reads of training epochs through the tiers of a plan."""
    topology = cached_topology(INDPTR, INDICES, plan.adjacency_ids)
    tiers = FeatureTiers(np.zeros((NUM_NODES, WIDTH), np.float32), plan.feature_ids)
    sampler, adjacency = NeighborSampler(topology, FANOUTS, seed=7, purpose=Purpose.TRAIN), TierReads()
    for epoch in range(epochs):
        batches = shuffled_batches(TRAIN, BATCH, seed=7, epoch=epoch)
        for first in range(0, len(batches), GROUP):
            sampled = sampler.sample(batches[first : first + GROUP], epoch=epoch, first_batch=first)
            adjacency.add(sampled.adjacency_reads)
            for _rows in tiers.gather_group([sample.input_nodes for sample in sampled.samples]):
                pass
    return tiers.reads, adjacency


@pytest.mark.parametrize("counting", ["input", "full_link"])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.45])
def test_training_measures_what_was_predicted(profile: AccessProfile, share: float, counting: Counting) -> None:
    plan = plan_for(profile, int(share * DATA_BYTES), counting)
    assert len(plan.feature_ids) > 0
    assert len(plan.adjacency_ids) > 0
    feature, adjacency = train_reads(plan, epochs=4)
    assert feature.hit_rate == pytest.approx(plan.predicted_feature_hit_rate, abs=0.01)
    assert adjacency.hit_rate == pytest.approx(plan.predicted_adjacency_hit_rate, abs=0.01)
    assert 0.9 * plan.oracle_feature_hit_rate < plan.predicted_feature_hit_rate < plan.oracle_feature_hit_rate
    assert 0.9 * plan.oracle_adjacency_hit_rate <= plan.predicted_adjacency_hit_rate <= plan.oracle_adjacency_hit_rate


def test_more_budget_serves_more_and_crosses_less(profile: AccessProfile) -> None:
    plans = [plan_for(profile, int(share * DATA_BYTES)) for share in (0, 0.02, 0.05, 0.1, 0.2, 0.4, 1.2)]
    for name in ("feature", "adjacency"):
        rates = [getattr(plan, f"predicted_{name}_hit_rate") for plan in plans]
        assert rates == sorted(rates)
        assert rates[0] == 0
        assert rates[-1] > 0.95
    crossed = [sum(reads.host_bytes for reads in train_reads(plan, epochs=1)) for plan in plans]
    assert crossed == sorted(crossed, reverse=True)
    assert crossed[-1] < 0.05 * crossed[0]


def test_the_plan_beats_random_and_degree_choices(profile: AccessProfile) -> None:
    plan = plan_for(profile, int(0.1 * DATA_BYTES))
    size, heldout_N = len(plan.feature_ids), profile.heldout_feature_count_N
    degree_ids = np.argsort(-np.bincount(INDICES, minlength=NUM_NODES), kind="stable")[:size]
    random_ids = np.random.default_rng(0).permutation(NUM_NODES)[:size]
    rates = [heldout_N[ids].sum() / heldout_N.sum() for ids in (random_ids, degree_ids)]
    assert rates[0] < rates[1] < plan.predicted_feature_hit_rate
