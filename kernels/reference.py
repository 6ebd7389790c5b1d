"""The sampling ops as the papers read, in plain NumPy: slow, and what every fast body must equal to the integer.

Letters in names: U unique nodes of all K batches in a row, K batches, N nodes. A pointer array has one more entry.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray, Mfg, Sample, TierReads
from kernels.rng import Purpose, bounded, child, stream_key
from kernels.topology import Topology

I64Array = npt.NDArray[np.int64]


def unique_per_batch(nodes: IdArray, batch_ptr: I64Array) -> tuple[IdArray, I64Array, I64Array]:
    """Unique nodes of each batch, in order of first appearance.

    Batches do not share nodes: the paper's "exactly once in the super-batch" would correlate their samples.

    Parameters
    ----------
    nodes : (n,) int32 or int64
        The batches one after the other.
    batch_ptr : (K + 1,) int64

    Returns
    -------
    uniq : (U,) ids
    uniq_ptr : (K + 1,) int64
    inverse : (n,) int64
        Position of each node among the unique ones of its own batch.
    """
    uniq: Any = [nodes[:0]]  # NumPy's types do not follow an id's width
    uniq_ptr, inverse = [0], [np.empty(0, np.int64)]
    for start, end in itertools.pairwise(batch_ptr):
        ids, first, batch_inverse = np.unique(nodes[start:end], return_index=True, return_inverse=True)
        order = np.argsort(first)
        uniq.append(ids[order])
        uniq_ptr.append(uniq_ptr[-1] + len(ids))
        inverse.append(np.argsort(order)[batch_inverse])
    return np.concatenate(uniq), np.array(uniq_ptr, np.int64), np.concatenate(inverse)


def is_full(degree_U: I64Array, fanout: int, *, replace: bool = False) -> npt.NDArray[np.bool_]:
    """Which nodes keep their lists as they are: nothing is drawn for them."""
    if fanout < 0:
        return np.ones(len(degree_U), np.bool_)
    return degree_U <= (0 if replace else fanout)


def classify_by_degree(
    uniq: IdArray, uniq_ptr: I64Array, degree_U: I64Array, fanout: int, *, replace: bool = False
) -> tuple[IdArray, I64Array, I64Array]:
    """Order each batch as full nodes, then random nodes, without comparing or counting across threads.

    Source: GARDEN §IV-D, Algorithm 1, corrected: the scan has U + 1 entries, line 3 runs over the unique nodes, and the
    boundary of lines 12 and 21 is absolute (the paper leaves out the batch's offset).

    Parameters
    ----------
    uniq : (U,) ids
    uniq_ptr : (K + 1,) int64
    degree_U : (U,) int64
    fanout : int
        -1 for all neighbors.
    replace : bool

    Returns
    -------
    classified : (U,) ids
    permutation : (U,) int64
        Row of `uniq` that each entry of `classified` came from, where its edges belong.
    bound : (K,) int64
        Index of the first random node of each batch in `classified`.
    """
    flag = is_full(degree_U, fanout, replace=replace)
    scan = np.concatenate([[0], np.cumsum(flag)])
    bound = uniq_ptr[:-1] + scan[uniq_ptr[1:]] - scan[uniq_ptr[:-1]]
    classified, permutation = np.empty_like(uniq), np.empty(len(uniq), np.int64)
    for t in range(len(uniq)):
        batch = np.searchsorted(uniq_ptr, t, side="right") - 1
        start = uniq_ptr[batch]
        rank = scan[t] - scan[start]
        out = start + rank if flag[t] else bound[batch] + (t - start - rank)
        classified[out] = uniq[t]
        permutation[out] = t
    return classified, permutation, bound


def draw_positions(row_key: np.uint64, degree: int, fanout: int, *, replace: bool = False) -> I64Array:
    """Positions of `fanout` neighbors in a list of `degree`, uniform; without replacement `degree` must be greater.

    Without replacement they are the front of a Fisher-Yates shuffle of 0..degree-1 that swaps position i with j_i,
    uniform in [i, degree). What stands at j_i is traced back through the earlier swaps: no array of that length.
    """
    i = np.arange(fanout, dtype=np.uint64)
    low = np.zeros_like(i) if replace else i
    bits = child(np.asarray(row_key)[None], i)
    draws = (low + bounded(bits, np.uint64(degree) - low)).astype(np.int64)
    return draws if replace else np.array([_trace_back(draws, step) for step in range(fanout)], np.int64)


def _trace_back(draws: I64Array, step: int) -> int:
    position = int(draws[step])
    for earlier in range(step - 1, -1, -1):
        if position == draws[earlier]:
            position = earlier
    return position


def neighbor_list(topology: Topology, node: int) -> tuple[IdArray, bool]:
    """A node's list from the tier that holds it, and whether that is the adjacency cache."""
    slot = -1 if topology.cached is None else int(topology.cached.slots(np.array([node], np.int64))[0])
    if slot >= 0:
        return topology.cached_indices[topology.cached_indptr[slot] : topology.cached_indptr[slot + 1]], True
    return topology.indices[topology.indptr[node] : topology.indptr[node + 1]], False


def sample_neighbors(
    topology: Topology,
    uniq: IdArray,
    uniq_ptr: I64Array,
    fanout: int,
    *,
    stream_keys: npt.NDArray[np.uint64],
    replace: bool = False,
    edge_ids: bool = False,
) -> tuple[I64Array, IdArray, I64Array, TierReads]:
    """Sampled neighbors of every node, walking the classified order.

    Parameters
    ----------
    topology : Topology
    uniq : (U,) ids
    uniq_ptr : (K + 1,) int64
    fanout : int
        -1 for all neighbors.
    stream_keys : (K,) uint64
        Stream of each batch at this hop.
    replace : bool

    Returns
    -------
    row_ptr : (U + 1,) int64
        Offsets of each node's neighbors, in the order of `uniq`.
    neighbors : (row_ptr[-1],) ids
        Adjacency order for full nodes, draw order for random ones.
    reads : TierReads
        One list a node, and the bytes of the ids read.
    """
    degree_U = np.diff(topology.indptr)[uniq]
    classified, permutation, bound = classify_by_degree(uniq, uniq_ptr, degree_U, fanout, replace=replace)
    rows: list[IdArray] = [topology.indices[:0]] * len(uniq)
    ids: list[I64Array] = [np.empty(0, np.int64)] * len(uniq)
    reads = TierReads()
    for c in range(len(classified)):
        batch = np.searchsorted(uniq_ptr, c, side="right") - 1
        row, from_cache = neighbor_list(topology, int(classified[c]))
        if c < bound[batch]:
            positions = np.arange(len(row))
        else:
            row_key = child(stream_keys[batch, None], classified[c, None].astype(np.uint64))[0]
            positions = draw_positions(row_key, len(row), fanout, replace=replace)
        row = row[positions]
        rows[permutation[c]], ids[permutation[c]] = row, topology.indptr[classified[c]] + positions
        reads.add(TierReads(1, 0, row.nbytes, 0) if from_cache else TierReads(0, 1, 0, row.nbytes))
    row_ptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    numbers = np.concatenate([np.empty(0, np.int64), *(ids if edge_ids else [])])
    return row_ptr, np.concatenate([topology.indices[:0], *rows]), numbers, reads


def relabel(
    uniq: IdArray, uniq_ptr: I64Array, neighbors: IdArray, edge_ptr: I64Array
) -> tuple[IdArray, I64Array, npt.NDArray[np.int32]]:
    """Number each batch's sources: its destinations first, then neighbors by first appearance.

    Parameters
    ----------
    uniq, uniq_ptr : (U,) ids, (K + 1,) int64
        Destinations.
    neighbors, edge_ptr : (num_edges,) ids, (K + 1,) int64
        Sampled neighbors and where each batch's begin.

    Returns
    -------
    src : ids
        Sources of all batches.
    src_ptr : (K + 1,) int64
    local : (num_edges,) int32
        Position of each neighbor among the sources of its own batch.
    """
    num_batches = len(uniq_ptr) - 1
    parts = [
        part
        for i in range(num_batches)
        for part in (uniq[uniq_ptr[i] : uniq_ptr[i + 1]], neighbors[edge_ptr[i] : edge_ptr[i + 1]])
    ]
    src, src_ptr, inverse = unique_per_batch(np.concatenate([uniq[:0], *parts]), uniq_ptr + edge_ptr)
    is_neighbor = np.repeat(np.arange(len(parts)) % 2 == 1, [len(part) for part in parts])
    return src, src_ptr, inverse[is_neighbor].astype(np.int32)


def sample_batch(
    topology: Topology,
    seeds: IdArray,
    fanouts: Sequence[int],
    *,
    seed: int,
    purpose: Purpose,
    epoch: int,
    batch_index: int,
    replace: bool = False,
) -> Sample:
    """One mini-batch by itself, with neither super-batch nor classifier: what any grouping of batches must give.

    Parameters are those of `kernels.sampler.NeighborSampler` and its `sample`.
    """
    local = {node: i for i, node in enumerate(dict.fromkeys(seeds.tolist()))}
    seed_inverse = np.array([local[node] for node in seeds.tolist()], np.int64)
    num_seed_rows, hops = len(local), []
    for hop, fanout in enumerate(reversed(fanouts)):
        key = stream_key(purpose, seed, epoch, batch_index, hop)
        rows = [_sampled_row(topology, node, fanout, key, replace) for node in local]
        indices = [local.setdefault(node, len(local)) for row in rows for node in row.tolist()]
        indptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        hops.append(Mfg(indptr, np.array(indices, np.int32), len(local)))
    input_nodes: Any = np.array(list(local), topology.indices.dtype)
    return Sample(batch_index, tuple(hops), input_nodes, seed_inverse, num_seed_rows)


def _sampled_row(topology: Topology, node: int, fanout: int, key: np.uint64, replace: bool) -> IdArray:
    row, _ = neighbor_list(topology, node)
    if is_full(np.array([len(row)]), fanout, replace=replace)[0]:
        return row
    row_key = child(np.asarray(key)[None], np.array([node], np.uint64))[0]
    return row[draw_positions(row_key, len(row), fanout, replace=replace)]


def gather_rows(
    tiers: Sequence[npt.NDArray[Any]], tier_n: npt.NDArray[np.uint8], slot_n: I64Array, out: npt.NDArray[Any]
) -> None:
    """Copy row `slot_n[i]` of tier `tier_n[i]` to `out[i]`, for every i."""
    for i, (tier, slot) in enumerate(zip(tier_n, slot_n, strict=True)):
        out[i] = tiers[tier][slot]


def count_accesses(counts_N: I64Array, ids: IdArray) -> None:
    """Add one to `counts_N[v]` for every `v` in `ids`, repeats included, in place."""
    np.add.at(counts_N, ids, 1)
