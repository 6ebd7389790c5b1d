"""The workload that training from disk is measured on: fixed before any tuning, the same for every method.

A power-law graph in degree order, 128 float32 features, 1 % of the nodes as seeds, batches of 1000, fanouts 5, 10, 15.
The small graph has batches of 200: 1000 seeds reach two fifths of it, and nothing of a batch would fit the budgets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from storage.blocks.writer import ArrayStream
from storage.graph_store import write_store
from tests.graphs import power_law_graph

GRAPH_SEED, EXPONENT, FEATURE_SEED, NODE_SEED, SAMPLING_SEED = 0, 2.3, 2, 1, 3
FANOUTS = (5, 10, 15)
SEED_SHARE, CLASSES, HIDDEN = 0.01, 16, 128
BUDGET_SHARES = {"1/4": 4, "1/16": 16}
_CHUNK_ROWS = 1 << 15


@dataclass(frozen=True, slots=True)
class Size:
    """How large the graph is."""

    nodes: int
    edges: int
    batch_size: int = 1000
    features: int = 128


SIZES = {
    "small": Size(1_000_000, 15_000_000, batch_size=200),
    "medium": Size(4_000_000, 60_000_000),
    "full": Size(10_000_000, 150_000_000),
}


def write_workload(path: Path, size: Size, *, block_bytes: int = 1 << 20) -> None:
    """Write the store; its features come in chunks."""
    indptr, indices = power_law_graph(size.nodes, size.edges, seed=GRAPH_SEED, exponent=EXPONENT)
    indptr, indices = in_degree_order(indptr, indices)

    def chunks() -> Iterator[npt.NDArray[np.float32]]:
        rng = np.random.default_rng(FEATURE_SEED)
        for first in range(0, size.nodes, _CHUNK_ROWS):
            yield rng.standard_normal((min(_CHUNK_ROWS, size.nodes - first), size.features), np.float32)

    seeds = np.sort(np.random.default_rng(NODE_SEED).permutation(size.nodes)[: int(size.nodes * SEED_SHARE)])
    write_store(
        path,
        indptr=indptr,
        indices=indices,
        features=ArrayStream((size.nodes, size.features), np.dtype(np.float32), chunks()),
        labels=np.random.default_rng(NODE_SEED).integers(0, CLASSES, size.nodes),
        splits={"train": seeds},
        order="degree",
        block_bytes=block_bytes,
    )


def in_degree_order(
    indptr: npt.NDArray[np.int64], indices: IdArray
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The graph with the nodes that most lists name in front, as the reorder stage lays it out."""
    num_nodes = len(indptr) - 1
    order = np.argsort(-np.bincount(indices, minlength=num_nodes), kind="stable")
    old_to_new = np.empty(num_nodes, np.int32)
    old_to_new[order] = np.arange(num_nodes, dtype=np.int32)
    degree = np.diff(indptr)[order]
    new_indptr = np.concatenate([[0], np.cumsum(degree)])
    positions = np.repeat(indptr[order] - new_indptr[:-1], degree) + np.arange(len(indices))
    return new_indptr, old_to_new[indices[positions]]
