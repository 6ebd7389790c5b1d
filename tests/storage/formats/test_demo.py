"""The demo graph is what its parameters say, and the same whenever it is generated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from storage.formats import base, demo
from storage.formats.base import GraphSource
from storage.formats.demo import normal_rows, open_demo
from tests.storage.formats.read import read_edges, read_features

DEFAULTS: dict[str, Any] = {
    "nodes": 5000,
    "edges": 100_000,
    "classes": 8,
    "feature_dim": 6,
    "exponent": 2.3,
    "homophily": 0.7,
    "noise": 0.5,
    "train_fraction": 0.1,
    "valid_fraction": 0.05,
    "seed": 3,
}


def make(**changes: Any) -> GraphSource:
    return open_demo(**(DEFAULTS | changes))


def ends(source: GraphSource) -> tuple[np.ndarray, np.ndarray]:
    src, dst = zip(*source.edge_chunks(), strict=True)
    return np.concatenate(src), np.concatenate(dst)


def labels(source: GraphSource) -> np.ndarray:
    assert source.labels is not None
    return source.labels.labels_N


def test_sizes_and_splits() -> None:
    source = make()
    src, dst = ends(source)
    assert len(src) == source.approx_edges == 100_000
    assert min(src.min(), dst.min()) >= 0
    assert max(src.max(), dst.max()) < 5000
    assert read_features(source).shape == (5000, 6)
    assert source.splits is not None
    assert [len(source.splits[split]) for split in ("train", "valid", "test")] == [500, 250, 500]
    assert len(np.unique(np.concatenate(list(source.splits.values())))) == 1250
    assert np.bincount(labels(source)).tolist() == [625] * 8


def test_the_share_of_edges_within_a_community_is_the_homophily() -> None:
    for homophily in (0.0, 0.7, 1.0):
        source = make(homophily=homophily)
        src, dst = ends(source)
        within = np.mean(labels(source)[src] == labels(source)[dst])
        assert within == pytest.approx(homophily, abs=0.006)  # four standard deviations


@pytest.mark.parametrize("exponent", [2.0, 2.3, 3.5])
def test_degrees_follow_the_power_law(exponent: float) -> None:
    source = make(exponent=exponent, edges=400_000)
    for end in ends(source):
        degree = np.sort(np.bincount(end, minlength=5000))[::-1]
        rank = np.arange(10, 500)
        slope = np.polyfit(np.log(rank), np.log(degree[rank]), 1)[0]
        assert slope == pytest.approx(-1 / (exponent - 1), abs=0.08)


def test_degrees_have_nothing_to_do_with_ids() -> None:
    src, _ = ends(make())
    degree = np.bincount(src, minlength=5000)
    assert abs(np.corrcoef(np.argsort(np.argsort(degree)), np.arange(5000))[0, 1]) < 0.06


def test_features_are_the_centre_of_the_class_plus_noise() -> None:
    source = make()
    feat, label = read_features(source), labels(source)
    centres = np.array([feat[label == c].mean(axis=0) for c in range(8)])
    assert np.linalg.norm(centres, axis=1) == pytest.approx(np.ones(8), abs=0.15)
    assert (feat - centres[label]).std(axis=0) == pytest.approx(np.full(6, 0.5), abs=0.02)


def test_normal_rows_are_normal_and_keyed_by_id() -> None:
    draws = normal_rows(np.uint64(5), np.arange(50_000), 3)
    assert draws.dtype == np.float32
    assert draws.mean(axis=0) == pytest.approx(np.zeros(3), abs=0.02)
    assert draws.std(axis=0) == pytest.approx(np.ones(3), abs=0.02)
    assert np.abs(np.corrcoef(draws.T) - np.eye(3)).max() < 0.02
    assert np.mean(np.abs(draws) > 1.96) == pytest.approx(0.05, abs=0.003)
    assert np.array_equal(normal_rows(np.uint64(5), np.array([77, 3]), 3), draws[[77, 3]])


def test_chunks_do_not_change_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_edges(make()), read_features(make())
    monkeypatch.setattr(demo, "CHUNK_EDGES", 777)
    monkeypatch.setattr(base, "CHUNK_BYTES", 1000)
    assert read_edges(make()) == before[0]
    assert np.array_equal(read_features(make()), before[1])


def test_seeds_differ() -> None:
    one, other = make(), make(seed=2**64 - 1)
    assert read_edges(one) != read_edges(other)
    assert not np.array_equal(labels(one), labels(other))


@pytest.mark.parametrize(
    "changes", [{"nodes": 2, "classes": 16}, {"edges": 0}, {"nodes": 9, "classes": 4, "edges": 500}]
)
def test_odd_sizes(changes: dict[str, int]) -> None:
    source = make(**changes)
    edges = read_edges(source)
    assert len(edges) == (DEFAULTS | changes)["edges"]
    assert source.num_nodes is not None
    assert all(0 <= u < source.num_nodes and 0 <= v < source.num_nodes for u, v in edges)
    assert read_features(source).shape == (source.num_nodes, 6)
    assert labels(source).max() < min((DEFAULTS | changes)["classes"], (DEFAULTS | changes)["nodes"])
