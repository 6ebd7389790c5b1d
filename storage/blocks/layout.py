"""Block layout: rewrites a store in a new node order, in passes over the old one that a memory budget bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from storage.blocks.writer import ArrayStream
from storage.content_checks import check_offsets, check_range
from storage.errors import InputError
from storage.extras import Extras
from storage.formats.base import IdArray
from storage.graph_store import (
    FEATURES,
    INDICES,
    LABELS,
    ORIGINAL_ID,
    SPLITS,
    GraphStore,
    row_chunks,
    write_store,
)
from storage.order import invert_order
from storage.store_format import GRAPH_LABELS, NEW_TO_OLD, RELATION

DEFAULT_WORK_BYTES = 256 << 20
"""Memory for pieces of the new store, on top of the arrays with one entry a node."""

_STREAMED = (INDICES, FEATURES, RELATION)  # everything else is held whole
_COPIES = 2  # in the old order and in the new one
_ORDER_BYTES = 56  # a node: the order and its inverse, the identity and its image, labels as int64
_TABLE_BYTES = 20  # a block: its checksum, and a row of the object index table
_NAME_BYTES = 40  # a name: its place in HDF5's heap
_OBJECT_BYTES = 2048  # a dataset: its header, its checksums' header

_jit = numba.njit(nogil=True, cache=True)


def lay_out(
    store: GraphStore,
    new_to_old: npt.NDArray[np.int64],
    path: Path,
    *,
    order: str,
    block_bytes: int,
    work_bytes: int = DEFAULT_WORK_BYTES,
) -> None:
    """Write `store` in another node order; the neighbors within a row keep their order.

    The old store is read from front to back, once for each `work_bytes` of adjacency lists and of features.

    Parameters
    ----------
    store : GraphStore
    new_to_old : (N,) int64
        Present id of each new one.
    path : Path
        File to write.
    order : str
        Name of the order.
    block_bytes : int
        Size of a block, a multiple of 4096.
    work_bytes : int
        Memory for pieces of the new store.

    Raises
    ------
    InputError
        `new_to_old` is no permutation of the store's nodes.
    StorageError
        The old store is damaged: its bytes, or what they say.
    MachineError
        The disk is full.
    """
    _check_permutation(new_to_old, store.info.num_nodes)
    old_to_new = invert_order(new_to_old)
    old_indptr = store.read_indptr()
    check_offsets(store.path, old_indptr, store.info.num_edges)
    indptr = np.zeros_like(old_indptr)
    np.cumsum(np.diff(old_indptr)[new_to_old], out=indptr[1:])
    labels = store.read_multi_labels() if store.info.is_multi_label else store.read_labels()
    known_labels = labels[new_to_old] if store.has(LABELS) or store.info.is_multi_label else None
    write_store(
        path,
        indptr=indptr,
        indices=_reordered_lists(store, INDICES, old_indptr, indptr, old_to_new, work_bytes),
        features=_reordered_features(store, old_to_new, work_bytes) if store.has(FEATURES) else None,
        labels=known_labels,
        label_names=store.info.label_names,
        splits={split: old_to_new[store.read_split(split)] for split in SPLITS},
        out_degree=store.read_out_degree()[new_to_old],
        original_ids=store.reader(ORIGINAL_ID).read_all()[new_to_old] if store.has(ORIGINAL_ID) else None,
        new_to_old=store.read_new_to_old()[new_to_old],
        extras=_reordered_extras(store, old_indptr, indptr, new_to_old, old_to_new, work_bytes),
        order=order,
        block_bytes=block_bytes,
    )


def estimate_layout_memory_bytes(store: GraphStore, work_bytes: int = DEFAULT_WORK_BYTES) -> int:
    """Bytes of memory that `lay_out` needs: what is held whole, a piece of the rest, chunks read, the orders."""
    largest = max(store.nbytes(name) for name in _STREAMED)
    held = sum(store.nbytes(name) for name in store.datasets if name not in _STREAMED)
    return _COPIES * held + _ORDER_BYTES * store.info.num_nodes + min(work_bytes, largest) + (64 << 20)


def estimate_store_bytes(store: GraphStore, block_bytes: int) -> int:
    """Bytes of a file that holds what the store holds in another order (a little more: padding and tables)."""
    data = sum(store.nbytes(name) for name in store.datasets)
    if not store.has(NEW_TO_OLD):
        data += 8 * store.info.num_nodes
    names = sum(len(name.encode()) + _NAME_BYTES for name in store.info.label_names + store.info.relation_names)
    tables = _TABLE_BYTES * (data // block_bytes)
    return data + names + tables + (len(store.datasets) + 1) * (block_bytes + _OBJECT_BYTES) + (1 << 16)


def _check_permutation(new_to_old: npt.NDArray[np.int64], num_nodes: int) -> None:
    in_range = len(new_to_old) == num_nodes and (
        not num_nodes or (new_to_old.min() >= 0 and new_to_old.max() < num_nodes)
    )
    if not in_range or not np.bincount(new_to_old, minlength=num_nodes).all():
        raise InputError(f"a node order must hold each of 0..{num_nodes - 1} once (got {len(new_to_old)} ids)")


def _reordered_features(store: GraphStore, old_to_new: npt.NDArray[np.int64], work_bytes: int) -> ArrayStream:
    """Stream the feature rows in the new order."""
    extent = store.extent(FEATURES)

    def chunks() -> Iterator[npt.NDArray[Any]]:
        rows = max(1, work_bytes // max(1, extent.row_bytes))
        for first in range(0, extent.shape[0], rows):
            out = np.empty((min(rows, extent.shape[0] - first), *extent.shape[1:]), extent.dtype)
            old = 0
            for chunk in row_chunks(store, FEATURES):
                slot = old_to_new[old : old + len(chunk)] - first
                here = (slot >= 0) & (slot < len(out))
                out[slot[here]] = chunk[here]
                old += len(chunk)
            yield out

    return ArrayStream(extent.shape, extent.dtype, chunks())


def _reordered_lists(
    store: GraphStore,
    name: str,
    old_indptr: npt.NDArray[np.int64],
    indptr: npt.NDArray[np.int64],
    old_to_new: npt.NDArray[np.int64],
    work_bytes: int,
) -> ArrayStream:
    """Stream a dataset with one entry an edge in the new order of the rows; ids become the new ones."""
    extent = store.extent(name)
    num_edges = extent.shape[0]

    def chunks() -> Iterator[IdArray]:
        ids = max(1, work_bytes // extent.dtype.itemsize)
        for first in range(0, num_edges, ids):
            out = np.empty(min(ids, num_edges - first), extent.dtype)
            old = 0
            for chunk in row_chunks(store, name):
                if name == INDICES:
                    check_range(store.path, "the adjacency lists", chunk, 0, len(old_to_new))
                _move_rows(chunk, old, old_indptr, indptr, old_to_new, name == INDICES, out, first)
                old += len(chunk)
            yield out

    return ArrayStream(extent.shape, extent.dtype, chunks())


def _reordered_extras(
    store: GraphStore,
    old_indptr: npt.NDArray[np.int64],
    indptr: npt.NDArray[np.int64],
    new_to_old: npt.NDArray[np.int64],
    old_to_new: npt.NDArray[np.int64],
    work_bytes: int,
) -> Extras:
    """Relations, links and graph numbers under the new ids."""
    typed, link_sizes = store.has(RELATION), store.info.link_sizes
    return Extras(
        relations=_reordered_lists(store, RELATION, old_indptr, indptr, old_to_new, work_bytes) if typed else None,
        relation_names=store.info.relation_names,
        links={split: store.read_links(split).renumbered(old_to_new) for split in SPLITS if split in link_sizes},
        graph_ids=store.read_graph_ids()[new_to_old] if store.info.is_union else None,
        graph_labels=store.read_graph_labels() if store.has(GRAPH_LABELS) else None,
    )


@_jit
def _move_rows(
    chunk: IdArray,
    chunk_start: int,
    old_indptr: npt.NDArray[np.int64],
    indptr: npt.NDArray[np.int64],
    old_to_new: npt.NDArray[np.int64],
    are_ids: bool,
    out: IdArray,
    out_start: int,
) -> None:
    """Copy what `chunk` (old edges from `chunk_start`) and `out` (new edges from `out_start`) have in common."""
    chunk_stop, out_stop = chunk_start + len(chunk), out_start + len(out)
    v = np.searchsorted(old_indptr, chunk_start, side="right") - 1
    while v < len(old_indptr) - 1 and old_indptr[v] < chunk_stop:
        shift = indptr[old_to_new[v]] - old_indptr[v]
        first = max(old_indptr[v], chunk_start, out_start - shift)
        last = min(old_indptr[v + 1], chunk_stop, out_stop - shift)
        for e in range(first, last):
            value = chunk[e - chunk_start]
            out[e + shift - out_start] = old_to_new[value] if are_ids else value
        v += 1
