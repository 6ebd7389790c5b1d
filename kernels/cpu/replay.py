"""Replays of recorded accesses: a fixed set, a set beside the previous batch, and the clairvoyant choice."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.mfg import IdArray

I64Array = npt.NDArray[np.int64]


@njit(nogil=True, cache=True)
def static_hits(nodes: IdArray, batch_ptr: I64Array, is_cached_N: npt.NDArray[np.bool_], hits_B: I64Array) -> None:
    """Hits of each mini-batch in a set of nodes that never changes.

    Parameters
    ----------
    nodes : (A,) int32 or int64
        Accesses of all mini-batches, one after another.
    batch_ptr : (B + 1,) int64
    is_cached_N : (N,) bool
    hits_B : (B,) int64
        Receives the hits.
    """
    for b in range(len(batch_ptr) - 1):
        hits = 0
        for i in range(batch_ptr[b], batch_ptr[b + 1]):
            hits += is_cached_N[nodes[i]]
        hits_B[b] = hits


@njit(nogil=True, cache=True)
def previous_batch_hits(
    nodes: IdArray,
    batch_ptr: I64Array,
    is_cached_N: npt.NDArray[np.bool_],
    kept_rows: int,
    last_N: I64Array,
    hits_B: I64Array,
) -> None:
    """As `static_hits`, where the first `kept_rows` rows of the previous mini-batch serve too (FastGL).

    `last_N` : (N,) int64 scratch, -1 everywhere: receives the mini-batch that last kept each node.
    """
    for b in range(len(batch_ptr) - 1):
        hits = 0
        for i in range(batch_ptr[b], batch_ptr[b + 1]):
            v = nodes[i]
            hits += is_cached_N[v] or (b > 0 and last_N[v] == b - 1)
        # Only now: the rows of this batch replace those of the previous one when it is done.
        kept = 0
        for i in range(batch_ptr[b], batch_ptr[b + 1]):
            v = nodes[i]
            if kept < kept_rows and not is_cached_N[v]:
                last_N[v] = b
                kept += 1
        hits_B[b] = hits


@njit(nogil=True, cache=True)
def belady_hits(
    nodes: IdArray, batch_ptr: I64Array, num_nodes: int, capacity: int, first_counted: int, hits_B: I64Array
) -> None:
    """Most hits that any choice of contents between mini-batches can have: Belady's MIN with bypass, equal sizes.

    Between two uses a row is worth keeping or not; what is kept at once must fit. Keeping those whose next use is
    nearest is optimal (interval scheduling by earliest end), and of those with one next use it does not matter which,
    so numbers suffice: no identity is kept. Before the first mini-batch the contents are free to choose.

    Parameters
    ----------
    nodes : (A,) int32 or int64
        No node twice within a mini-batch.
    batch_ptr : (B + 1,) int64
    num_nodes, capacity : int
    first_counted : int
        Contents before this mini-batch are free: earlier ones have no hits.
    hits_B : (B,) int64
        Receives the hits.
    """
    num_batches = len(batch_ptr) - 1
    next_use_N = np.full(num_nodes, num_batches, np.int64)
    next_use = np.empty(batch_ptr[num_batches] - batch_ptr[first_counted], np.int32)
    begin = batch_ptr[first_counted]
    for b in range(num_batches - 1, first_counted - 1, -1):
        for i in range(batch_ptr[b], batch_ptr[b + 1]):
            next_use[i - begin] = next_use_N[nodes[i]]
            next_use_N[nodes[i]] = b
    kept = np.zeros(num_batches + 1, np.int64)
    total, farthest = 0, 0
    for v in range(num_nodes):
        if next_use_N[v] < num_batches:
            kept[next_use_N[v]] += 1
            total += 1
    farthest = num_batches - 1
    for b in range(num_batches):
        hits_B[b] = 0
        if b < first_counted:
            continue
        while total > capacity:
            dropped = min(kept[farthest], total - capacity)
            kept[farthest] -= dropped
            total -= dropped
            if kept[farthest] == 0:
                farthest -= 1
        hits_B[b] = kept[b]
        total -= kept[b]
        kept[b] = 0
        for i in range(batch_ptr[b], batch_ptr[b + 1]):
            j = next_use[i - begin]
            if j < num_batches:
                kept[j] += 1
                total += 1
                farthest = max(farthest, j)


@njit(nogil=True, cache=True)
def space_time_bound(
    nodes: IdArray,
    batch_ptr: I64Array,
    num_dst_BH: I64Array,
    size_N: I64Array,
    capacity_bytes: int,
    first_counted: int,
) -> float:
    """No choice of adjacency lists between mini-batches serves more requests than this (PFOO-U).

    Berger, Beckmann and Harchol-Balter (SIGMETRICS 2018): the capacity need only hold on average over time, so the
    reuses that take the least bytes times mini-batches for a request are all kept. They are counted in bins of their
    cost, each at its bin's least cost, which can only raise the bound.

    Parameters
    ----------
    nodes, batch_ptr
        As for `belady_hits`.
    num_dst_BH : (B, H) int64
        Destinations of each hop: the first so many of the mini-batch's nodes, each one a request.
    size_N : (N,) int64
        Bytes of each list.
    capacity_bytes, first_counted : int

    Returns
    -------
    float
        Requests.
    """
    num_batches = len(batch_ptr) - 1
    last_N = np.full(len(size_N), first_counted - 1, np.int64)
    requests_of_bin = np.zeros(4096, np.float64)
    cost_of_bin = np.zeros(4096, np.float64)
    for b in range(first_counted, num_batches):
        most = 0
        for hop in range(num_dst_BH.shape[1]):
            most = max(most, num_dst_BH[b, hop])
        for i in range(most):
            v = nodes[batch_ptr[b] + i]
            requests = 0
            for hop in range(num_dst_BH.shape[1]):
                requests += i < num_dst_BH[b, hop]
            # The boundaries before which it is held; contents before the first mini-batch are free to choose.
            held = float(size_N[v]) * (b - last_N[v])
            cost_bin = min(4095, max(0, int(np.floor(np.log2(held / requests) * 64)) + 1024))
            requests_of_bin[cost_bin] += requests
            cost_of_bin[cost_bin] += requests * 2.0 ** ((cost_bin - 1024) / 64)
            last_N[v] = b
    room, served = float(capacity_bytes) * (num_batches - first_counted), 0.0
    for cost_bin in range(4096):
        if cost_of_bin[cost_bin] > room:
            return float(served + requests_of_bin[cost_bin] * room / cost_of_bin[cost_bin])
        room -= cost_of_bin[cost_bin]
        served += requests_of_bin[cost_bin]
    return float(served)
