"""Neighbor sampling: plan the rows, classify them, then fill full rows and drawn rows, each in one loop.

A planned row is the address of its list, whatever tier holds it, so the filling loops know no tiers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.draw import Shuffle, draw_rows, shuffle_rows
from kernels.cpu.intrinsics import copy_bytes, element, load, prefetch, prefetch_address, slot_of
from kernels.cpu.superbatch import classify_by_degree, full_limit
from kernels.mfg import IdArray, TierReads
from kernels.topology import Topology

I64Array = npt.NDArray[np.int64]
U64Array = npt.NDArray[np.uint64]

# Rows ahead whose offsets or lists are asked for, and edges drawn before the first of them is read: far enough to keep
# all of a core's outstanding misses busy, near enough to stay in L1 (measured: half as far costs a tenth to a third).
_ROWS_AHEAD = 32
_EDGES_AHEAD = 1024


def sample_neighbors(
    topology: Topology,
    uniq: IdArray,
    uniq_ptr: I64Array,
    fanout: int,
    *,
    stream_keys: U64Array,
    shuffle: Shuffle,
    replace: bool = False,
    edge_ids: bool = False,
) -> tuple[I64Array, IdArray, I64Array, TierReads]:
    """As `kernels.reference.sample_neighbors`, with a scratch `shuffle` that is left as it was."""
    address_U, degree_U, row_ptr, reads = _plan(topology, uniq, fanout, replace)
    classified, permutation, bound = classify_by_degree(uniq, uniq_ptr, degree_U, fanout, replace=replace)
    neighbors = np.empty(row_ptr[-1], topology.indices.dtype)
    ids = np.empty(len(neighbors) if edge_ids else 0, np.int64)
    size, target = neighbors.itemsize, np.uint64(neighbors.ctypes.data)
    _fill_full(uniq_ptr, bound, permutation, address_U, row_ptr, size, target)
    if edge_ids:
        _number_full(uniq_ptr, bound, uniq, permutation, topology.indptr, row_ptr, ids)
    if np.any(bound < uniq_ptr[1:]):
        _fill_drawn(
            uniq_ptr, bound, classified, permutation, address_U, degree_U, row_ptr,
            stream_keys, fanout, replace, shuffle, topology.indptr, neighbors, ids,
        )  # fmt: skip
    return row_ptr, neighbors, ids, reads


def _plan(
    topology: Topology, uniq: IdArray, fanout: int, replace: bool
) -> tuple[U64Array, I64Array, I64Array, TierReads]:
    """Address and degree of each row's list, offsets of its sampled edges, and what reading them costs."""
    address_U, degree_U = np.empty(len(uniq), np.uint64), np.empty(len(uniq), np.int64)
    row_ptr, reads = np.empty(len(uniq) + 1, np.int64), np.zeros(4, np.int64)
    bits, rank = (
        (np.empty(0, np.uint64), np.empty(0, np.uint32))
        if topology.cached is None
        else (topology.cached.bits, topology.cached.rank)
    )
    base = np.array([topology.indices.ctypes.data, topology.cached_indices.ctypes.data], np.uint64)
    size = topology.indices.itemsize
    limit = full_limit(fanout, replace)
    _plan_rows(
        topology.indptr, bits, rank, topology.cached_indptr, base, size,
        uniq, limit, fanout, address_U, degree_U, row_ptr, reads,
    )  # fmt: skip
    host_rows, device_rows, host_edges, device_edges = (int(count) for count in reads)
    return address_U, degree_U, row_ptr, TierReads(device_rows, host_rows, device_edges * size, host_edges * size)


@njit(nogil=True, cache=True)
def _plan_rows(
    indptr: I64Array,
    bits: U64Array,
    rank: npt.NDArray[np.uint32],
    cached_indptr: I64Array,
    base: U64Array,
    size: int,
    uniq: IdArray,
    limit: int,
    fanout: int,
    address_U: U64Array,
    degree_U: I64Array,
    row_ptr: I64Array,
    reads: I64Array,
) -> None:
    num_rows = len(uniq)
    total = np.int64(0)
    row_ptr[0] = 0
    for t in range(num_rows):
        prefetch(indptr, uniq[min(t + _ROWS_AHEAD, num_rows - 1)])
        slot = slot_of(bits, rank, uniq[t]) if len(bits) else np.int64(-1)
        tier = np.int64(slot >= 0)
        begin = cached_indptr[slot] if tier else indptr[uniq[t]]
        degree = (cached_indptr[slot + 1] if tier else indptr[uniq[t] + 1]) - begin
        count = degree if degree <= limit else np.int64(fanout)
        address_U[t] = base[tier] + np.uint64(begin * size)
        degree_U[t] = degree
        total += count
        row_ptr[t + 1] = total
        reads[tier] += 1
        reads[2 + tier] += count


@njit(nogil=True, cache=True)
def _fill_full(
    uniq_ptr: I64Array,
    bound: I64Array,
    permutation: I64Array,
    address_U: U64Array,
    row_ptr: I64Array,
    size: int,
    target: np.uint64,
) -> None:
    """Copy whole lists of ids of `size` bytes to their rows of the array at address `target`."""
    for batch in range(len(bound)):
        for c in range(uniq_ptr[batch], bound[batch]):
            ahead = permutation[min(c + _ROWS_AHEAD, bound[batch] - 1)]
            prefetch_address(address_U[ahead])
            prefetch_address(address_U[ahead] + np.uint64(size * (row_ptr[ahead + 1] - row_ptr[ahead])))
            t = permutation[c]
            num_bytes = size * (row_ptr[t + 1] - row_ptr[t])
            copy_bytes(target + np.uint64(size * row_ptr[t]), address_U[t], num_bytes)


@njit(nogil=True, cache=True)
def _number_full(
    uniq_ptr: I64Array,
    bound: I64Array,
    uniq: IdArray,
    permutation: I64Array,
    indptr: I64Array,
    row_ptr: I64Array,
    ids: I64Array,
) -> None:
    """Positions of whole lists in the graph's `indices`, whichever tier they were copied from."""
    for batch in range(len(bound)):
        for c in range(uniq_ptr[batch], bound[batch]):
            prefetch(indptr, uniq[permutation[min(c + _ROWS_AHEAD, bound[batch] - 1)]])
            t = permutation[c]
            begin = indptr[uniq[t]] - row_ptr[t]
            for e in range(row_ptr[t], row_ptr[t + 1]):
                ids[e] = begin + e


@njit(nogil=True, cache=True)
def _fill_drawn(
    uniq_ptr: I64Array,
    bound: I64Array,
    classified: IdArray,
    permutation: I64Array,
    address_U: U64Array,
    degree_U: I64Array,
    row_ptr: I64Array,
    stream_keys: U64Array,
    fanout: int,
    replace: bool,
    shuffle: Shuffle,
    indptr: I64Array,
    neighbors: IdArray,
    ids: I64Array,
) -> None:
    """Draw a chunk of rows, ask for their neighbors' cache lines, then read them; number their edges if asked to."""
    rows = max(1, _EDGES_AHEAD // fanout)
    draws, positions = np.empty(rows * fanout, np.int64), np.empty(rows * fanout, np.int64)
    degrees = np.empty(rows, np.int64)
    for batch in range(len(bound)):
        end = uniq_ptr[batch + 1]
        for first in range(bound[batch], end, rows):
            chunk = permutation[first : min(first + rows, end)]
            for row in range(len(chunk)):
                degrees[row] = degree_U[chunk[row]]
            nodes = classified[first : first + len(chunk)]
            draw_rows(stream_keys[batch], nodes, degrees, fanout, replace, draws)
            if replace:
                positions[:] = draws
            else:
                shuffle_rows(degrees[: len(chunk)], fanout, shuffle, draws, positions)
            _read_drawn(chunk, fanout, positions, address_U, row_ptr, neighbors)
            if len(ids):
                for row in range(len(chunk)):
                    at, begin = row_ptr[chunk[row]], indptr[nodes[row]]
                    for i in range(fanout):
                        ids[at + i] = begin + positions[row * fanout + i]


@njit(nogil=True, cache=True)
def _read_drawn(
    rows: I64Array, fanout: int, positions: I64Array, address_U: U64Array, row_ptr: I64Array, neighbors: IdArray
) -> None:
    at = 0
    for t in rows:
        for i in range(at, at + fanout):
            prefetch_address(element(address_U[t], positions[i], neighbors))
        at += fanout
    at = 0
    for t in rows:
        for i in range(fanout):
            neighbors[row_ptr[t] + i] = load(element(address_U[t], positions[at + i], neighbors), neighbors)
        at += fanout
