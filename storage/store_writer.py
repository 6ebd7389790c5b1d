"""Writes a graph store; the twin of `storage.graph_store`, which reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.blocks.writer import ArrayStream, BlockWriter, as_stream
from storage.csc import count_occurrences
from storage.extras import Extras, write_extras
from storage.formats.base import IdArray
from storage.store_format import (
    BLOCK_NODES,
    DEFAULT_BLOCK_BYTES,
    FEATURES,
    FORMAT_NAME,
    FORMAT_VERSION,
    INDICES,
    INDPTR,
    LABEL_NAMES,
    LABELS,
    MULTI_LABEL_VERSION,
    MULTI_LABELS,
    NEW_TO_OLD,
    ORIGINAL_ID,
    OUT_DEGREE,
    SPLITS,
    BlockTable,
    storable_ids,
)


def write_store(
    path: Path,
    *,
    indptr: npt.NDArray[np.int64] | ArrayStream,
    indices: IdArray | ArrayStream,
    features: npt.NDArray[Any] | ArrayStream | None = None,
    labels: npt.NDArray[np.integer] | ArrayStream | None = None,
    label_names: tuple[str, ...] | None = None,
    splits: Mapping[str, IdArray | ArrayStream] | None = None,
    out_degree: npt.NDArray[np.int64] | ArrayStream | None = None,
    original_ids: npt.NDArray[Any] | ArrayStream | None = None,
    new_to_old: npt.NDArray[np.int64] | ArrayStream | None = None,
    extras: Extras | None = None,
    order: str = "ingest",
    block_bytes: int = DEFAULT_BLOCK_BYTES,
) -> None:
    """Write a store; it appears at `path` whole or not at all.

    Whatever is too large to hold may come as a stream.

    Parameters
    ----------
    path : Path
    indptr : (N + 1,) int64
    indices : (E,) int32 or int64
        With a stream, `out_degree` is required.
    features : (N, F) float32, float16 or uint8
    labels : (N,) or (N, C) integers
        -1 is unlabelled; two dimensions are a multi-label task.
    label_names : tuple of str
        Default: the class numbers. With a stream of labels, it is required.
    splits : mapping of train, valid, test to ids
        Streams hold them in ascending order.
    out_degree : (N,) int64
        Default: counted.
    original_ids : (N,) integers or strings
        Default: the ids before reordering.
    new_to_old : (N,) int64
        Default: not reordered.
    extras : Extras
        Relations, held-out links, several graphs.
    order : str
        Name of the node order.
    block_bytes : int
        A multiple of 4096.

    Raises
    ------
    MachineError
        The disk is full.
    """
    if out_degree is None:
        assert isinstance(indices, np.ndarray), "out_degree must be given with a stream of indices"
        out_degree = count_occurrences(indices, indptr.shape[0] - 1)
    multi = labels is not None and len(labels.shape) == 2
    version = MULTI_LABEL_VERSION if multi else FORMAT_VERSION
    with BlockWriter(Path(path), block_bytes=block_bytes) as writer:
        writer.attrs.update(format=FORMAT_NAME, format_version=version, order=order, block_bytes=block_bytes)
        table = BlockTable(indices.shape[0], block_bytes // indices.dtype.itemsize)
        writer.write(INDPTR, table.watch(as_stream(indptr)))
        writer.write(INDICES, indices)
        writer.write(OUT_DEGREE, out_degree)
        writer.write_table(BLOCK_NODES, table.nodes_B2, columns="first node, last node")
        if features is not None:
            writer.write(FEATURES, features)
        if labels is not None:
            writer.write(MULTI_LABELS if multi else LABELS, as_stream(labels, np.int8 if multi else np.int32))
            writer.write_names(LABEL_NAMES, _class_numbers(labels) if label_names is None else label_names)
        for split in SPLITS:
            nodes = (splits or {}).get(split, np.empty(0, np.int64))
            writer.write(f"splits/{split}", as_stream(_ascending(nodes), np.int64))
        if original_ids is not None:
            writer.write(
                ORIGINAL_ID, original_ids if isinstance(original_ids, ArrayStream) else storable_ids(original_ids)
            )
        if new_to_old is not None:
            writer.write(NEW_TO_OLD, as_stream(new_to_old, np.int64))
        if extras is not None:
            write_extras(writer, extras)


def _class_numbers(labels: npt.NDArray[np.integer] | ArrayStream) -> tuple[str, ...]:
    assert isinstance(labels, np.ndarray), "label_names must be given with a stream of labels"
    num_classes = labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=-1)) + 1
    return tuple(str(label) for label in range(num_classes))


def _ascending(nodes: IdArray | ArrayStream) -> IdArray | ArrayStream:
    """Sort ids that are not sorted yet; those that are, are not copied."""
    if isinstance(nodes, ArrayStream) or not np.any(nodes[1:] < nodes[:-1]):
        return nodes
    return np.sort(nodes).astype(np.int64, copy=False)
