"""What accesses to expect from the graph alone: inclusion probabilities hop by hop, and counts drawn toward them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from kernels.cpu.inclusion import absence_after_hop
from kernels.cpu.shrink import NUM_BINS, shrink, shrink_statistics
from kernels.mfg import IdArray
from kernels.topology import Topology
from storage.blocks.stored_topology import StoredTopology

FloatArray = npt.NDArray[np.float32]
CountArray = npt.NDArray[np.integer]

_PIECE_NODES, _PIECE_EDGES = 1 << 16, 1 << 18
_MOST_INT64 = 2.0**62

SMOOTHED_UNIT = 256
"""Smoothed counts are integers in parts of one access, so that all comparisons stay exact."""


def expected_accesses(
    topology: Topology | StoredTopology, train_nodes: IdArray, fanouts: Sequence[int], batch_size: int, *, replace: bool
) -> tuple[FloatArray, FloatArray]:
    """Accesses to expect of one epoch, from the graph alone (Quiver, Tan et al. 2023).

    A mini-batch holds v as a seed with probability p; a hop adds it unless no destination u samples it:
    `p'(v) = 1 - (1 - p(v)) * prod over u reached from v of (1 - p(u) * min(1, k / deg u))`. Nodes are taken to be in a
    mini-batch independently of each other, which they are not: an estimate, good to a few percent.

    Parameters
    ----------
    topology, train_nodes, fanouts, batch_size, replace
        What will be sampled.

    Returns
    -------
    feature_N, adjacency_N : (N,) float32
        Expected accesses to each node's features, and reads of its list, in one epoch.

    Notes
    -----
    Takes 12 bytes a node, results included.
    """
    num_nodes = topology.num_nodes
    num_batches = -(-len(train_nodes) // batch_size)
    inclusion_N, adjacency_N = np.zeros(num_nodes, np.float32), np.zeros(num_nodes, np.float32)
    inclusion_N[train_nodes] = 1 / max(1, num_batches)
    for fanout in reversed(fanouts):
        adjacency_N += inclusion_N
        log_absence_N = np.minimum(inclusion_N, np.float32(1 - 1e-7))
        np.log1p(np.negative(log_absence_N, out=log_absence_N), out=log_absence_N)
        for inclusion_U, indptr, indices in _lists(topology, inclusion_N):
            absence_after_hop(indptr, indices, inclusion_U, fanout, replace, log_absence_N)
        inclusion_N = np.negative(np.expm1(log_absence_N, out=log_absence_N), out=log_absence_N)
        del log_absence_N
    inclusion_N *= num_batches
    adjacency_N *= num_batches
    return inclusion_N, adjacency_N


def _lists(
    topology: Topology | StoredTopology, inclusion_N: FloatArray
) -> Iterator[tuple[FloatArray, npt.NDArray[np.int64], IdArray]]:
    """Adjacency lists in ascending order, with the inclusion of their nodes: from disk some at a time, no needless one.

    Yields
    ------
    inclusion_U, indptr, indices
        Of some nodes: their inclusion, offsets and neighbors.
    """
    if isinstance(topology, Topology):
        yield inclusion_N, topology.indptr, topology.indices
        return
    for start in range(0, topology.num_nodes, _PIECE_NODES):
        nodes = (start + np.flatnonzero(inclusion_N[start : start + _PIECE_NODES])).astype(topology.id_dtype)
        begin, degree = topology.lists(nodes)
        ends = np.cumsum(degree)
        first = 0
        while first < len(nodes):
            done = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, done + _PIECE_EDGES, side="right")))
            indptr = np.concatenate([[0], ends[first:last] - done])
            yield inclusion_N[nodes[first:last]], indptr, topology.read_lists(begin[first:last], degree[first:last])
            first = last


def smoothed_counts(count_N: CountArray, expected_N: FloatArray, epochs: int, most_an_epoch: int) -> CountArray:
    """Counts drawn toward their expectation: few epochs then rank rarely read nodes as many would.

    How far is decided by the counts themselves, for each order of magnitude of the expectation: where they scatter
    about it no more than chance does, the expectation is taken; where they differ from it by more, they are.

    Parameters
    ----------
    count_N : (N,) int32 or int64
        Accesses counted in `epochs` epochs.
    expected_N : (N,) float32
        Those expected in one. Beside int32 counts the result takes its place in memory.
    epochs : int
    most_an_epoch : int
        The largest count that an epoch can give.

    Returns
    -------
    (N,) as `count_N`
        In parts of 1/`SMOOTHED_UNIT` of an access.
    """
    is_narrow = count_N.dtype == np.int32
    bias_B, spread_B = np.empty(NUM_BINS), np.empty(NUM_BINS)
    out_N = expected_N.view(np.int32) if is_narrow else np.empty(len(count_N), np.int64)
    judged = (epochs, float(max(1, epochs * most_an_epoch)), bias_B, spread_B)
    shrink_statistics(count_N, expected_N, *judged)
    most_out = float(np.iinfo(np.int32).max) if is_narrow else _MOST_INT64
    for first in range(0, len(count_N), _PIECE_NODES):
        piece = slice(first, first + _PIECE_NODES)
        # A copy of the expectation: the result may lie where it lay.
        shrink(count_N[piece], expected_N[piece].copy(), *judged, SMOOTHED_UNIT, most_out, out_N[piece])
    return out_N
