"""Block layout: rewrites a store in a new node order, in passes over the old one that a memory budget bounds."""

from __future__ import annotations

from pathlib import Path

from storage.blocks.reordered import Reordered, check_permutation, goes_by_files, reordered_indptr
from storage.blocks.writer import watched
from storage.expected_store import StoreSizes
from storage.formats.base import IdArray
from storage.graph_store import (
    FEATURES,
    INDICES,
    INDPTR,
    LABELS,
    ORIGINAL_ID,
    OUT_DEGREE,
    SPLITS,
    GraphStore,
    write_store,
)
from storage.progress import OpenProgress, no_progress
from storage.store_format import GRAPH_ID, GRAPH_LABELS, LINKS, MULTI_LABELS, NEW_TO_OLD, RELATION

DEFAULT_WORK_BYTES = 256 << 20
"""Memory for pieces of the new store, on top of what `layout_held_bytes` says."""
LEAST_WORK_BYTES = 4 << 20
"""Least memory for pieces of the new store that is not plainly slow."""

_STREAMED = (INDPTR, INDICES, FEATURES, RELATION, OUT_DEGREE, LABELS, MULTI_LABELS, ORIGINAL_ID, NEW_TO_OLD, GRAPH_ID)
_READING_BYTES = 14 << 20  # a chunk as it is read, its places in the new order, what of it goes there
_TABLE_BYTES = 20  # a block: its checksum, and a row of the object index table
_NAME_BYTES = 40  # a name: its place in HDF5's heap
_MOST_OBJECTS = 24
_OBJECT_BYTES = 2048  # a dataset: its header, its checksums' header


def lay_out(
    store: GraphStore,
    path: Path,
    *,
    old_to_new: IdArray,
    order: str,
    block_bytes: int,
    work_bytes: int = DEFAULT_WORK_BYTES,
    scratch: Path | None = None,
    progress: OpenProgress = no_progress,
) -> None:
    """Write `store` in another node order; the neighbors within a row keep their order.

    The old store is read from front to back, once for each `work_bytes` of adjacency lists, of features and of
    whatever else there is one of a node.

    Parameters
    ----------
    store : GraphStore
    path : Path
        File to write.
    old_to_new : (N,) int32 or int64
        New id of each present one.
    order : str
        Name of the order.
    block_bytes : int
        Size of a block, a multiple of 4096.
    work_bytes : int
        Memory for pieces of the new store.
    scratch : Path, optional
        Directory for files (`layout_scratch_bytes`) that spare reading a part more than three times.
    progress : callable
        Opens a display for adjacency lists and for features.

    Raises
    ------
    InputError
        `old_to_new` is no permutation of the store's nodes.
    StorageError
        The old store is damaged: its bytes, or what they say.
    MachineError
        The disk is full.
    """
    check_permutation(old_to_new, store.info.num_nodes)
    indptr = reordered_indptr(store, old_to_new)
    parts = Reordered(store, old_to_new, indptr, work_bytes, scratch)
    write_store(
        path,
        indptr=indptr,
        indices=watched(parts.lists(INDICES), progress, "writing adjacency lists"),
        features=watched(parts.rows(FEATURES), progress, "writing features") if store.has(FEATURES) else None,
        labels=parts.labels(),
        label_names=store.info.label_names,
        splits={split: parts.split(split) for split in SPLITS},
        out_degree=parts.rows(OUT_DEGREE),
        original_ids=parts.rows(ORIGINAL_ID) if store.has(ORIGINAL_ID) else None,
        new_to_old=parts.rows(NEW_TO_OLD) if store.has(NEW_TO_OLD) else parts.old_ids(),
        extras=parts.extras(),
        order=order,
        block_bytes=block_bytes,
    )


def layout_held_bytes(store: StoreSizes) -> int:
    """Bytes of memory that `lay_out` needs beside `work_bytes`, its argument `old_to_new` included."""
    nodes = store.info.num_nodes
    held = sum(store.nbytes(name) for name in store.datasets if name.startswith((LINKS, GRAPH_LABELS)))
    return 3 * held + (_id_bytes(store) + 8) * nodes + nodes // 8 + _READING_BYTES


def layout_work_bytes(store: StoreSizes) -> int:
    """Bytes beyond which more `work_bytes` save no pass: the largest part of the store."""
    return max(store.nbytes(name) for name in _STREAMED)


def layout_scratch_bytes(store: GraphStore, work_bytes: int) -> int:
    """Most bytes of files that `lay_out` writes to `scratch`; 0 where it needs none."""
    rows = (name for name in _STREAMED if name not in (INDPTR, INDICES, RELATION))
    return max(size if goes_by_files(size, work_bytes) else 0 for size in map(store.nbytes, rows))


def estimate_store_bytes(store: StoreSizes, block_bytes: int) -> int:
    """Bytes of a file that holds what the store holds in another order (a little more: padding and tables)."""
    data = sum(store.nbytes(name) for name in store.datasets)
    if not store.has(NEW_TO_OLD):
        data += 8 * store.info.num_nodes
    names = sum(len(name.encode()) + _NAME_BYTES for name in store.info.label_names + store.info.relation_names)
    return names + _file_bytes(data, len(store.datasets) + 1, block_bytes)


def laid_out_bytes(ingested_bytes: int, num_nodes: int, block_bytes: int) -> int:
    """Bound the same by the bytes of a store that ingest is still to write."""
    return _file_bytes(ingested_bytes + 8 * num_nodes, _MOST_OBJECTS, block_bytes)


def _file_bytes(data: int, num_objects: int, block_bytes: int) -> int:
    """Data with checksums and tables, each dataset on a boundary."""
    return data + _TABLE_BYTES * (data // block_bytes) + num_objects * (block_bytes + _OBJECT_BYTES) + (1 << 16)


def _id_bytes(store: StoreSizes) -> int:
    return 4 if store.info.num_nodes < 2**31 else 8
