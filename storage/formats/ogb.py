"""OGB directories: `raw/` and `split/SCHEME/`, for nodes (ogbn), links (ogbl) and graphs (ogbg)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage.errors import InputError
from storage.formats.base import GraphSource, IdArray
from storage.formats.edge_data import EdgeWeights, check_edge_data
from storage.formats.graph_union import UnionEdges
from storage.formats.labels import to_labels
from storage.formats.ogb_raw import OgbRaw, open_raw, raw_files
from storage.formats.ogb_split import OgbSplit, read_split, split_files


def ogb_files(path: Path, split_scheme: str | None = None) -> dict[str, Path]:
    """Find the files of an OGB directory, by name.

    Raises
    ------
    InputError
        `raw` is missing, the data set is heterogeneous, or it is not clear which split to take.
    """
    raw = {f"raw/{name}": file for name, file in raw_files(path / "raw").items()}
    return raw | {f"split/{file.name}": file for file in split_files(path / "split", split_scheme).values()}


def open_ogb(path: Path, *, split_scheme: str | None = None, edge_weights: EdgeWeights = "refuse") -> GraphSource:
    """Describe an OGB data set.

    A folder with several graphs becomes one graph without edges between them; the number of each node's graph is kept,
    as are the labels of the graphs, and a graph's split is that of its nodes. The splits of a link data set are
    held-out edges. OGB stores each edge of an undirected graph in one direction.

    Parameters
    ----------
    path : Path
        Directory that holds `raw` and `split`.
    split_scheme : str
        Folder below `split`; default: the only one.
    edge_weights : str
        `refuse` raises where edges carry features, weights or types; `drop` leaves them out.

    Returns
    -------
    GraphSource

    Raises
    ------
    InputError
        A file is missing, or is not what it should be; the data set is heterogeneous.
    """
    raw = open_raw(path / "raw")
    check_edge_data(", ".join(raw.edge_data), str(path / "raw"), edge_weights)
    split = read_split(path / "split", split_scheme, edge_weights)
    num_nodes = _check_counts(path, raw)
    is_union = len(raw.num_nodes_G) > 1 or raw.graph_labels is not None
    return GraphSource(
        where=str(path),
        edges=UnionEdges(raw.edges, raw.num_nodes_G, raw.num_edges_G),
        approx_edges=int(raw.num_edges_G.sum()),
        num_nodes=num_nodes,
        features=raw.features,
        labels=None if raw.node_labels is None else to_labels(raw.node_labels, f"{path}/raw/node-label"),
        splits=_node_splits(path, split, raw.num_nodes_G) if is_union else split.nodes,
        links=split.links,
        graph_ids=np.repeat(np.arange(len(raw.num_nodes_G), dtype=np.int32), raw.num_nodes_G) if is_union else None,
        graph_labels=None if raw.graph_labels is None else _graph_labels(path, raw.graph_labels, len(raw.num_nodes_G)),
        notes=_notes(raw, is_union),
    )


def _notes(raw: OgbRaw, is_union: bool) -> dict[str, int]:
    counts = {
        "graphs": len(raw.num_nodes_G) if is_union else 0,
        "edge_data_left_out": len(raw.edge_data),
        "node_data_left_out": len(raw.unread),
    }
    return {name: count for name, count in counts.items() if count}


def _check_counts(path: Path, raw: OgbRaw) -> int:
    """The number of nodes, after comparing the lists of counts."""
    if len(raw.num_nodes_G) != len(raw.num_edges_G):
        raise InputError(
            f"{path}/raw counts the nodes of {len(raw.num_nodes_G)} graphs and the edges of {len(raw.num_edges_G)}: "
            "fetch the data set again"
        )
    if min(raw.num_nodes_G.min(initial=0), raw.num_edges_G.min(initial=0)) < 0:
        raise InputError(f"{path}/raw counts a negative number of nodes or edges: fetch the data set again")
    return int(raw.num_nodes_G.sum())


def _node_splits(path: Path, split: OgbSplit, num_nodes_G: npt.NDArray[np.int64]) -> dict[str, IdArray] | None:
    """Nodes of the graphs in each split."""
    if split.nodes is None:
        return None
    nodes: dict[str, IdArray] = {}
    for name, graphs in split.nodes.items():
        if len(graphs) and not 0 <= graphs.min() <= graphs.max() < len(num_nodes_G):
            raise InputError(f"{path}: the {name} split names a graph beyond the {len(num_nodes_G)} there are")
        chosen = np.zeros(len(num_nodes_G), np.bool_)
        chosen[graphs] = True
        nodes[name] = np.flatnonzero(np.repeat(chosen, num_nodes_G))
    return nodes


def _graph_labels(path: Path, labels: npt.NDArray[np.generic], num_graphs: int) -> npt.NDArray[np.float32]:
    labels_GT = labels.astype(np.float32).reshape(len(labels), -1)
    if len(labels_GT) != num_graphs:
        raise InputError(f"{path}/raw has {len(labels_GT)} graph labels, but {num_graphs} graphs: give one row a graph")
    return labels_GT
