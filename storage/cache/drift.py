"""Seeds and graphs that move while training goes on: what is hot today is not what was hot before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from kernels.topology import Topology


@dataclass(frozen=True, slots=True)
class Segment:
    """Mini-batches of seeds, in order, and the graph that they are sampled on."""

    topology: Topology
    """Adjacency; all segments of a workload have the same nodes."""
    batches: Sequence[IdArray]
    """Seeds of each mini-batch."""


def time_ordered(train_nodes: IdArray, time_N: npt.NDArray[np.integer], batch_size: int) -> list[IdArray]:
    """Mini-batches of the seeds as they arrive: once through the training nodes by time, ties by id.

    Parameters
    ----------
    train_nodes : (n,) integer
    time_N : (N,) integer
        When each node arrived.
    batch_size : int
        Seeds a mini-batch; the last may hold fewer.

    Returns
    -------
    list of (<= batch_size,) arrays
    """
    by_id: Any = np.sort(train_nodes)
    nodes = by_id[np.argsort(time_N[by_id], kind="stable")]
    return [nodes[first : first + batch_size] for first in range(0, len(nodes), batch_size)]


def moving_community(
    train_nodes: IdArray,
    community_N: npt.NDArray[np.integer],
    batch_size: int,
    num_batches: int,
    *,
    width: int,
    seed: int,
) -> list[IdArray]:
    """Mini-batches of seeds from a few communities at a time, a window that moves once through all of them.

    Parameters
    ----------
    train_nodes : (n,) integer
    community_N : (N,) integer
        Community of each node, in [0, C).
    batch_size, num_batches : int
    width : int
        Communities in the window; their order is that of their numbers, and those without a training node are skipped.
    seed : int

    Returns
    -------
    list of (batch_size,) arrays
        Drawn with replacement where the window holds fewer nodes than a mini-batch.

    Raises
    ------
    ValueError
        If there are no training nodes.
    """
    if not len(train_nodes):
        raise ValueError("no training nodes")
    rng = np.random.default_rng(seed)
    nodes = train_nodes[np.argsort(community_N[train_nodes], kind="stable")]
    first_C = np.append(np.unique(community_N[nodes], return_index=True)[1], len(nodes))
    num_communities = len(first_C) - 1
    last_window = max(0, num_communities - width)
    batches = []
    for number in range(num_batches):
        begin = round(last_window * number / max(1, num_batches - 1))
        window = nodes[first_C[begin] : first_C[min(begin + width, num_communities)]]
        batches.append(rng.choice(window, batch_size, replace=len(window) < batch_size))
    return batches
