"""Graphs that change with time, for tests and benchmarks of caches."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.topology import Topology


def next_snapshot(topology: Topology, moved_share: float, *, seed: int) -> Topology:
    """The graph some time later: some nodes have changed places, so that other ones are popular.

    Parameters
    ----------
    topology : Topology
    moved_share : float
        Share of the nodes that change places with each other, lists and mentions both.
    seed : int

    Returns
    -------
    Topology
        As many nodes and edges, without an adjacency cache.
    """
    rng = np.random.default_rng(seed)
    moved = rng.permutation(topology.num_nodes)[: round(moved_share * topology.num_nodes)]
    new_of_old_N = np.arange(topology.num_nodes)
    new_of_old_N[moved] = rng.permutation(moved)
    old_of_new_N = np.argsort(new_of_old_N, kind="stable")
    degree_N = topology.in_degree()[old_of_new_N]
    indptr = np.concatenate([[0], np.cumsum(degree_N)])
    position = np.arange(topology.num_edges) - np.repeat(indptr[:-1] - topology.indptr[:-1][old_of_new_N], degree_N)
    indices: Any = new_of_old_N[topology.indices[position]].astype(topology.indices.dtype)
    return Topology.in_memory(indptr, indices)
