"""Planetoid citation graphs (Cora, CiteSeer, PubMed): `ind.NAME.{x,y,allx,ally,tx,ty,graph,test.index}`.

Yang, Cohen and Salakhutdinov, "Revisiting Semi-Supervised Learning with Graph Embeddings", ICML 2016.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, vstack

from storage.errors import InputError
from storage.formats.base import EdgeArrays, FeatureTable, GraphSource, IdArray, rows_per_chunk
from storage.formats.files import require_file
from storage.formats.labels import to_labels
from storage.formats.planetoid_pickle import load_pickle

_PUBLIC_VALID = 500
_MOST_DIGITS = 18
_MOST_GAPS = 4  # missing test ids make gaps; what is sized by them must stay in proportion


@dataclass(frozen=True)
class _Parts:
    """The files of a data set."""

    where: str
    num_train: int
    allx: csr_array
    tx: csr_array
    ally: npt.NDArray[np.integer]
    ty: npt.NDArray[np.integer]
    graph: dict[int, list[int]]
    test_ids: npt.NDArray[np.int64]

    @property
    def num_nodes(self) -> int:
        """Nodes: test ids that are missing from the index count, they have neighbors."""
        return max(len(self.graph), len(self.ally), int(self.test_ids.max(initial=-1)) + 1)


def open_planetoid(path: Path, name: str) -> GraphSource:
    """Read a Planetoid data set.

    `tx` is in the order of `test.index`, which is shuffled. Ids that are in neither `allx` nor `test.index` (15 of
    CiteSeer's) are nodes with features of 0 and no label. The splits are the public ones: the rows of `x` train, the
    next 500 validate, `test.index` tests.

    Parameters
    ----------
    path : Path
        Directory of the files.
    name : str
        As `cora` in `ind.cora.graph`.

    Returns
    -------
    GraphSource

    Raises
    ------
    InputError
        A file is missing or damaged, or they do not fit together.
    """
    parts = _read(path, name)
    row_N = _row_of_node(parts)
    targets_C = np.concatenate([parts.ally, parts.ty])
    onehot_NC = np.where(row_N[:, None] >= 0, targets_C[row_N], 0)
    valid_stop = min(parts.num_train + _PUBLIC_VALID, parts.allx.shape[0])
    return GraphSource(
        where=parts.where,
        edges=_edges(parts),
        approx_edges=sum(map(len, parts.graph.values())),
        num_nodes=parts.num_nodes,
        features=_features(parts, row_N),
        labels=to_labels(onehot_NC, f"{parts.where} ally, ty"),
        splits={
            "train": np.arange(parts.num_train),
            "valid": np.arange(parts.num_train, valid_stop),
            "test": np.sort(parts.test_ids),
        },
        notes={"nodes_without_features": int(np.count_nonzero(row_N < 0))},
    )


def _read(path: Path, name: str) -> _Parts:
    def load(part: str, kind: type) -> Any:
        file = path / f"ind.{name}.{part}"
        loaded = load_pickle(file)
        if not isinstance(loaded, kind):
            raise InputError(f"{file} holds {type(loaded).__name__}, not {kind.__name__}: fetch the data set again")
        return loaded

    parts = _Parts(
        where=f"{path / f'ind.{name}'}.*",
        num_train=load("y", np.ndarray).shape[0],
        allx=load("allx", csr_array),
        tx=load("tx", csr_array),
        ally=load("ally", np.ndarray),
        ty=load("ty", np.ndarray),
        graph=load("graph", dict),
        test_ids=_read_test_ids(path / f"ind.{name}.test.index"),
    )
    _check(parts, load("x", csr_array).shape[0])
    return parts


def _read_test_ids(file: Path) -> npt.NDArray[np.int64]:
    """One id a line."""
    lines = require_file(file).read_bytes().split()
    for number, line in enumerate(lines, 1):
        if not line.isdigit() or len(line) > _MOST_DIGITS:
            raise InputError(f"{file}, line {number}: {line.decode(errors='replace')!r} is no node id")
    return np.array(lines, np.int64)


def _check(parts: _Parts, num_x: int) -> None:
    """Compare the parts' sizes with each other."""
    pairs = {
        "x and y": (num_x, parts.num_train),
        "allx and ally": (parts.allx.shape[0], len(parts.ally)),
        "tx and ty": (parts.tx.shape[0], len(parts.ty)),
        "tx and test.index": (parts.tx.shape[0], len(parts.test_ids)),
        "the columns of allx and tx": (parts.allx.shape[1], parts.tx.shape[1]),
        "the columns of ally and ty": (parts.ally.shape[1:], parts.ty.shape[1:]),
    }
    for what, (one, other) in pairs.items():
        if one != other:
            raise InputError(f"{parts.where}: {what} differ in size ({one} and {other}): fetch the data set again")
    if len(np.unique(parts.test_ids)) != len(parts.test_ids) or parts.test_ids.min(initial=2**62) < len(parts.ally):
        raise InputError(f"{parts.where}: test.index repeats an id, or names a row of allx: fetch the data set again")
    last = parts.test_ids.max(initial=-1)
    if last >= _MOST_GAPS * (len(parts.graph) + len(parts.ally) + len(parts.ty)):
        raise InputError(f"{parts.where}: test.index names node {last}, beyond the graph: fetch the data set again")
    if parts.num_train > len(parts.ally):
        raise InputError(f"{parts.where}: x has {parts.num_train} rows, allx only {len(parts.ally)}")


def _row_of_node(parts: _Parts) -> npt.NDArray[np.int64]:
    """(N,) row of (allx; tx) that describes each node, -1 where none does."""
    row_N = np.full(parts.num_nodes, -1)
    num_known = parts.allx.shape[0]
    row_N[:num_known] = np.arange(num_known)
    row_N[parts.test_ids] = num_known + np.arange(len(parts.test_ids))
    return row_N


def _edges(parts: _Parts) -> EdgeArrays:
    """Node v's list holds the nodes that v aggregates from (the lists are symmetric)."""
    lists = parts.graph.values()
    src = np.fromiter(chain.from_iterable(lists), np.int64)
    dst = np.repeat(np.fromiter(parts.graph, np.int64, len(parts.graph)), [len(one) for one in lists])
    return EdgeArrays(src, dst, f"{parts.where} graph")


def _features(parts: _Parts, row_N: IdArray) -> FeatureTable:
    """Rows of the sparse features, made dense a chunk at a time."""
    feat_RF = csr_array(vstack([parts.allx, parts.tx], format="csr"))
    num_nodes, dim = len(row_N), feat_RF.shape[1]
    rows = rows_per_chunk(dim * feat_RF.dtype.itemsize)

    def chunks() -> Iterator[npt.NDArray[Any]]:
        for start in range(0, num_nodes, rows):
            row = row_N[start : start + rows]
            dense = feat_RF[np.maximum(row, 0)].toarray()
            dense[row < 0] = 0
            yield dense

    return FeatureTable(num_nodes, dim, feat_RF.dtype, chunks, f"{parts.where} allx, tx")
