"""A small planted-community graph on which a GNN learns, as the trainer takes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.nn.layers import NodeDegrees
from kernels.topology import Topology
from storage.cache.cached_topology import cached_topology
from storage.cache.tiers import FeatureTiers
from tasks.objective import Labels
from tasks.trainer import train
from tasks.training_reports import TrainResult
from tasks.training_types import Splits, TrainOptions
from tests.graphs import csc_from_edges

NUM_CLASSES = 4
OPTIONS = TrainOptions(
    kind="sage", fanouts=(4, 4), hidden=16, dropout=0.3, input_dropout=0.1, epochs=4, learning_rate=0.02, batch_size=16
)


@dataclass(frozen=True)
class Data:
    """Arguments of `train`."""

    topology: Topology
    rows: npt.NDArray[Any]
    labels: Labels
    splits: Splits
    degrees: NodeDegrees

    def features(self, cached: int = 0, **rest: Any) -> FeatureTiers:
        """New tiers that hold the first `cached` rows."""
        return FeatureTiers(self.rows, np.arange(cached), **rest)

    def with_adjacency_cache(self, cached: int) -> Data:
        """The same data with the first `cached` lists in the adjacency cache."""
        return replace(self, topology=cached_topology(self.topology.indptr, self.topology.indices, np.arange(cached)))

    def train(
        self, options: TrainOptions, *, cached: int = 0, tiers: dict[str, Any] | None = None, **rest: Any
    ) -> TrainResult:
        """Train on these data; `tiers` are further arguments of theirs."""
        arguments, features = {"num_classes": NUM_CLASSES, **rest}, self.features(cached, **(tiers or {}))
        return train(self.topology, features, self.labels, self.splits, self.degrees, options, **arguments)


def community_data(num_nodes: int = 300, *, seed: int = 0, dtype: npt.DTypeLike = np.float32) -> Data:
    """Communities with noisy features; a tenth of the nodes is unlabelled, some have no edges."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, NUM_CLASSES, num_nodes)
    members = [np.flatnonzero(labels == c) for c in range(NUM_CLASSES)]
    dst = rng.integers(5, num_nodes, num_nodes * 6)
    stays = rng.random(len(dst)) < 0.85
    src = np.where(stays, [rng.choice(members[labels[v]]) for v in dst], rng.integers(0, num_nodes, len(dst)))
    noise = rng.standard_normal((num_nodes, 8)) * 0.8
    rows = (np.eye(NUM_CLASSES, 8)[labels] + noise).astype(np.float32)
    if np.dtype(dtype) == np.uint8:
        rows = (rows > 0.5).astype(np.float32)
    known = labels.copy()
    known[rng.random(num_nodes) < 0.1] = -1
    nodes = rng.permutation(num_nodes)
    cuts = num_nodes // 2, num_nodes * 3 // 4
    splits = Splits(np.sort(nodes[: cuts[0]]), np.sort(nodes[cuts[0] : cuts[1]]), np.sort(nodes[cuts[1] :]))
    topology = Topology.in_memory(*csc_from_edges(num_nodes, src, dst))
    degrees = NodeDegrees(topology.in_degree(), np.bincount(topology.indices, minlength=num_nodes))
    return Data(topology, rows.astype(dtype), known, splits, degrees)


def with_many_labels(data: Data) -> Data:
    """The same nodes with a label for the class and one for each pair of neighboring classes; some are unknown."""
    rng, num_nodes = np.random.default_rng(1), len(data.labels)
    present = np.zeros((num_nodes, NUM_CLASSES), np.int8)
    for shift in (0, 1):
        present[np.arange(num_nodes), (data.labels + shift) % NUM_CLASSES] = 1
    present[rng.random(present.shape) < 0.05] = -1
    present[data.labels < 0] = -1
    return replace(data, labels=present)
