"""Attention over a message-flow graph in numba: softmax over each destination's edges, weighted sum, and gradients.

A row holds `heads * dim` values that neighbors take, then the source term and the destination term of each head's score
(Veličković et al., ICLR 2018, eq. 3: the score's inner product splits into a part of each end). Each output row is the
work of one thread in stored order, so the bits do not depend on how rows are shared among threads.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.dropout import LANE_BITS, LANE_RANGE, LANES
from kernels.cpu.intrinsics import child, power_of_two, prefetch

F32Array = npt.NDArray[np.float32]
I32Array = npt.NDArray[np.int32]
I64Array = npt.NDArray[np.int64]

F32, U64 = np.float32, np.uint64

_AHEAD = 8
"""Edges ahead whose rows are asked for."""
_LINE_FLOATS = 16
_LANE_MASK = U64(LANE_RANGE - 1)

_LOG2_E = F32(1.44269504)
# ln 2 in two parts, the first exact in float32 (Cody and Waite).
_LN2_HIGH, _LN2_LOW = F32(0.693359375), F32(-2.12194440e-4)
_LOWEST = F32(-87.0)
_HALF, _ONE = F32(0.5), F32(1)
_C6, _C5, _C4, _C3 = F32(1.9875691e-4), F32(1.3981999e-3), F32(8.3334519e-3), F32(4.1665796e-2)
_C2, _C1 = F32(1.6666665e-1), F32(0.5)


@njit(nogil=True, cache=True, inline="always")
def exp_of_negative(x: np.float32) -> np.float32:
    """`exp(x)` of x <= 0 to two units in the last place, free of branches and calls (polynomial of Cephes' expf)."""
    x = max(x, _LOWEST)
    n = np.int32(x * _LOG2_E - _HALF)
    r = x - F32(n) * _LN2_HIGH - F32(n) * _LN2_LOW
    p = ((((_C6 * r + _C5) * r + _C4) * r + _C3) * r + _C2) * r + _C1
    result: np.float32 = (p * r * r + r + _ONE) * power_of_two(n)
    return result


@njit(nogil=True, cache=True, inline="always")
def factor_of(key: np.uint64, threshold: int, scale: np.float32, position: int) -> np.float32:
    """What dropout multiplies element `position` by, as `kernels.cpu.dropout` draws it."""
    bits = child(key, U64(position // LANES)) >> U64(LANE_BITS * (position % LANES))
    return scale if bits & _LANE_MASK >= U64(threshold) else F32(0)


@njit(nogil=True, cache=True)
def attend_rows(
    indptr: I64Array,
    indices: I32Array,
    z: F32Array,
    heads: int,
    dim: int,
    slope: np.float32,
    key: np.uint64,
    threshold: int,
    alpha: F32Array,
    out: F32Array,
    begin: int,
    end: int,
) -> None:
    """Fill rows [begin, end) of `out[d, h] = sum over the edges (s -> d) of alpha[e, h] * z[s, h]`.

    `alpha` is the softmax over the edges of d of `leaky(source term of s + destination term of d)`.

    Parameters
    ----------
    indptr, indices : (num_dst + 1,) int64, (num_edges,) int32
    z : (num_src * (heads * dim + 2 * heads),) float32
    heads, dim : int
    slope : float32
        Of the leaky ReLU for negative scores.
    key, threshold : uint64, int
        Attention dropout as in `kernels.cpu.dropout.drop_elements`; a threshold of 0 drops nothing.
    alpha : (num_edges * heads,) float32
        Output: attention before dropout.
    out : (num_dst * heads * dim,) float32
    """
    taken = heads * dim
    width = taken + 2 * heads
    keep = F32(LANE_RANGE / (LANE_RANGE - threshold))
    weight = np.empty(heads, np.float32)
    for d in range(begin, end):
        first, stop = indptr[d], indptr[d + 1]
        for e in range(first + _AHEAD, min(stop + _AHEAD, len(indices))):
            start = np.int64(indices[e]) * width
            for column in range(0, width, _LINE_FLOATS):
                prefetch(z, start + column)
        _softmax(indices, z, width, taken, heads, slope, d, first, stop, alpha)
        row = U64(d * taken)
        for column in range(U64(taken)):
            out[row + U64(column)] = 0
        for e in range(first, stop):
            for h in range(heads):
                weight[h] = alpha[e * heads + h]
            if threshold:
                for h in range(heads):
                    weight[h] *= factor_of(key, threshold, keep, e * heads + h)
            source = U64(np.int64(indices[e]) * width)
            for h in range(heads):
                w, at = weight[h], U64(h * dim)
                for o in range(U64(dim)):
                    j = at + U64(o)
                    out[row + j] += w * z[source + j]


@njit(nogil=True, cache=True, inline="always")
def _softmax(
    indices: I32Array,
    z: F32Array,
    width: int,
    taken: int,
    heads: int,
    slope: np.float32,
    d: int,
    first: int,
    stop: int,
    alpha: F32Array,
) -> None:
    """Scores of one destination's edges, shifted by their greatest, exponentiated and normalised, head by head."""
    own = d * width + taken + heads
    for e in range(first, stop):
        term = np.int64(indices[e]) * width + taken
        for h in range(heads):
            x = z[U64(term + h)] + z[U64(own + h)]
            alpha[U64(e * heads + h)] = max(x, slope * x)
    for h in range(heads):
        greatest = F32(-np.inf)
        for e in range(first, stop):
            greatest = max(greatest, alpha[U64(e * heads + h)])
        for e in range(first, stop):
            alpha[U64(e * heads + h)] -= greatest
    for at in range(U64(first * heads), U64(stop * heads)):
        alpha[at] = exp_of_negative(alpha[at])
    for h in range(heads):
        total = F32(0)
        for e in range(first, stop):
            total += alpha[U64(e * heads + h)]
        share = _ONE / total if stop > first else _ONE
        for e in range(first, stop):
            alpha[U64(e * heads + h)] *= share


# Sums of products may be reassociated into vectors: the order is the compiler's, the same whatever the thread count.
@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def score_gradients(
    indptr: I64Array,
    indices: I32Array,
    z: F32Array,
    heads: int,
    dim: int,
    slope: np.float32,
    key: np.uint64,
    threshold: int,
    alpha: F32Array,
    grad: F32Array,
    score_grad: F32Array,
    own_grad: F32Array,
    begin: int,
    end: int,
) -> None:
    """Gradients of the scores of the edges of rows [begin, end), and their sum for each destination.

    Parameters
    ----------
    indptr, indices, z, heads, dim, slope, key, threshold, alpha
        As `attend_rows` took and left them.
    grad : (num_dst * heads * dim,) float32
        Gradient of its output.
    score_grad : (num_edges * heads,) float32
        Output: gradient of each edge's sum of terms.
    own_grad : (num_dst * heads,) float32
        Output: gradient of the destination terms.
    """
    taken = heads * dim
    width = taken + 2 * heads
    keep = F32(LANE_RANGE / (LANE_RANGE - threshold))
    mean = np.empty(heads, np.float32)
    for d in range(begin, end):
        mean[:] = 0
        row, first, stop = U64(d * taken), indptr[d], indptr[d + 1]
        for e in range(first + _AHEAD, min(stop + _AHEAD, len(indices))):
            start = np.int64(indices[e]) * width
            for column in range(0, width, _LINE_FLOATS):
                prefetch(z, start + column)
        for e in range(first, stop):
            source = U64(np.int64(indices[e]) * width)
            for h in range(heads):
                at, product = U64(h * dim), F32(0)
                for o in range(U64(dim)):
                    j = at + U64(o)
                    product += grad[row + j] * z[source + j]
                if threshold:
                    product *= factor_of(key, threshold, keep, e * heads + h)
                score_grad[e * heads + h] = product
                mean[h] += alpha[e * heads + h] * product
        own = d * width + taken + heads
        for h in range(heads):
            own_grad[d * heads + h] = 0
        for e in range(first, stop):
            term = np.int64(indices[e]) * width + taken
            for h in range(heads):
                at_eh = U64(e * heads + h)
                value = alpha[at_eh] * (score_grad[at_eh] - mean[h])
                value *= _ONE if z[U64(term + h)] + z[U64(own + h)] > 0 else slope
                score_grad[at_eh] = value
                own_grad[U64(d * heads + h)] += value


@njit(nogil=True, cache=True)
def source_gradients(
    indptr: I64Array,
    targets: I32Array,
    edges: I32Array,
    heads: int,
    dim: int,
    key: np.uint64,
    threshold: int,
    alpha: F32Array,
    grad: F32Array,
    score_grad: F32Array,
    own_grad: F32Array,
    z_grad: F32Array,
    begin: int,
    end: int,
) -> None:
    """Fill rows [begin, end) of the gradient of `z`.

    Parameters
    ----------
    indptr, targets, edges : (num_src + 1,) int64, (num_edges,) int32, (num_edges,) int32
        The transposed hop: destination and position of each source's edges.
    heads, dim, key, threshold, alpha, grad, score_grad, own_grad
        As in `score_gradients`.
    z_grad : (num_src * (heads * dim + 2 * heads),) float32
        Output.
    """
    taken = heads * dim
    width = taken + 2 * heads
    keep = F32(LANE_RANGE / (LANE_RANGE - threshold))
    for s in range(begin, end):
        row = U64(s * width)
        for column in range(U64(width)):
            z_grad[row + U64(column)] = 0
        for i in range(indptr[s] + _AHEAD, min(indptr[s + 1] + _AHEAD, len(targets))):
            start = np.int64(targets[i]) * taken
            for column in range(0, taken, _LINE_FLOATS):
                prefetch(grad, start + column)
            prefetch(alpha, np.int64(edges[i]) * heads)
            prefetch(score_grad, np.int64(edges[i]) * heads)
        for i in range(indptr[s], indptr[s + 1]):
            target, edge = U64(np.int64(targets[i]) * taken), int(edges[i]) * heads
            for h in range(heads):
                w, at = alpha[U64(edge + h)], U64(h * dim)
                if threshold:
                    w *= factor_of(key, threshold, keep, edge + h)
                for o in range(U64(dim)):
                    j = at + U64(o)
                    z_grad[row + j] += w * grad[target + j]
            for h in range(heads):
                z_grad[row + U64(taken + h)] += score_grad[U64(edge + h)]
        if s * heads < len(own_grad):
            for h in range(heads):
                z_grad[row + U64(taken + heads + h)] = own_grad[s * heads + h]
