"""The workloads that cache policies are compared on: graphs, training nodes, batch sizes, seeds, fixed before tuning.

Five graphs with independent sampling, three public ones (from GARDEN_DATA) and two power-law ones, and three workloads
that drift. On these, interval, gamma and share of a dynamic cache may be chosen from the first fifth alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from kernels.topology import Topology
from storage.cache.drift import Segment, moving_community, time_ordered
from storage.formats.demo import DemoEdges, keyed_order
from storage.formats.planetoid_pickle import load_pickle
from tests.drifts import next_snapshot
from tests.graphs import csc_from_edges, power_law_graph

DATA = Path(os.environ.get("GARDEN_DATA", "data"))
FANOUTS = (5, 10, 15)
BUDGETS = (0.05, 0.10, 0.20)
"""Shares of all feature rows (feature cache), or of all rows and lists (both caches)."""
SEEDS = (0, 1, 2)
PROFILE_EPOCHS, HELDOUT_EPOCHS, TRAIN_EPOCHS = 4, 100, 3
"""Epochs that choose; that rank the static oracle; that are measured, for each seed."""
SPLIT_SEED = 11
FIRST_FIFTH = 0.2


@dataclass(frozen=True, slots=True)
class Workload:
    """One graph with everything that decides the accesses."""

    name: str
    topology: Topology
    train_nodes: IdArray
    batch_size: int
    row_bytes: int


def _drawn_train(num_nodes: int, share: float) -> IdArray:
    order: IdArray = np.random.default_rng(SPLIT_SEED).permutation(num_nodes)
    order[: round(share * num_nodes)].sort()
    return order[: round(share * num_nodes)]


def _undirected(num_nodes: int, ends: npt.NDArray[np.int64]) -> Topology:
    """Both directions of every edge once, self loops left out."""
    both = np.concatenate([ends, ends[:, ::-1]])
    both = both[both[:, 0] != both[:, 1]]
    codes = np.unique(both[:, 0] * num_nodes + both[:, 1])
    return Topology.in_memory(*csc_from_edges(num_nodes, codes // num_nodes, codes % num_nodes))


def pubmed() -> Workload:
    """All nodes that are neither validated (500) nor tested (1000) on; 500 float32 features a node."""
    graph = load_pickle(DATA / "pubmed" / "ind.pubmed.graph")
    ends = np.array([(v, u) for v, neighbors in graph.items() for u in neighbors], np.int64)
    num_nodes = len(graph)
    test = np.loadtxt(DATA / "pubmed" / "ind.pubmed.test.index", np.int64)
    outside = np.union1d(test, np.arange(60, 560))
    return Workload("pubmed", _undirected(num_nodes, ends), np.setdiff1d(np.arange(num_nodes), outside), 100, 2000)


def musae_facebook() -> Workload:
    """A drawn 60 % of the nodes; 128 float32 features a node."""
    ends = np.loadtxt(DATA / "musae-facebook" / "facebook_edges.csv", np.int64, delimiter=",", skiprows=1)
    num_nodes = int(ends.max()) + 1
    return Workload("musae_facebook", _undirected(num_nodes, ends), _drawn_train(num_nodes, 0.6), 100, 512)


def email_enron() -> Workload:
    """A drawn 60 % of the nodes; 100 float32 features a node."""
    ends = np.loadtxt(DATA / "snap-email-enron" / "email-Enron.txt", np.int64, comments="#")
    num_nodes = int(ends.max()) + 1
    return Workload("email_enron", _undirected(num_nodes, ends), _drawn_train(num_nodes, 0.6), 100, 400)


def power_law_300k() -> Workload:
    """300k nodes, 4.3M edges, a tenth to train on; 100 float32 features a node."""
    topology = Topology.in_memory(*power_law_graph(300_000, 4_300_000, seed=3))
    return Workload("power_law_300k", topology, _drawn_train(300_000, 0.1), 1000, 400)


def power_law_3m() -> Workload:
    """3M nodes, 43M edges, a tenth to train on; 100 float32 features a node."""
    topology = Topology.in_memory(*power_law_graph(3_000_000, 43_000_000, seed=4))
    return Workload("power_law_3m", topology, _drawn_train(3_000_000, 0.1), 8000, 400)


GRAPHS: dict[str, Callable[[], Workload]] = {
    make.__name__: make for make in (pubmed, musae_facebook, email_enron, power_law_300k, power_law_3m)
}


@dataclass(frozen=True, slots=True)
class DriftWorkload:
    """Segments in order; 400-byte rows."""

    name: str
    segments: tuple[Segment, ...]
    row_bytes: int = 400


def time_order() -> DriftWorkload:
    """200k nodes that cite earlier ones: 7 of 10 recent ones, 3 of 10 old favourites; all are seeds as they arrive."""
    num_nodes, degree, rng = 200_000, 10, np.random.default_rng(21)
    dst = np.repeat(np.arange(1, num_nodes), degree)
    recent = dst - 1 - rng.exponential(num_nodes / 50, len(dst)).astype(np.int64)
    favourite = (dst * rng.random(len(dst)) ** 3).astype(np.int64)
    src = np.where(rng.random(len(dst)) < 0.7, recent, favourite)
    src = np.where(src < 0, favourite, src)
    topology = Topology.in_memory(*csc_from_edges(num_nodes, src, dst))
    nodes = np.arange(num_nodes)
    return DriftWorkload("time_order", (Segment(topology, time_ordered(nodes, nodes, 200)),))


def community() -> DriftWorkload:
    """300k nodes and 4.3M edges in 64 communities, nine edges of ten within one; 8 of them are trained on at a time."""
    num_nodes, classes = 300_000, 64
    rank_of_node_N = keyed_order(num_nodes, 22, 0)
    node_of_rank_N = np.argsort(rank_of_node_N, kind="stable").astype(np.int32)
    edges = DemoEdges(num_nodes, 4_300_000, classes, 2.3, 0.9, 22, node_of_rank_N)
    src, dst = (np.concatenate(ends) for ends in zip(*edges.chunks(), strict=True))
    topology = Topology.in_memory(*csc_from_edges(num_nodes, src, dst))
    train, community_N = _drawn_train(num_nodes, 0.2), rank_of_node_N.astype(np.int64) % classes
    batches = moving_community(train, community_N, 200, 1000, width=8, seed=23)
    return DriftWorkload("moving_community", (Segment(topology, batches),))


def snapshots() -> DriftWorkload:
    """Five snapshots of 300k nodes and 4.3M edges: a fifth of the nodes change places from one to the next."""
    num_nodes, per_snapshot = 300_000, 100
    topology = Topology.in_memory(*power_law_graph(num_nodes, 4_300_000, seed=24))
    train, rng, segments = _drawn_train(num_nodes, 0.2), np.random.default_rng(25), []
    for number in range(5):
        seeds = rng.permutation(train)[: 300 * per_snapshot]
        segments.append(Segment(topology, np.split(seeds, per_snapshot)))
        topology = next_snapshot(topology, 0.2, seed=100 + number)
    return DriftWorkload("next_snapshot", tuple(segments))


DRIFTS: dict[str, Callable[[], DriftWorkload]] = {
    "time_order": time_order,
    "moving_community": community,
    "next_snapshot": snapshots,
}
DRIFT_BUDGETS = (0.05, 0.10)
"""Shares of all feature rows."""
