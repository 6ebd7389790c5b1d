"""The `raw` folder of an OGB data set, as CSV files or as binary arrays: nodes, edges, features and labels.

Hu et al., "Open Graph Benchmark: Datasets for Machine Learning on Graphs", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from storage.errors import InputError
from storage.formats.array_files import ArrayFile, PairEdges, array_features, member_names
from storage.formats.base import EdgeReader, FeatureTable
from storage.formats.edge_list import TextEdges
from storage.formats.files import require_file
from storage.formats.text_dialect import plain_dialect
from storage.formats.text_table import TextTable

_HETEROGENEOUS = ("triplet-type-list.csv.gz", "num-node-dict.csv.gz", "relations", "edge_index_dict.npz")
_SUFFIXES = (".csv.gz", ".csv", ".npz", ".npy")
_NODES, _EDGES = "num-node-list", "num-edge-list"


@dataclass(frozen=True)
class OgbRaw:
    """What the folder holds; the node ids of edges start at 0 in each graph."""

    num_nodes_G: npt.NDArray[np.int64]
    """Nodes of each graph."""
    num_edges_G: npt.NDArray[np.int64]
    """Edges of each graph."""
    edges: EdgeReader
    """The edges, graph by graph."""
    features: FeatureTable | None
    """Features of the nodes, graph by graph."""
    node_labels: npt.NDArray[Any] | None
    """(N, tasks) labels of the nodes."""
    graph_labels: npt.NDArray[Any] | None
    """(G, tasks) labels of the graphs."""
    edge_data: tuple[str, ...]
    """What edges carry beside their ends."""
    unread: tuple[str, ...]
    """Data of the nodes that no use is made of."""


def refuse_heterogeneous(raw: Path) -> None:
    """Refuse data sets with several kinds of nodes.

    Raises
    ------
    InputError
        There are such.
    """
    found = [name for name in _HETEROGENEOUS if (raw / name).exists()]
    if found:
        raise InputError(
            f"{raw} is heterogeneous ({', '.join(found)}): one kind of node and edge is supported, so write the "
            "relation that is needed as an edge list, or all as triples (format triples)"
        )


def raw_files(raw: Path) -> dict[str, Path]:
    """Find the files of the folder, by name.

    Raises
    ------
    InputError
        There is no such folder.
    """
    if not raw.is_dir():
        raise InputError(f"{raw} does not exist: an OGB directory holds raw/ and split/")
    refuse_heterogeneous(raw)
    return {file.name: file for file in sorted(raw.iterdir()) if file.name.endswith(_SUFFIXES)}


def open_raw(raw: Path) -> OgbRaw:
    """Describe the folder; edges and features are read when they are asked for.

    Raises
    ------
    InputError
        A file is missing, or is not what it should be.
    """
    names = set(raw_files(raw))
    return _open_binary(raw) if names & {"data.npz", "edge_index.npy"} else _open_csv(raw)


def _open_csv(raw: Path) -> OgbRaw:
    stems = {name.removesuffix(".gz").removesuffix(".csv"): file for name, file in raw_files(raw).items()}

    def table(stem: str) -> TextTable:
        file = require_file(stems.get(stem, raw / f"{stem}.csv.gz"))
        return TextTable(file, plain_dialect(file, ",", quote='"'))

    num_nodes_G = _integers(table(_NODES))
    edge_table = table("edge")
    return OgbRaw(
        num_nodes_G=num_nodes_G,
        num_edges_G=_integers(table(_EDGES)),
        edges=TextEdges(edge_table.path, edge_table.dialect),
        features=_text_features(table("node-feat"), int(num_nodes_G.sum())) if "node-feat" in stems else None,
        node_labels=_numbers(table("node-label")) if "node-label" in stems else None,
        graph_labels=_numbers(table("graph-label")) if "graph-label" in stems else None,
        edge_data=tuple(stem for stem in stems if stem.startswith(("edge-", "edge_"))),
        unread=tuple(stem for stem in stems if stem.startswith("node_")),
    )


def _open_binary(raw: Path) -> OgbRaw:
    arrays = _array_openers(raw)
    missing = [name for name in ("edge_index", "num_nodes_list", "num_edges_list") if name not in arrays]
    if missing:
        raise InputError(f"{raw} has no array {missing[0]!r}: it holds {', '.join(arrays)}")

    def load(name: str) -> npt.NDArray[Any] | None:
        return arrays[name]().load() if name in arrays else None

    return OgbRaw(
        num_nodes_G=_counts(arrays["num_nodes_list"]()),
        num_edges_G=_counts(arrays["num_edges_list"]()),
        edges=PairEdges.of(arrays["edge_index"](), likely_axis=1),
        features=array_features(arrays["node_feat"]()) if "node_feat" in arrays else None,
        node_labels=load("node_label"),
        graph_labels=load("graph_label"),
        edge_data=tuple(name for name in arrays if name.startswith("edge_") and name != "edge_index"),
        unread=tuple(name for name in arrays if name.startswith("node_") and name not in ("node_feat", "node_label")),
    )


def _array_openers(raw: Path) -> dict[str, Callable[[], ArrayFile]]:
    """The arrays of `data.npz`, of the label files and of `.npy` files, by name."""
    openers: dict[str, Callable[[], ArrayFile]] = {}
    for file in raw_files(raw).values():
        if file.suffix == ".npy":
            openers[file.stem] = partial(ArrayFile.open, file)
        elif file.suffix == ".npz":
            openers |= {name: partial(ArrayFile.open, file, name) for name in member_names(file)}
    return openers


def _counts(array: ArrayFile) -> npt.NDArray[np.int64]:
    if array.dtype.kind not in "iu" or len(array.shape) != 1:
        raise InputError(f"{array.where} holds {array.dtype} of shape {array.shape}: give one integer a graph")
    return array.load().astype(np.int64)


def _integers(table: TextTable) -> npt.NDArray[np.int64]:
    columns = [frame.to_series(0) for frame in table.read({0: pl.Int64})]
    return pl.concat([pl.Series([], dtype=pl.Int64), *(column.alias("") for column in columns)]).to_numpy()


def _numbers(table: TextTable) -> npt.NDArray[np.float64]:
    """(rows, columns) numbers; an empty field is NaN."""
    kinds = dict.fromkeys(range(table.dialect.num_fields), pl.Float64)
    rows = [frame.to_numpy() for frame in table.read(kinds)]
    return np.concatenate([np.empty((0, len(kinds))), *rows])


def _text_features(table: TextTable, num_nodes: int) -> FeatureTable:
    """Features as text, one row a node; an empty field is NaN."""
    dim = table.dialect.num_fields
    kinds = dict.fromkeys(range(dim), pl.Float32)

    def chunks() -> Iterator[npt.NDArray[Any]]:
        rows = 0
        for frame in table.read(kinds):
            rows += frame.height
            if rows <= num_nodes:
                yield frame.to_numpy()
        if rows != num_nodes:
            raise InputError(f"{table.path} has {rows} rows, but there are {num_nodes} nodes: give one row a node")

    return FeatureTable(num_nodes, dim, np.dtype(np.float32), chunks, str(table.path))
