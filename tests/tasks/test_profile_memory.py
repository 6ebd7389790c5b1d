"""A refusal of a profile names the smallest budget there is: of an adjacency in memory, or on disk if that is less."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from conf.schema import SamplingConfig
from storage.expected_store import ExpectedStore
from storage.store_format import StoreInfo
from tasks.profile_memory import plan_profile, profile_from_disk

KIB = 1024


def expected_store(num_nodes: int, num_edges: int, block_bytes: int) -> ExpectedStore:
    splits = {"train": num_nodes // 10, "valid": 0, "test": 0}
    return ExpectedStore(
        StoreInfo(num_nodes, num_edges, 8, np.dtype(np.float32), 3, ("a", "b", "c"), "degree", block_bytes, 1, splits)
    )


@given(
    num_nodes=st.sampled_from([100, 60_000, 2_000_000]),
    degree=st.integers(0, 200),
    block_bytes=st.sampled_from([4 * KIB, 64 * KIB, 1024 * KIB]),
    longest_list=st.sampled_from([0, 3_000_000]),
    fanout=st.sampled_from([5, -1]),
    threads=st.integers(1, 8),
)
def test_the_smallest_budget_will_do_and_none_below_it(
    num_nodes: int, degree: int, block_bytes: int, longest_list: int, fanout: int, threads: int
) -> None:
    store = expected_store(num_nodes, degree * num_nodes, block_bytes)
    sampling = SamplingConfig(fanouts=(5, fanout), batch_size=100, superbatch=1, threads=threads)

    def needed(budget: int) -> int:
        return plan_profile(store, sampling, budget, counts_bytes=40, longest_list=longest_list).memory_bytes

    least = needed(0)
    assert needed(least) <= least
    assert needed(least - 1) == least
    assert least <= profile_from_disk(store, sampling, 0, counts_bytes=40, longest_list=longest_list).memory_bytes


def test_a_small_adjacency_stays_in_memory_at_any_budget() -> None:
    store, sampling = expected_store(1000, 10_000, 64 * KIB), SamplingConfig(fanouts=(5, 5), batch_size=100)
    plan = plan_profile(store, sampling, 0, counts_bytes=40)
    assert plan.share is None
    assert plan.memory_bytes < profile_from_disk(store, sampling, 0, counts_bytes=40).memory_bytes


def test_a_sixteenth_of_a_large_graph_holds_half_an_epoch() -> None:
    """10M nodes, 150M edges, 128 float32 features: a mini-batch takes a bit a node and the ids that it expands."""
    splits = {"train": 100_000, "valid": 0, "test": 0}
    info = StoreInfo(10**7, 15 * 10**7, 128, np.dtype(np.float32), 1, ("a",), "degree", 1024 * KIB, 1, splits)
    sampling = SamplingConfig(fanouts=(5, 10, 15), batch_size=1000, superbatch=1)
    plan = plan_profile(ExpectedStore(info), sampling, 363_000_000, counts_bytes=20, longest_list=149_000)
    least = plan_profile(ExpectedStore(info), sampling, 0, counts_bytes=20, longest_list=149_000)
    assert plan.memory_bytes <= 363_000_000
    assert plan.hyperbatch == 50
    one = 10**7 / 8 + 4 * 1000 * 16 * 11
    assert least.memory_bytes <= 20 * 10**7 + one + 22_000_000
