"""The workload that sampling and training are measured on beside DGL: fixed before any tuning, the same for both.

A power-law graph of 2M nodes and 30M edges, batches of 8000 seeds in an order drawn once, 128 features a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from tests.graphs import power_law_graph

NUM_NODES, NUM_EDGES = 2_000_000, 30_000_000
GRAPH_SEED, EXPONENT = 0, 2.3
BATCH_SIZE = 8000
FANOUTS = ((15, 10, 5), (5, 10, 15))
FEATURES, HIDDEN, HEADS, CLASSES = 128, 128, 8, 16
"""Widths of every network; GAT has 8 heads of 16."""
NODE_SEED, FEATURE_SEED = 1, 2
LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True)
class NodeData:
    """Random features and classes: what is measured is time, not accuracy."""

    features_ND: npt.NDArray[np.float32]
    """(NUM_NODES, FEATURES) standard normal."""
    labels_N: npt.NDArray[np.int64]
    """(NUM_NODES,) uniform in [0, CLASSES)."""


def graph(dtype: npt.DTypeLike = np.int64) -> tuple[npt.NDArray[np.int64], IdArray]:
    """(indptr, indices) of the graph; int64 is what DGL is measured on."""
    return power_law_graph(NUM_NODES, NUM_EDGES, seed=GRAPH_SEED, exponent=EXPONENT, dtype=dtype)


def train_nodes(num_batches: int) -> npt.NDArray[np.int64]:
    """Seeds of the first `num_batches` mini-batches of a drawn order of all nodes."""
    return np.random.default_rng(NODE_SEED).permutation(NUM_NODES)[: num_batches * BATCH_SIZE]


def node_data() -> NodeData:
    """Features and classes of all nodes."""
    rng: Any = np.random.default_rng(FEATURE_SEED)
    features_ND = rng.standard_normal((NUM_NODES, FEATURES), np.float32)
    return NodeData(features_ND, rng.integers(0, CLASSES, NUM_NODES))
