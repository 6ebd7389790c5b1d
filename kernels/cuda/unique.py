"""Unique nodes of each batch by first appearance, through a hash table on the device."""

from __future__ import annotations

import numpy as np

from kernels.cuda.launch import Array, Launcher, exclusive_sum, launch
from kernels.cuda.source import Kernel, c_type
from kernels.mfg import SampleTooLargeError

_EMPTY = np.uint64(2**64 - 1)
_NEVER = np.uint32(2**32 - 1)
_MOST_ENTRIES = 2**30
MOST_BATCHES = 2**15
"""Batches of a super-batch whose number fits the key of a table beside a node of 48 bits."""


def unique_nodes(
    launcher: Launcher,
    uniq: Array,
    uniq_ptr: Array,
    neighbors: Array,
    edge_ptr: Array,
    capacity: int,
    *,
    with_inverse: bool = False,
) -> tuple[Array, Array, Array, Array]:
    """Number the nodes of each batch, which is its part of `uniq` followed by its part of `neighbors`.

    How many there are is known to the device alone. Memory: 24 to 48 bytes of table an entry, 12 of scratch.

    Parameters
    ----------
    launcher : Launcher
    uniq, uniq_ptr : ids, (K + 1,) int64
    neighbors, edge_ptr : ids, (K + 1,) int64
    capacity : int
        At least the number of entries.
    with_inverse : bool
        Position of the entries of `uniq` as well.

    Returns
    -------
    src : (capacity,) ids
        Filled up to `src_ptr[K]`.
    src_ptr : (K + 1,) int64
    inverse : (len(uniq),) int64, or empty
    local : (len(neighbors),) int32

    Raises
    ------
    SampleTooLargeError
        If a table cannot hold so many entries.
    """
    xp, num_batches = launcher.xp, len(uniq_ptr) - 1
    if capacity > _MOST_ENTRIES or num_batches > MOST_BATCHES:
        raise SampleTooLargeError(
            f"{capacity} nodes of {num_batches} batches do not fit one hash table: use a smaller superbatch, "
            "batch_size or fanouts"
        )
    slots = 1 << max(5, int(2 * capacity - 1).bit_length()) if capacity else 1
    keys, first = xp.full(slots, _EMPTY, np.uint64), xp.full(slots, _NEVER, np.uint32)
    slot_J, flag = xp.empty(capacity, np.uint32), xp.empty(capacity, np.int64)
    src, src_ptr = xp.empty(capacity, uniq.dtype), xp.zeros(num_batches + 1, np.int64)
    inverse = xp.empty(len(uniq) if with_inverse else 0, np.int64)
    local = xp.empty(len(neighbors), np.int32)
    if num_batches == 0:
        return src, src_ptr, inverse, local
    ids, joined = (c_type(uniq.dtype),), (uniq, uniq_ptr, neighbors, edge_ptr, num_batches)
    insert = (*joined, keys, first, slots - 1, slot_J)
    launch(launcher, Kernel("unique", "insert_nodes", ids), capacity, insert)
    mark = (uniq_ptr, edge_ptr, num_batches, first, slot_J, capacity, flag)
    launch(launcher, Kernel("unique", "mark_first"), capacity, mark)
    scan = exclusive_sum(launcher, flag)
    place = (*joined, first, slot_J, scan, int(with_inverse), src, src_ptr, inverse, local)
    launch(launcher, Kernel("unique", "place_nodes", ids), max(capacity, num_batches + 1), place)
    return src, src_ptr, inverse, local
