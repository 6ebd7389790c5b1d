"""Expected accesses against sampling, and what smoothing makes of few epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.mfg import IdArray
from kernels.topology import Topology
from storage.blocks.stored_topology import StoredTopology
from storage.cache.inclusion import SMOOTHED_UNIT, expected_accesses, smoothed_counts
from storage.cache.pre_sampling import profile_accesses
from storage.cache.profile import AccessProfile
from tests.graphs import csc_from_edges, power_law_graph
from tests.storage.blocks.recut import store_of

NUM_NODES = 20_000
TOPOLOGY = Topology.in_memory(*power_law_graph(NUM_NODES, 200_000, seed=1))
TRAIN = np.random.default_rng(2).permutation(NUM_NODES)[:2000]


def profile_of(epochs: int, heldout: int, *, replace: bool = False) -> AccessProfile:
    sizes: dict[str, Any] = {"batch_size": 100, "superbatch": 4, "epochs": epochs, "heldout_epochs": heldout}
    return profile_accesses(TOPOLOGY, TRAIN, (5, 10), seed=7, replace=replace, threads=2, **sizes)


def served(rank_N: np.ndarray, count_N: np.ndarray, rows: int) -> float:
    return float(count_N[np.argsort(-rank_N, kind="stable")[:rows]].sum() / count_N.sum())


def test_one_hop_is_the_formula() -> None:
    # 0 and 1 are read by 2 (two of three drawn), 1 also by 3 (both taken); 2 and 3 are seeds of two mini-batches.
    topology = Topology.in_memory(*csc_from_edges(5, [0, 1, 4, 1, 4], [2, 2, 2, 3, 3]))
    feature_N, adjacency_N = expected_accesses(topology, np.array([2, 3]), (2,), 1, replace=False)
    np.testing.assert_allclose(adjacency_N, [0, 0, 1, 1, 0])
    half = 0.5 * 2 / 3
    np.testing.assert_allclose(
        feature_N, [2 * half, 2 * (1 - (1 - half) / 2), 1, 1, 2 * (1 - (1 - half) / 2)], rtol=1e-5
    )


def test_lists_of_nodes_that_no_mini_batch_holds_stay_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path / "graph.h5", 4096, indptr=TOPOLOGY.indptr, indices=TOPOLOGY.indices)
    seeds, read = np.array([7, 19_000]), list[int]()
    degree_N = np.diff(TOPOLOGY.indptr)
    reached = np.union1d(seeds, np.concatenate([TOPOLOGY.indices[slice(*TOPOLOGY.indptr[v : v + 2])] for v in seeds]))
    with StoredTopology(store, np.empty(0, np.int64), buffer_bytes=2 * 4096) as topology:

        def counted(begin: npt.NDArray[np.int64], length: npt.NDArray[np.int64]) -> IdArray:
            read.append(int(length.sum()))
            return StoredTopology.read_lists(topology, begin, length)

        monkeypatch.setattr(topology, "read_lists", counted)
        found = expected_accesses(topology, seeds, (5, 10), 1, replace=False)
    for one, other in zip(found, expected_accesses(TOPOLOGY, seeds, (5, 10), 1, replace=False), strict=True):
        np.testing.assert_array_equal(one, other)
    assert sum(read) == degree_N[seeds].sum() + degree_N[reached].sum() < len(TOPOLOGY.indices)


@pytest.mark.parametrize("replace", [False, True])
def test_they_come_close_to_what_is_sampled(replace: bool) -> None:
    profile = profile_of(0, 30, replace=replace)
    expected = expected_accesses(TOPOLOGY, TRAIN, (5, 10), 100, replace=replace)
    for counted_N, expected_N in zip(
        (profile.heldout_feature_count_N, profile.heldout_adjacency_count_N), expected, strict=True
    ):
        often = counted_N > 100
        assert often.sum() > 100
        ratio = 30 * expected_N[often] / counted_N[often]
        assert 0.9 < np.median(ratio) < 1.1


def test_smoothed_counts_of_few_epochs_rank_as_those_of_more_do() -> None:
    few, many = profile_of(2, 60), profile_of(8, 0)
    heldout_N = few.heldout_feature_count_N
    for share in (0.05, 0.2, 0.4):
        rows = int(share * NUM_NODES)
        rates = [served(rank_N, heldout_N, rows) for rank_N in (few.feature_count_N, few.smoothed_feature_N)]
        assert rates[1] > rates[0]
        assert rates[1] > served(many.feature_count_N, heldout_N, rows) - 0.004


def test_an_expectation_that_is_worth_nothing_is_left_aside() -> None:
    rng = np.random.default_rng(0)
    truth = rng.gamma(0.5, 40, 5000)
    count_N = rng.poisson(4 * truth)
    useless = np.full(5000, truth.mean(), np.float32)
    smoothed_N = smoothed_counts(count_N, useless, 4, 10**6) / SMOOTHED_UNIT
    assert np.corrcoef(smoothed_N, count_N)[0, 1] > 0.999


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 20, width=32)), max_size=30), st.integers(1, 5))
def test_smoothing_stays_within_what_was_counted_and_expected(pairs: list[tuple[int, float]], epochs: int) -> None:
    count_N = np.array([count for count, _ in pairs], np.int64)
    expected_N = np.array([mean for _, mean in pairs], np.float32)
    smoothed_N = smoothed_counts(count_N, expected_N, epochs, 50)
    assert (smoothed_N >= 0).all()
    nothing_expected = expected_N == 0
    assert (smoothed_N[nothing_expected] == SMOOTHED_UNIT * count_N[nothing_expected]).all()
