"""Sampling from adjacency lists that lie in blocks: which blocks hold a row's neighbors, and filling from one block.

Positions are drawn from a row's identity alone, so each visit of a row draws the same ones and takes those that its
block holds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.draw import Shuffle, draw_rows, shuffle_rows
from kernels.mfg import IdArray

I64Array = npt.NDArray[np.int64]
U64Array = npt.NDArray[np.uint64]


@njit(nogil=True, cache=True)
def _draw_row(
    t: int,
    key: np.uint64,
    uniq: IdArray,
    degree_U: I64Array,
    fanout: int,
    replace: bool,
    shuffle: Shuffle,
    draws: I64Array,
    positions: I64Array,
) -> None:
    draw_rows(key, uniq[t : t + 1], degree_U[t : t + 1], fanout, replace, draws)
    if replace:
        positions[:] = draws
    else:
        shuffle_rows(degree_U[t : t + 1], fanout, shuffle, draws, positions)


@njit(nogil=True, cache=True)
def _most_drawn(begin_U: I64Array, degree_U: I64Array, limit: int, fanout: int) -> int:
    """Draws of one row at most: a fanout beyond every list takes no memory."""
    for t in range(len(degree_U)):
        if begin_U[t] >= 0 and degree_U[t] > limit:
            return fanout
    return 1


@njit(nogil=True, cache=True)
def bucket_rows(
    uniq: IdArray,
    uniq_ptr: I64Array,
    begin_U: I64Array,
    degree_U: I64Array,
    limit: int,
    fanout: int,
    stream_keys: U64Array,
    replace: bool,
    shuffle: Shuffle,
    block_size: int,
    count_B: I64Array,
    rows: I64Array,
) -> None:
    """Sort rows by the blocks that hold what is sampled of them: the bucket matrix of AGNES, sparse.

    Called with no `rows`, it counts the entries of each block in `count_B[block + 1]`. Called again with the running
    sums of these counts in `count_B`, it puts each row where it belongs and leaves in `count_B[block]` the end of
    each block's rows. Rows of a negative `begin_U` are left out: they lie elsewhere.

    Parameters
    ----------
    uniq, uniq_ptr : (U,) ids, (K + 1,) int64
    begin_U, degree_U : (U,) int64
        Where each list begins in the dataset, and its length.
    limit, fanout : int
        Lists up to `limit` are taken whole.
    stream_keys : (K,) uint64
    block_size : int
        Entries a block.
    count_B : (num_blocks + 1,) int64
    rows : (n,) int64
        Output, or empty.
    """
    most = _most_drawn(begin_U, degree_U, limit, fanout)
    draws, positions, seen = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    placing = len(rows) > 0
    for batch in range(len(uniq_ptr) - 1):
        for t in range(uniq_ptr[batch], uniq_ptr[batch + 1]):
            if begin_U[t] < 0 or degree_U[t] == 0:
                continue
            first = begin_U[t] // block_size
            last = (begin_U[t] + degree_U[t] - 1) // block_size
            if degree_U[t] <= limit or first == last:
                for block in range(first, last + 1):
                    if placing:
                        rows[count_B[block]] = t
                        count_B[block] += 1
                    else:
                        count_B[block + 1] += 1
                continue
            _draw_row(t, stream_keys[batch], uniq, degree_U, fanout, replace, shuffle, draws, positions)
            num_seen = 0
            for i in range(fanout):
                block = (begin_U[t] + positions[i]) // block_size
                is_new = True
                for j in range(num_seen):
                    if seen[j] == block:
                        is_new = False
                        break
                if is_new:
                    seen[num_seen] = block
                    num_seen += 1
                    if placing:
                        rows[count_B[block]] = t
                        count_B[block] += 1
                    else:
                        count_B[block + 1] += 1


@njit(nogil=True, cache=True)
def fill_from_block(
    rows: I64Array,
    data: IdArray,
    first_entry: int,
    uniq: IdArray,
    uniq_ptr: I64Array,
    begin_U: I64Array,
    degree_U: I64Array,
    row_ptr: I64Array,
    limit: int,
    fanout: int,
    stream_keys: U64Array,
    replace: bool,
    shuffle: Shuffle,
    lowest: int,
    end: int,
    out: IdArray,
    ids: I64Array,
) -> np.int64:
    """Fill what one block holds of its rows; returns the position of a value outside [lowest, end), or -1.

    Parameters
    ----------
    rows : (n,) int64
        Rows of the block, ascending.
    data : (m,) ids
        The block: entries from `first_entry` on.
    row_ptr : (U + 1,) int64
        Where each row's neighbors go in `out`.
    out : (row_ptr[-1],) ids
        Output.
    ids : (row_ptr[-1],) int64, or empty
        Output: positions of the neighbors in the dataset.
    """
    most = _most_drawn(begin_U, degree_U, limit, fanout)
    draws, positions = np.empty(most, np.int64), np.empty(most, np.int64)
    last_entry = first_entry + len(data)
    numbered = len(ids) > 0
    batch = 0
    for t in rows:
        at = row_ptr[t]
        if degree_U[t] <= limit:
            begin = max(begin_U[t], first_entry)
            for e in range(begin, min(begin_U[t] + degree_U[t], last_entry)):
                value = data[e - first_entry]
                if value < lowest or value >= end:
                    return np.int64(e)
                out[at + e - begin_U[t]] = value
                if numbered:
                    ids[at + e - begin_U[t]] = e
            continue
        while t >= uniq_ptr[batch + 1]:
            batch += 1
        _draw_row(t, stream_keys[batch], uniq, degree_U, fanout, replace, shuffle, draws, positions)
        for i in range(fanout):
            e = begin_U[t] + positions[i]
            if e < first_entry or e >= last_entry:
                continue
            value = data[e - first_entry]
            if value < lowest or value >= end:
                return np.int64(e)
            out[at + i] = value
            if numbered:
                ids[at + i] = e
    return np.int64(-1)


@njit(nogil=True, cache=True)
def draw_entries(
    rows: I64Array,
    uniq: IdArray,
    uniq_ptr: I64Array,
    begin_U: I64Array,
    degree_U: I64Array,
    fanout: int,
    stream_keys: U64Array,
    replace: bool,
    shuffle: Shuffle,
    entries: I64Array,
) -> None:
    """Positions in the dataset of what is drawn of some rows, whose lists are longer than `shuffle` or drawn from
    with replacement: `fanout` of each, row after row.

    Parameters
    ----------
    rows : (n,) int64
        Ascending.
    entries : (n * fanout,) int64
        Output; others as for `bucket_rows`.
    """
    batch = 0
    for k in range(len(rows)):
        t = rows[k]
        while t >= uniq_ptr[batch + 1]:
            batch += 1
        own = entries[k * fanout : (k + 1) * fanout]
        # Drawn in place: of a long row a second array would be what takes most memory.
        _draw_row(t, stream_keys[batch], uniq, degree_U, fanout, replace, shuffle, own, own)
        for i in range(fanout):
            own[i] += begin_U[t]


@njit(nogil=True, cache=True)
def fill_entries(
    order: I64Array,
    entries: I64Array,
    data: IdArray,
    first_entry: int,
    rows: I64Array,
    fanout: int,
    row_ptr: I64Array,
    lowest: int,
    end: int,
    out: IdArray,
    ids: I64Array,
) -> np.int64:
    """Fill what one block holds of what `draw_entries` drew; returns as `fill_from_block`.

    Parameters
    ----------
    order : (m,) int64
        Numbers of the entries that the block holds.
    entries, rows, fanout
        As `draw_entries` had them.
    data, first_entry, row_ptr, lowest, end, out, ids
        As for `fill_from_block`.
    """
    numbered = len(ids) > 0
    for number in order:
        e = entries[number]
        value = data[e - first_entry]
        if value < lowest or value >= end:
            return np.int64(e)
        at = row_ptr[rows[number // fanout]] + number % fanout
        out[at] = value
        if numbered:
            ids[at] = e
    return np.int64(-1)
