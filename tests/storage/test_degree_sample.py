"""Degrees from edges: exact where all are read and held, near where nodes are drawn or edges are read in part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import degree_sample
from storage.csc import build_csc
from storage.degree_sample import DegreeSample, EdgeRules, sample_degrees
from storage.formats.base import EdgeChunk
from tests.graphs import power_law_graph

IDS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=60)


def in_chunks(src: np.ndarray, dst: np.ndarray, size: int) -> Callable[[], Iterator[EdgeChunk]]:
    return lambda: ((src[at : at + size], dst[at : at + size]) for at in range(0, len(src), size))


def histogram(sample: DegreeSample) -> dict[tuple[float, float], float]:
    pairs = zip(sample.in_degree.tolist(), sample.out_degree.tolist(), sample.nodes.tolist(), strict=True)
    return {(a, b): nodes for a, b, nodes in pairs if nodes}


@given(IDS, st.booleans(), st.booleans(), st.booleans())
def test_all_edges_give_the_degrees_of_the_store(
    edges: list[tuple[int, int]], symmetrize: bool, deduplicate: bool, remove: bool
) -> None:
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T.copy()
    rules = EdgeRules(symmetrize, deduplicate, remove)
    found = sample_degrees(in_chunks(src, dst, 7), rules, num_nodes=9, approx_edges=len(src), seconds=60)
    stored = build_csc(
        in_chunks(src, dst, 7), 9, symmetrize=symmetrize, deduplicate=deduplicate, remove_self_loops=remove
    )
    degrees = zip(np.diff(stored.indptr), np.bincount(stored.indices, minlength=9), strict=True)
    expected: dict[tuple[float, float], float] = {}
    for pair in degrees:
        key = (float(pair[0]), float(pair[1]))
        expected[key] = expected.get(key, 0) + 1
    assert histogram(found) == pytest.approx(expected)
    assert (found.num_nodes, found.num_edges) == (9, len(stored.indices))
    assert found.longest_list == np.diff(stored.indptr).max()


@given(IDS, st.booleans())
def test_names_give_the_degrees_that_numbers_give(edges: list[tuple[int, int]], symmetrize: bool) -> None:
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T.copy()
    rules = EdgeRules(symmetrize)
    known: dict[str, Any] = {"num_nodes": None, "approx_edges": len(src), "seconds": 60}
    expected = sample_degrees(in_chunks(src, dst, 7), rules, **known)
    named_src, named_dst = (np.array([f"é{node}" for node in ids], np.object_) for ids in (src, dst))
    found = sample_degrees(in_chunks(named_src, named_dst, 7), rules, **known)
    assert histogram(found) == histogram(expected)
    assert (found.num_nodes, found.num_edges) == (expected.num_nodes, expected.num_edges)
    assert found.name_bytes == (3 if edges else 0)


def shuffled_power_law(nodes: int, edges: int) -> tuple[np.ndarray, np.ndarray]:
    indptr, indices = power_law_graph(nodes, edges, seed=1)
    dst, order = np.repeat(np.arange(nodes), np.diff(indptr)), np.random.default_rng(0).permutation(edges)
    return indices[order].astype(np.int64), dst[order]


def test_nodes_are_drawn_where_edges_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    src, dst = shuffled_power_law(50_000, 500_000)
    monkeypatch.setattr(degree_sample, "_MOST_EDGES", 100_000)
    drawn = sample_degrees(
        in_chunks(src, dst, 10_000), EdgeRules(), num_nodes=50_000, approx_edges=len(src), seconds=60
    )
    assert (drawn.num_nodes, drawn.num_edges, drawn.read_share) == (50_000, 500_000, 1.0)
    degree = np.bincount(dst, minlength=50_000)
    for most in (1, 5, 15):  # what fanouts of so many draw
        expected = np.minimum(degree, most).sum()
        assert drawn.nodes @ np.minimum(drawn.in_degree, most) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("hub", range(4))
def test_the_longest_list_is_found_whether_or_not_its_node_is_drawn(hub: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 50_000, (2, 200_000))
    dst[::2] = hub
    whole = sample_degrees(in_chunks(src, dst, 10_000), EdgeRules(), num_nodes=None, approx_edges=1, seconds=60)
    monkeypatch.setattr(degree_sample, "_MOST_EDGES", 50_000)
    drawn = sample_degrees(in_chunks(src, dst, 10_000), EdgeRules(), num_nodes=None, approx_edges=1, seconds=60)
    assert whole.longest_list == np.bincount(dst).max()
    assert drawn.longest_list == pytest.approx(whole.longest_list, rel=0.1)


@pytest.mark.parametrize("chunks", [2, 10])
def test_edges_read_in_part_tell_all_degrees(monkeypatch: pytest.MonkeyPatch, chunks: int) -> None:
    src, dst = shuffled_power_law(50_000, 500_000)
    moments = iter([0.0] * chunks + [100.0])
    monkeypatch.setattr(degree_sample, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(moments))}))
    part = sample_degrees(in_chunks(src, dst, 10_000), EdgeRules(), num_nodes=50_000, approx_edges=500_000, seconds=1)
    assert part.read_share == chunks / 50
    assert not part.is_sorted
    assert part.num_edges == 500_000
    degree = np.bincount(dst, minlength=50_000)
    for most in (1, 5, 15):
        expected = np.minimum(degree, most).sum()
        assert part.nodes @ np.minimum(part.in_degree, most) == pytest.approx(expected, rel=0.1)


def test_sorted_edges_are_told_and_unknown_nodes_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    src, dst = shuffled_power_law(5_000, 50_000)
    order = np.argsort(dst, kind="stable")
    moments = iter([0.0, 0.0, 100.0])
    monkeypatch.setattr(degree_sample, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(moments))}))
    part = sample_degrees(
        in_chunks(src[order], dst[order], 1000), EdgeRules(), num_nodes=5_000, approx_edges=50_000, seconds=1
    )
    assert part.is_sorted
    monkeypatch.undo()
    ids = np.unique(np.concatenate([src, dst]))
    found = sample_degrees(in_chunks(src, dst, 1000), EdgeRules(), num_nodes=None, approx_edges=50_000, seconds=60)
    assert found.num_nodes == len(ids)
