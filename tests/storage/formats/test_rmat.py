"""The R-MAT graph: skewed as its parameters say, the same whenever it is generated, and never held."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from storage.formats import rmat
from storage.formats.base import GraphSource
from storage.formats.rmat import RmatEdges, open_rmat
from tests.storage.formats.read import read_features

DEFAULTS: dict[str, Any] = {
    "scale": 12,
    "edges": 300_000,
    "classes": 5,
    "feature_dim": 6,
    "noise": 0.5,
    "train_fraction": 0.2,
    "valid_fraction": 0.1,
    "seed": 3,
}


def make(**changes: Any) -> GraphSource:
    return open_rmat(**(DEFAULTS | changes))


def ends(source: GraphSource) -> tuple[np.ndarray, np.ndarray]:
    src, dst = zip(*source.edge_chunks(), strict=True)
    return np.concatenate(src), np.concatenate(dst)


@pytest.mark.parametrize("scale", [1, 2, 7, 12])
def test_the_shuffle_of_ids_is_a_bijection(scale: int) -> None:
    ids = [rmat._shuffled(np.uint64(x), scale) for x in range(1 << scale)]
    assert sorted(map(int, ids)) == list(range(1 << scale))


def test_sizes_and_splits() -> None:
    source = make()
    src, dst = ends(source)
    assert len(src) == len(dst) == source.approx_edges == 300_000
    assert (src.dtype, min(src.min(), dst.min()), source.num_nodes) == (np.dtype(np.int32), 0, 4096)
    assert max(src.max(), dst.max()) < 4096
    features = read_features(source)
    assert (features.shape, features.dtype) == ((4096, 6), np.dtype(np.float16))
    assert source.splits is not None
    sizes = [len(source.splits[split]) for split in ("train", "valid", "test")]
    assert sizes == pytest.approx([819, 410, 410], rel=0.15)
    assert len(np.unique(np.concatenate(list(source.splits.values())))) == sum(sizes)


def test_each_quadrant_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rmat, "CHUNK_EDGES", 70_000)
    first = {int(rmat._shuffled(np.uint64(x), 12)): x >> 11 for x in range(4096)}
    half = np.array([first[node] for node in range(4096)])
    src, dst = ends(make())
    shares = np.bincount(2 * half[src] + half[dst]) / len(src)
    assert shares == pytest.approx([0.57, 0.19, 0.19, 0.05], abs=0.005)
    low = {int(rmat._shuffled(np.uint64(x), 12)): x & 1 for x in range(4096)}
    bit = np.array([low[node] for node in range(4096)])
    shares = np.bincount(2 * bit[src] + bit[dst]) / len(src)
    assert shares == pytest.approx([0.57, 0.19, 0.19, 0.05], abs=0.005), "at the last level too"


def test_chunks_and_rereading_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    src, dst = ends(make())
    monkeypatch.setattr(rmat, "CHUNK_EDGES", 999)
    again = ends(make())
    assert np.array_equal(src, again[0])
    assert np.array_equal(dst, again[1])
    assert not np.array_equal(src, ends(make(seed=4))[0])


def test_features_tell_classes() -> None:
    source = make(noise=0.05)
    assert source.labels is not None
    x, y = read_features(source).astype(np.float32), source.labels.labels_N
    centres = np.stack([x[y == label].mean(axis=0) for label in range(5)])
    nearest = np.linalg.norm(x[:, None] - centres, axis=2).argmin(axis=1)
    assert np.mean(nearest == y) > 0.99


def test_any_size_takes_the_memory_of_a_chunk() -> None:
    tracemalloc.start()
    chunks = RmatEdges(36, 1 << 50, 0).chunks()
    src, _ = next(chunks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert src.dtype == np.int64
    assert peak < 24 * len(src)
