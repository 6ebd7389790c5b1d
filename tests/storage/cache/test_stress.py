"""Rows under every policy, at every budget, while swaps go on in another thread; bytes held are bytes predicted."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kernels.rank_map import RankMap
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.topology import Topology
from storage.cache.cached_topology import adjacency_device_bytes, cached_topology
from storage.cache.hotset import DynamicLayout, DynamicOptions
from storage.cache.plan_choices import OFFSET_BYTES
from storage.cache.policies import DUAL_POLICIES, STATIC_POLICIES, Choice, PolicyCase, chosen_rows, plan_for
from storage.cache.pre_sampling import profile_accesses
from storage.cache.tiers import FeatureTiers
from tests.graphs import power_law_graph

NUM_NODES, WIDTH, FANOUTS, BATCH = 4000, 13, (3, 4), 50
ROW = 4 * WIDTH
TOPOLOGY = Topology.in_memory(*power_law_graph(NUM_NODES, 40_000, seed=1))
TRAIN = np.sort(np.random.default_rng(2).permutation(NUM_NODES)[:800])
DATA_BYTES = NUM_NODES * (ROW + OFFSET_BYTES) + TOPOLOGY.indices.nbytes
HOST_ND = np.random.default_rng(3).integers(0, 256, (NUM_NODES, ROW), np.uint8).view(np.float32)  # NaNs among them
POLICIES = (*STATIC_POLICIES, *DUAL_POLICIES)
DYNAMIC = DynamicOptions(share=0.3, gamma=0.9, interval_batches=1, epochs=1000)


@pytest.fixture(scope="module")
def case() -> PolicyCase:
    sizes: dict[str, Any] = {"batch_size": BATCH, "superbatch": 4, "epochs": 2, "heldout_epochs": 4}
    profile = profile_accesses(TOPOLOGY, TRAIN, FANOUTS, seed=7, replace=False, threads=2, **sizes)
    return PolicyCase(profile, TOPOLOGY, TRAIN, BATCH, FANOUTS, ROW)


def choose(name: str, case: PolicyCase, budget: int) -> Choice:
    if name in DUAL_POLICIES:
        return DUAL_POLICIES[name].choose(case, budget)
    return chosen_rows(STATIC_POLICIES[name], case, budget), np.empty(0, np.int64)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("budget", [0, 700, DATA_BYTES // 10, DATA_BYTES], ids=["none", "tiny", "tenth", "all"])
def test_rows_and_samples_are_those_of_the_source(name: str, budget: int, case: PolicyCase) -> None:
    layout = DynamicLayout.within(int(DYNAMIC.share * budget), ROW, NUM_NODES)
    rows, lists = choose(name, case, budget - layout.nbytes)
    tiers = FeatureTiers(HOST_ND, rows, check=True, dynamic_rows=layout.rows, dynamic=DYNAMIC)
    cached = cached_topology(TOPOLOGY.indptr, TOPOLOGY.indices, lists)
    assert tiers.device_bytes + adjacency_device_bytes(cached) <= budget
    with tiers.watched_epoch(0), ThreadPoolExecutor(3) as pool:
        done = threading.Event()

        def swap() -> None:
            while tiers.dynamic is not None and not done.is_set():
                tiers.dynamic.update()

        swaps = pool.submit(swap)
        try:
            for reading in [pool.submit(read, tiers, cached, seed) for seed in range(2)]:
                reading.result()
        finally:
            done.set()
        swaps.result()
    if layout.rows and len(rows) < NUM_NODES // 2:
        assert tiers.dynamic is not None
        assert tiers.dynamic.stats.swapped_rows > 0


def read(tiers: FeatureTiers, cached: Topology, seed: int) -> None:
    """Sample and gather as training does, and compare both with plain ones, byte for byte."""
    samplers = [NeighborSampler(on, FANOUTS, seed=seed, purpose=Purpose.TRAIN) for on in (cached, TOPOLOGY)]
    for step in range(12):
        # A window of seeds that moves, so that the dynamic cache has something to swap.
        seeds = [TRAIN[(40 * step + np.arange(30)) % len(TRAIN)]] * 2
        ours, plain = (s.sample(seeds, epoch=step, first_batch=0).samples for s in samplers)
        ids = [sample.input_nodes for sample in ours]
        for got, expected in zip(ids, (sample.input_nodes for sample in plain), strict=True):
            np.testing.assert_array_equal(got, expected)
        for nodes, gathered, located in zip(ids, tiers.gather_group(ids), tiers.locate_group(ids), strict=True):
            assert gathered.tobytes() == located.gather().tobytes() == HOST_ND[nodes].tobytes()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("budget", [0, 700, DATA_BYTES // 10, DATA_BYTES], ids=["none", "tiny", "tenth", "all"])
@pytest.mark.parametrize("counting", ["smoothed", "input", "full_link"])
def test_bytes_predicted_are_those_allocated(budget: int, share: float, counting: str, case: PolicyCase) -> None:
    plan = plan_for(case, case.profile, budget, counting, DynamicOptions(share))  # type: ignore[arg-type]
    tiers = FeatureTiers(HOST_ND, plan.feature_ids, dynamic_rows=plan.dynamic_rows, dynamic=plan.dynamic_options)
    cached = cached_topology(TOPOLOGY.indptr, TOPOLOGY.indices, plan.adjacency_ids)
    assert tiers.device_bytes + adjacency_device_bytes(cached) == plan.total_bytes <= budget
    one_map = RankMap.nbytes_for(NUM_NODES)
    assert plan.map_bytes == one_map * ((plan.feature_bytes > 0) + (plan.adjacency_bytes > 0))
