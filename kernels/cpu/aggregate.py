"""Segment sums over a message-flow graph in numba: the CPU body of `aggregate`.

Each output row adds its edges in stored order, one feature at a time, so the bits never depend on how rows are shared
among threads. Matrices come flattened and are indexed with unsigned words: numba then proves far fewer checks necessary
in the inner loop, which is up to four times faster for narrow rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import feature, prefetch_address, row_at

FloatArray = npt.NDArray[np.float32] | npt.NDArray[np.float64]

U64 = np.uint64

_UNROLL = U64(4)
# Edges ahead of the sum whose rows are asked for; measured best of 0, 4, 8, 16 for rows of 64 and of 128 floats.
_AHEAD = U64(16)
_LINE_BYTES = 64
_WIDE = 32
"""Rows narrower than this come faster without asking."""


@njit(nogil=True, cache=True)
def sum_rows(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    base: np.uint64,
    stride: int,
    address_S: npt.NDArray[np.uint64],
    stored: npt.NDArray[Any],
    weight_S: FloatArray,
    scale_D: FloatArray,
    own_D: FloatArray,
    own_from: int,
    own_to: int,
    out: FloatArray,
    out_width: int,
    width: int,
    begin: int,
    end: int,
) -> None:
    """Fill rows [begin, end) of `out[d] = scale[d] * sum over the edges (s -> d) of weight[s] * h[s]`, own row added.

    One long function on purpose: handing arrays to inlined helpers costs 10 ns an edge in reference counts. Rows are
    read through addresses, so that they may lie in one matrix or in the tiers of a feature store.

    Parameters
    ----------
    indptr : (num_dst + 1,) int64
    indices : (num_edges,) int32
    base, stride : uint64, int
        Address of the first row and bytes from row to row, where all rows lie in one matrix.
    address_S : (num_src,) uint64, or empty for rows in one matrix
        Address of each row.
    stored : empty array
        Its dtype says how elements are stored: float32, float64, uint8, or uint16 for the bits of float16.
    weight_S : (num_src,) or empty for ones
    scale_D : (num_dst,) or empty for ones
    own_D : (n,)
        `out[d, own_to + j] += own[d] * h[d, own_from + j]` for d < n; empty adds nothing.
    own_from, own_to : int
        Columns.
    out : (num_dst * out_width,)
        Float32 or float64, as weights, scales and factors are.
    out_width : int
        At least `width`; other columns are zero but for the own row.
    width : int
        Columns to add up.
    """
    tiered, weighted, scaled = address_S.size > 0, weight_S.size > 0, scale_D.size > 0
    w0 = w1 = w2 = w3 = out.dtype.type(1)
    columns, row_bytes = U64(width), U64(stride)
    last_ahead = U64(indices.size if width >= _WIDE else 0)
    line_bytes = width * stored.itemsize
    for d in range(begin, end):
        row = U64(d) * U64(out_width)
        for column in range(U64(out_width)):
            out[row + U64(column)] = 0
        e, stop = U64(indptr[d]), U64(indptr[d + 1])
        # Four edges a pass, added in order: the output row is touched a quarter as often.
        while e + _UNROLL <= stop:
            for ahead in range(e + _AHEAD, min(e + _AHEAD + _UNROLL, last_ahead)):
                s0 = U64(indices[U64(ahead)])
                start = address_S[s0] if tiered else base + s0 * row_bytes
                for byte in range(0, line_bytes, _LINE_BYTES):
                    prefetch_address(start + U64(byte))
            s0, s1 = U64(indices[e]), U64(indices[e + U64(1)])
            s2, s3 = U64(indices[e + U64(2)]), U64(indices[e + U64(3)])
            h0 = row_at(address_S[s0] if tiered else base + s0 * row_bytes, stored)
            h1 = row_at(address_S[s1] if tiered else base + s1 * row_bytes, stored)
            h2 = row_at(address_S[s2] if tiered else base + s2 * row_bytes, stored)
            h3 = row_at(address_S[s3] if tiered else base + s3 * row_bytes, stored)
            if weighted:
                w0, w1, w2, w3 = weight_S[s0], weight_S[s1], weight_S[s2], weight_S[s3]
            for column in range(columns):
                j = U64(column)
                part = (out[row + j] + w0 * feature(h0, j, out)) + w1 * feature(h1, j, out)
                out[row + j] = (part + w2 * feature(h2, j, out)) + w3 * feature(h3, j, out)
            e += _UNROLL
        while e < stop:
            s0 = U64(indices[e])
            h0 = row_at(address_S[s0] if tiered else base + s0 * row_bytes, stored)
            if weighted:
                w0 = weight_S[s0]
            for column in range(columns):
                out[row + U64(column)] += w0 * feature(h0, U64(column), out)
            e += U64(1)
        if scaled:
            for column in range(columns):
                out[row + U64(column)] *= scale_D[d]
        if d < own_D.size:
            own, to, start = own_D[d], row + U64(own_to), U64(own_from)
            h0 = row_at(address_S[d] if tiered else base + U64(d) * row_bytes, stored)
            for column in range(columns):
                out[to + U64(column)] += own * feature(h0, start + U64(column), out)


@njit(nogil=True, cache=True)
def transpose(
    indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.int32], num_src: int, with_edges: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """List the destinations of each source: a stable counting sort of the edges by source.

    Returns
    -------
    (num_src + 1,) int64 offsets, (num_edges,) int32 destinations, ascending within a source, and where `with_edges`
    asks for them (else empty) the (num_edges,) int32 positions of their edges.
    """
    out_indptr = np.zeros(num_src + 1, np.int64)
    for s in indices:
        out_indptr[s + 1] += 1
    for s in range(num_src):
        out_indptr[s + 1] += out_indptr[s]
    cursor = out_indptr[:-1].copy()
    out_indices = np.empty(indices.size, np.int32)
    out_edges = np.empty(indices.size if with_edges else 0, np.int32)
    for d in range(indptr.size - 1):
        for e in range(indptr[d], indptr[d + 1]):
            at = cursor[indices[e]]
            out_indices[at] = d
            if with_edges:
                out_edges[at] = e
            cursor[indices[e]] = at + 1
    return out_indptr, out_indices, out_edges
