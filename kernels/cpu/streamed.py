"""Partial sums of aggregates whose source rows come in pieces: what exact inference out of core adds up."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.attention import exp_of_negative
from kernels.mfg import IdArray

F32Array = npt.NDArray[np.float32]
I32Array = npt.NDArray[np.int32]
I64Array = npt.NDArray[np.int64]
U16Array = npt.NDArray[np.uint16]
U64Array = npt.NDArray[np.uint64]
BoolArray = npt.NDArray[np.bool_]

F32, U64 = np.float32, np.uint64


@njit(nogil=True, cache=True)
def add_rows(
    slots: U16Array,
    targets: I32Array,
    rows: F32Array,
    width: int,
    columns: int,
    weight: F32Array,
    sums: F32Array,
) -> None:
    """`sums[d] += weight[s] * rows[s]` over edges (s -> d), in order.

    Parameters
    ----------
    slots : (E,) uint16
        Row of each edge's source.
    targets : (E,) int32
        Destination of each edge.
    rows : (n * width,) float32
    width, columns : int
        Of a row, and how many of its first columns count.
    weight : (n,) float32, or empty for ones
    sums : (D * columns,) float32
    """
    weighted = len(weight) > 0
    for e in range(len(slots)):
        s = np.int64(slots[e])
        source, target = U64(s * width), U64(np.int64(targets[e]) * columns)
        if weighted:
            w = weight[s]
            for j in range(U64(columns)):
                sums[target + U64(j)] += w * rows[source + U64(j)]
        else:
            for j in range(U64(columns)):
                sums[target + U64(j)] += rows[source + U64(j)]


@njit(nogil=True, cache=True)
def attend_rows_streamed(
    slots: U16Array,
    targets: I32Array,
    rows: F32Array,
    heads: int,
    dim: int,
    slope: np.float32,
    own_term: F32Array,
    greatest: F32Array,
    total: F32Array,
    sums: F32Array,
) -> None:
    """Softmax-weighted sums, edge by edge: where a greater score comes, what was added before is scaled down.

    Parameters
    ----------
    slots, targets
        As for `add_rows`.
    rows : (n * heads * (dim + 2),) float32
        Values, source terms, destination terms.
    own_term : (D * heads,) float32
        Destination terms of the destinations.
    greatest, total : (D * heads,) float32
        Greatest score so far (begin with minus infinity), and the sum of the weights (with zero).
    sums : (D * heads * dim,) float32
    """
    taken = heads * dim
    width = taken + 2 * heads
    for e in range(len(slots)):
        source, d = U64(np.int64(slots[e]) * width), np.int64(targets[e])
        for h in range(heads):
            at, row = U64(d * heads + h), U64(d * taken + h * dim)
            x = rows[source + U64(taken + h)] + own_term[at]
            x = max(x, slope * x)
            if x > greatest[at]:
                if greatest[at] > F32(-np.inf):
                    scale = exp_of_negative(greatest[at] - x)
                    total[at] *= scale
                    for o in range(U64(dim)):
                        sums[row + U64(o)] *= scale
                greatest[at] = x
            w = exp_of_negative(x - greatest[at])
            total[at] += w
            value = source + U64(h * dim)
            for o in range(U64(dim)):
                sums[row + U64(o)] += w * rows[value + U64(o)]


@njit(nogil=True, cache=True)
def count_by_window(slots: IdArray, shift: int, count_W: I64Array, mark_shift: int, marks: BoolArray) -> None:
    """Count edges by the window of `2**shift` slots that holds their source; mark the `2**mark_shift` slots around."""
    for slot in slots:
        count_W[slot >> shift] += 1
        marks[slot >> mark_shift] = True


@njit(nogil=True, cache=True)
def place_by_window(
    slots: IdArray, targets: I32Array, shift: int, cursor_W: I64Array, out_slots: U16Array, out_targets: I32Array
) -> None:
    """One step of a stable counting sort of edges by window.

    Parameters
    ----------
    slots, targets : (E,) integers, (E,) int32
    shift : int
        At most 16.
    cursor_W : (num_windows,) int64
        Where the next edge of each window goes; moved on.
    out_slots, out_targets : (all edges,) uint16, int32
        Slots within the window, and destinations.
    """
    mask = (1 << shift) - 1
    for e in range(len(slots)):
        window = slots[e] >> shift
        at = cursor_W[window]
        out_slots[at], out_targets[at] = slots[e] & mask, targets[e]
        cursor_W[window] = at + 1


@njit(nogil=True, cache=True)
def buffer_by_window(
    slots: IdArray,
    targets: I32Array,
    start: int,
    shift: int,
    buffer_W: I64Array,
    filled_W: I64Array,
    out_slots: U16Array,
    out_targets: I32Array,
) -> tuple[int, int]:
    """Append edges from `start` on to the buffers of their windows; (where it stopped, the window that is full or -1).

    Parameters
    ----------
    slots, targets : (E,) integers, (E,) int32
    start, shift : int
    buffer_W, filled_W : (num_windows,) int64
        Buffer of each window, and edges in it.
    out_slots, out_targets : (num_buffers, n) uint16, int32
    """
    mask, room = (1 << shift) - 1, out_slots.shape[1]
    for e in range(start, len(slots)):
        window = slots[e] >> shift
        at, buffer = filled_W[window], buffer_W[window]
        out_slots[buffer, at], out_targets[buffer, at] = slots[e] & mask, targets[e]
        filled_W[window] = at + 1
        if at + 1 == room:
            return e + 1, window
    return len(slots), -1
