"""Small stores for the storage tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from storage.formats.base import EdgeArrays, FeatureTable, GraphSource, LabelColumn
from storage.graph_store import write_store
from tests.graphs import power_law_graph

BLOCK_BYTES = 4096


def write_small_store(path: Path, *, num_nodes: int = 3000, num_edges: int = 20_000, **changes: Any) -> dict[str, Any]:
    """Write a store whose every dataset fills several 4 KiB blocks; return what was written."""
    rng = np.random.default_rng(7)
    indptr, indices = power_law_graph(num_nodes, num_edges)
    contents: dict[str, Any] = {
        "indptr": indptr,
        "indices": indices,
        "features": rng.standard_normal((num_nodes, 7)).astype(np.float32),
        "labels": rng.integers(-1, 5, num_nodes),
        "splits": {"train": np.arange(0, num_nodes, 2), "valid": np.arange(1, num_nodes, 4), "test": np.array([3])},
        "original_ids": rng.permutation(num_nodes) * 10,
        "block_bytes": BLOCK_BYTES,
    } | changes
    write_store(path, **contents)
    return contents


def small_source(**changes: Any) -> GraphSource:
    """Six nodes, one of them isolated; a self loop and a repeated edge."""
    fields: dict[str, Any] = {
        "where": "the small graph",
        "edges": EdgeArrays(np.array([0, 1, 1, 2, 3, 4, 0]), np.array([1, 2, 2, 2, 0, 0, 1])),
        "approx_edges": 7,
        "num_nodes": 6,
        "features": FeatureTable.from_array(np.arange(12, dtype=np.float32).reshape(6, 2)),
        "labels": LabelColumn(np.array([0, 1, 0, 1, -1, 0]), ("a", "b")),
        "splits": {"train": np.array([2, 0]), "valid": np.array([1]), "test": np.array([3, 4])},
    } | changes
    return GraphSource(**fields)
