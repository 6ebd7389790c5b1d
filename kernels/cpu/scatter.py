"""Moving feature rows out of blocks: exact access counts, which rows to keep, and rows by byte address.

A row is bytes [v * row_bytes, (v + 1) * row_bytes) of its dataset: where it does not divide a block, its parts come
with two blocks (or more).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import copy_bytes, slot_of
from kernels.mfg import IdArray

I64Array = npt.NDArray[np.int64]
U8Array = npt.NDArray[np.uint8]
U16Array = npt.NDArray[np.uint16]
U64Array = npt.NDArray[np.uint64]
RankArray = npt.NDArray[np.uint32]

MOST_BATCHES = 2**16 - 1
"""Mini-batches that a count of 16 bits tells apart."""


@njit(nogil=True, cache=True)
def count_misses(ids: IdArray, bits: U64Array, rank: RankArray, count_N: U16Array) -> int:
    """Count one access of each id that a rank map (none where it is empty) does not hold; returns how many are new."""
    new = 0
    for v in ids:
        if len(bits) and slot_of(bits, rank, v) >= 0:
            continue
        new += count_N[v] == 0
        count_N[v] += 1
    return new


@njit(nogil=True, cache=True)
def histogram(count_N: U16Array, most: int) -> I64Array:
    """(most + 1,) how many nodes have each count."""
    out = np.zeros(most + 1, np.int64)
    for v in range(len(count_N)):
        out[count_N[v]] += 1
    return out


@njit(nogil=True, cache=True)
def select(count_N: U16Array, threshold: int, num_at_threshold: int, out: I64Array) -> int:
    """Ids with a count above `threshold`, and the first so many of those at it, ascending; returns their number."""
    end = 0
    for v in range(len(count_N)):
        if count_N[v] > threshold or (count_N[v] == threshold and num_at_threshold > 0):
            num_at_threshold -= count_N[v] == threshold
            if end == len(out):
                return end
            out[end] = v
            end += 1
    return end


@njit(nogil=True, cache=True)
def mark_blocks(count_N: U16Array, row_bytes: int, block_bytes: int, marked_B: npt.NDArray[np.bool_]) -> None:
    """Mark the blocks that hold a part of a counted row."""
    for v in range(len(count_N)):
        if count_N[v]:
            for block in range(v * row_bytes // block_bytes, ((v + 1) * row_bytes - 1) // block_bytes + 1):
                marked_B[block] = True


@njit(nogil=True, cache=True)
def fill_rows(data: U8Array, first_byte: int, ids: I64Array, row_bytes: int, out: U8Array) -> None:
    """Copy what a block holds of the rows `ids` (strictly ascending) to their places in the flat `out`."""
    last_byte = first_byte + len(data)
    base, target = np.uint64(data.ctypes.data), np.uint64(out.ctypes.data)
    i = np.searchsorted(ids, first_byte // row_bytes)
    while i < len(ids) and ids[i] * row_bytes < last_byte:
        row = ids[i] * row_bytes
        begin, end = max(row, first_byte), min(row + row_bytes, last_byte)
        copy_bytes(target + np.uint64(i * row_bytes + begin - row), base + np.uint64(begin - first_byte), end - begin)
        i += 1


@njit(nogil=True, cache=True)
def append_rows(
    data: U8Array,
    first_byte: int,
    ids: IdArray,
    row_bytes: int,
    cursor_H: I64Array,
    end_H: I64Array,
    done_H: I64Array,
    buffers: npt.NDArray[Any],
    buffer_H: I64Array,
    filled_H: I64Array,
    batch: int,
) -> int:
    """Append what a block holds of each mini-batch's rows to its buffer, from `batch` on, until a buffer is full.

    Blocks come in ascending order, every one that holds a part of a row among them.

    Parameters
    ----------
    data : (m,) uint8
        The block: bytes from `first_byte` on.
    ids : (n,) ids
        Rows of each mini-batch, strictly ascending, one mini-batch after the other.
    cursor_H, end_H : (H,) int64
        Next row of each mini-batch, and where its rows end.
    done_H : (H,) int64
        Bytes of the next row that were appended already.
    buffers : (n, w) uint8
    buffer_H, filled_H : (H,) int64
        Buffer of each mini-batch, and the bytes in it.
    batch : int
        Where to begin.

    Returns
    -------
    int
        The mini-batch whose buffer is full (go on with it), or H: all are served.
    """
    last_byte, width = first_byte + len(data), buffers.shape[1]
    base, target = np.uint64(data.ctypes.data), np.uint64(buffers.ctypes.data)
    while batch < len(cursor_H):
        while cursor_H[batch] < end_H[batch]:
            row = np.int64(ids[cursor_H[batch]]) * row_bytes
            begin = row + done_H[batch]
            if begin >= last_byte:
                break
            if filled_H[batch] == width:
                return batch
            count = min(min(row + row_bytes, last_byte) - begin, width - filled_H[batch])
            to = target + np.uint64(buffer_H[batch] * width + filled_H[batch])
            copy_bytes(to, base + np.uint64(begin - first_byte), count)
            filled_H[batch] += count
            done_H[batch] += count
            if done_H[batch] == row_bytes:
                done_H[batch] = 0
                cursor_H[batch] += 1
        batch += 1
    return batch


@njit(nogil=True, cache=True)
def locate(
    ids: IdArray,
    bits: U64Array,
    rank: RankArray,
    cache_bits: U64Array,
    cache_rank: RankArray,
    tier_n: U8Array,
    slot_n: I64Array,
    cold: I64Array,
) -> int:
    """Tier (0 device, 1 cache, 2 own) and slot of each row; positions of the own ones, whose slots are left open."""
    num_cold = 0
    for i in range(len(ids)):
        slot = slot_of(bits, rank, ids[i]) if len(bits) else np.int64(-1)
        tier = 0
        if slot < 0:
            slot = slot_of(cache_bits, cache_rank, ids[i]) if len(cache_bits) else np.int64(-1)
            tier = 1
        if slot < 0:
            tier = 2
            cold[num_cold] = i
            num_cold += 1
        tier_n[i], slot_n[i] = tier, slot
    return num_cold


@njit(nogil=True, cache=True)
def sum_words(words: U64Array) -> np.uint64:
    """Sum of the words, weighted by odd numbers, modulo 2**64: any flipped byte or swapped words change it."""
    total, weight = np.uint64(0), np.uint64(1)
    for i in range(len(words)):
        total += words[i] * weight
        weight += np.uint64(2)
    return total
