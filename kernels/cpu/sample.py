"""Neighbor sampling, the CPU body: locate the lists, classify, then fill full rows and drawn rows each in one loop."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import child, multiply_high, slot_of
from kernels.cpu.superbatch import classify_by_degree
from kernels.mfg import IdArray, TierReads
from kernels.topology import Topology

# Lists up to this length are shuffled in a scratch array that is put back after each row; longer ones through a hash.
SHUFFLE_SLOTS = 4096
_AHEAD = 16


def locate_rows(topology: Topology, nodes: IdArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """As `kernels.reference.locate_rows`."""
    begin_U, degree_U = np.empty(len(nodes), np.int64), np.empty(len(nodes), np.int64)
    if topology.cached is None:
        _locate(topology.indptr, nodes, begin_U, degree_U)
    else:
        cached = topology.cached
        _locate_tiers(topology.indptr, topology.cached_indptr, cached.bits, cached.rank, nodes, begin_U, degree_U)
    return begin_U, degree_U


@njit(nogil=True, cache=True)
def _locate(
    indptr: npt.NDArray[np.int64], nodes: IdArray, begin_U: npt.NDArray[np.int64], degree_U: npt.NDArray[np.int64]
) -> None:
    for t in range(len(nodes)):
        v = nodes[t]
        begin_U[t] = indptr[v]
        degree_U[t] = indptr[v + 1] - indptr[v]


@njit(nogil=True, cache=True)
def _locate_tiers(
    indptr: npt.NDArray[np.int64],
    cached_indptr: npt.NDArray[np.int64],
    bits: npt.NDArray[np.uint64],
    rank: npt.NDArray[np.uint32],
    nodes: IdArray,
    begin_U: npt.NDArray[np.int64],
    degree_U: npt.NDArray[np.int64],
) -> None:
    for t in range(len(nodes)):
        v = nodes[t]
        slot = slot_of(bits, rank, v)
        if slot >= 0:
            begin_U[t] = ~cached_indptr[slot]
            degree_U[t] = cached_indptr[slot + 1] - cached_indptr[slot]
        else:
            begin_U[t] = indptr[v]
            degree_U[t] = indptr[v + 1] - indptr[v]


def sample_neighbors(
    topology: Topology,
    uniq: IdArray,
    uniq_ptr: npt.NDArray[np.int64],
    fanout: int,
    *,
    stream_keys: npt.NDArray[np.uint64],
    replace: bool = False,
) -> tuple[npt.NDArray[np.int64], IdArray, TierReads]:
    """As `kernels.reference.sample_neighbors`."""
    begin_U, degree_U = locate_rows(topology, uniq)
    classified, permutation, bound = classify_by_degree(uniq, uniq_ptr, degree_U, fanout, replace=replace)
    row_ptr = np.empty(len(uniq) + 1, np.int64)
    reads = np.zeros(4, np.int64)
    _offsets(begin_U, degree_U, fanout, replace, row_ptr, reads)
    neighbors = np.empty(row_ptr[-1], topology.indices.dtype)
    indices, cached = topology.indices, topology.cached_indices
    _copy_full(indices, cached, uniq_ptr, permutation, bound, begin_U, row_ptr, neighbors)
    if fanout >= 0:
        _fill_drawn(
            indices, cached, uniq_ptr, classified, permutation, bound, begin_U, degree_U, row_ptr,
            fanout, replace, stream_keys, np.arange(SHUFFLE_SLOTS), neighbors,
        )  # fmt: skip
    size = neighbors.itemsize
    tiers = TierReads(int(reads[0]), int(reads[1]), int(reads[2]) * size, int(reads[3]) * size)
    return row_ptr, neighbors, tiers


@njit(nogil=True, cache=True)
def _offsets(
    begin_U: npt.NDArray[np.int64],
    degree_U: npt.NDArray[np.int64],
    fanout: int,
    replace: bool,
    row_ptr: npt.NDArray[np.int64],
    reads: npt.NDArray[np.int64],
) -> None:
    total = np.int64(0)
    row_ptr[0] = 0
    for t in range(len(begin_U)):
        degree = degree_U[t]
        count = degree
        if fanout >= 0 and (degree > fanout or (replace and degree > 0)):
            count = np.int64(fanout)
        total += count
        row_ptr[t + 1] = total
        tier = 0 if begin_U[t] < 0 else 1
        reads[tier] += 1
        reads[2 + tier] += count


@njit(nogil=True, cache=True)
def _copy_full(indices, cached, uniq_ptr, permutation, bound, begin_U, row_ptr, neighbors):
    for batch in range(len(bound)):
        for c in range(uniq_ptr[batch], bound[batch]):
            t = permutation[c]
            out = row_ptr[t]
            begin = begin_U[t]
            if begin >= 0:
                for e in range(row_ptr[t + 1] - out):
                    neighbors[out + e] = indices[begin + e]
            else:
                for e in range(row_ptr[t + 1] - out):
                    neighbors[out + e] = cached[~begin + e]


@njit(nogil=True, cache=True)
def _fill_drawn(
    indices, cached, uniq_ptr, classified, permutation, bound, begin_U, degree_U, row_ptr,
    fanout, replace, stream_keys, shuffle, neighbors,
):  # fmt: skip
    positions = np.empty(fanout, np.int64)
    for batch in range(len(bound)):
        for c in range(bound[batch], uniq_ptr[batch + 1]):
            t = permutation[c]
            key = child(stream_keys[batch], np.uint64(classified[c]))
            degree = degree_U[t]
            if replace:
                for i in range(fanout):
                    positions[i] = multiply_high(child(key, np.uint64(i)), np.uint64(degree))
            elif degree <= len(shuffle):
                _draw_shuffled(key, degree, shuffle, positions)
            else:
                _draw_traced(key, degree, positions)
            begin = begin_U[t]
            out = row_ptr[t]
            if begin >= 0:
                for i in range(fanout):
                    neighbors[out + i] = indices[begin + positions[i]]
            else:
                for i in range(fanout):
                    neighbors[out + i] = cached[~begin + positions[i]]


@njit(nogil=True, cache=True)
def _draw_shuffled(key, degree, shuffle, positions):
    """Partial Fisher-Yates on an identity array, which is put back."""
    k = len(positions)
    for i in range(k):
        j = i + np.int64(multiply_high(child(key, np.uint64(i)), np.uint64(degree - i)))
        positions[i] = shuffle[j]
        shuffle[j] = shuffle[i]
        shuffle[i] = j  # where to undo: position i is not drawn again
    for i in range(k - 1, -1, -1):
        j = shuffle[i]
        shuffle[i] = i
        shuffle[j] = j


@njit(nogil=True, cache=True)
def _draw_traced(key, degree, positions):
    k = len(positions)
    draws = np.empty(k, np.int64)
    for i in range(k):
        draws[i] = i + np.int64(multiply_high(child(key, np.uint64(i)), np.uint64(degree - i)))
        p = draws[i]
        for t in range(i - 1, -1, -1):
            if p == draws[t]:
                p = np.int64(t)
        positions[i] = p
