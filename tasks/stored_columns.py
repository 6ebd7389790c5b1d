"""What training and the Python API hold of a store that stays on disk: labels and degrees, as narrow as they may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.nn.layers import NodeDegrees
from storage.content_checks import check_range
from storage.degrees import degree_dtype
from storage.graph_store import INDPTR, LABELS, OUT_DEGREE, GraphStore, StoreInfo, row_chunks


def label_dtype(num_classes: int) -> np.dtype[Any]:
    """The narrowest type for classes, -1 included."""
    return np.dtype(next(kind for kind in (np.int8, np.int16, np.int32) if num_classes <= np.iinfo(kind).max))


def narrow_labels(store: GraphStore) -> npt.NDArray[Any]:
    """(N,) classes, -1 where unknown, in the narrowest type; read piece by piece."""
    limit = store.info.num_classes
    labels_N: npt.NDArray[Any] = np.empty(store.info.num_nodes, label_dtype(limit))
    if not store.has(LABELS):
        labels_N.fill(-1)
        return labels_N
    done = 0
    for chunk in row_chunks(store, LABELS):
        check_range(store.path, "labels", chunk, -1, limit)
        labels_N[done : done + len(chunk)] = chunk
        done += len(chunk)
    return labels_N


def degree_bytes(info: StoreInfo) -> int:
    """Bytes of the degrees of all nodes."""
    return 2 * degree_dtype(info.num_edges).itemsize * info.num_nodes


def stored_degrees(store: GraphStore) -> NodeDegrees:
    """Degrees of all nodes, 4 bytes each where they fit."""
    in_degree: Any = np.empty(store.info.num_nodes, degree_dtype(store.info.num_edges))
    out_degree: Any = np.empty_like(in_degree)
    before, done = np.empty(0, np.int64), 0
    for chunk in row_chunks(store, INDPTR):
        degree = np.diff(np.concatenate([before, chunk]))
        in_degree[done : done + len(degree)] = degree
        before, done = chunk[-1:], done + len(degree)
    done = 0
    for chunk in row_chunks(store, OUT_DEGREE):
        out_degree[done : done + len(chunk)] = chunk
        done += len(chunk)
    return NodeDegrees(in_degree, out_degree)
