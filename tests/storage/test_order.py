"""Node orders are permutations that rank as they say."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.mfg import IdArray
from storage import order as order_module
from storage.errors import InputError
from storage.order import OrderKind, falling_ranks, invert_order, node_order, order_bytes
from tests.graphs import csc_from_edges, graphs, power_law_graph


@settings(deadline=None)
@given(graphs(), st.sampled_from(["degree", "locality", "none"]))
def test_every_order_is_a_permutation(graph: tuple[npt.NDArray[np.int64], IdArray], kind: OrderKind) -> None:
    indptr, indices = graph
    order = node_order(kind, indptr, indices)
    assert order.dtype == np.int64
    assert sorted(order) == list(range(len(indptr) - 1))
    assert order[invert_order(order)].tolist() == list(range(len(order)))


@settings(deadline=None)
@given(graphs())
def test_degree_ranks_by_occurrence_then_id(graph: tuple[npt.NDArray[np.int64], IdArray]) -> None:
    indptr, indices = graph
    count = np.bincount(indices, minlength=len(indptr) - 1)
    assert node_order("degree", indptr, indices).tolist() == sorted(range(len(count)), key=lambda v: (-count[v], v))
    assert node_order("degree", indptr, indices[:0], out_degree_N=count).tolist() == sorted(
        range(len(count)), key=lambda v: (-count[v], v)
    )


def test_hotness_ranks_by_count_then_id() -> None:
    indptr, indices = csc_from_edges(4, [], [])
    assert node_order("hotness", indptr, indices, hotness_N=np.array([1, 5, 5, 9])).tolist() == [3, 1, 2, 0]


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(0, 12) | st.integers(0, 2**40), max_size=60),
    chunk=st.integers(1, 20),
    common=st.integers(1, 14),
)
def test_ranks_are_those_of_a_sort(counts: list[int], chunk: int, common: int) -> None:
    count_N = np.array(counts, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_module, "_COMMON_COUNTS", common)
        ranks = falling_ranks(lambda: (count_N[i : i + chunk] for i in range(0, len(count_N), chunk)), len(count_N))
    assert ranks.dtype == np.int32
    assert np.argsort(ranks).tolist() == sorted(range(len(counts)), key=lambda v: (-counts[v], v))


def test_none_keeps_the_order() -> None:
    indptr, indices = csc_from_edges(3, [2, 2], [0, 1])
    assert node_order("none", indptr, indices).tolist() == [0, 1, 2]


def test_locality_shrinks_the_bandwidth_of_a_shuffled_path() -> None:
    label = np.random.default_rng(1).permutation(500)
    indptr, indices = csc_from_edges(500, label[:-1], label[1:])
    position = invert_order(node_order("locality", indptr, indices))
    assert np.abs(position[label[:-1]] - position[label[1:]]).max() == 1


@pytest.mark.parametrize("hotness", [None, np.ones(2, np.int64)])
def test_hotness_needs_one_count_a_node(hotness: npt.NDArray[np.int64] | None) -> None:
    indptr, indices = csc_from_edges(3, [], [])
    with pytest.raises(ValueError, match="one count a node, 3"):
        node_order("hotness", indptr, indices, hotness_N=hotness)


def test_a_graph_too_large_for_locality_is_refused_with_advice() -> None:
    indices = np.broadcast_to(np.int32(0), 2**30)
    with pytest.raises(InputError, match=r"fewer than 2\*\*30 edges \(got 1073741824\): set layout.order to degree"):
        node_order("locality", np.array([0, 2**30]), indices)


@pytest.mark.parametrize("kind", ["degree", "hotness", "locality", "none"])
@pytest.mark.parametrize("num_edges", [10, 300_000])
def test_memory_is_bounded(kind: OrderKind, num_edges: int) -> None:
    indptr, indices = power_law_graph(20_000, num_edges)
    hotness_N = np.arange(20_000)
    node_order(kind, indptr, indices, hotness_N=hotness_N)  # compile, import
    tracemalloc.start()
    node_order(kind, indptr, indices, hotness_N=hotness_N)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    bound = order_bytes(kind, 20_000, num_edges)
    assert peak <= bound + (1 << 16)
    assert bound <= 2 * peak + (1 << 16)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown node order"):
        node_order("alphabet", np.zeros(1, np.int64), np.zeros(0, np.int32))  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**62), max_size=40))
def test_counts_too_large_for_a_word_are_ranked_too(counts: list[int]) -> None:
    count_N = np.array(counts, np.int64)
    ranks = falling_ranks(lambda: [count_N], len(count_N))
    assert np.argsort(ranks).tolist() == sorted(range(len(counts)), key=lambda v: (-counts[v], v))


def test_ranking_smoothed_counts_takes_few_bytes_a_node() -> None:
    """Counts in parts of an access: every node has more than have a place of their own."""
    count_N = np.random.default_rng(0).integers(1 << 16, 1 << 24, 400_000, dtype=np.int32)

    def pieces() -> Iterator[npt.NDArray[np.int32]]:
        yield from (count_N[first : first + (1 << 14)] for first in range(0, len(count_N), 1 << 14))

    falling_ranks(pieces, len(count_N))  # compile
    tracemalloc.start()
    falling_ranks(pieces, len(count_N))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 16 * len(count_N) + (3 << 20)
