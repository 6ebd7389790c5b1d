"""Graphs that `dgl.save_graphs` wrote; DGL itself reads them, and is imported only when one is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.errors import InputError
from storage.formats.base import EdgeArrays, FeatureTable, GraphSource, IdArray, LabelColumn
from storage.formats.edge_data import EdgeWeights, check_edge_data
from storage.formats.files import require_file
from storage.formats.labels import to_labels

_FEATURES = ("feat", "features", "x")
_LABELS = ("label", "labels", "y")
_MASKS = {"train": ("train_mask",), "valid": ("val_mask", "valid_mask"), "test": ("test_mask",)}
# DGL's reader ends the whole process where a damaged file asks for more memory than there is.
_PROBE = "import dgl, sys; dgl.load_graphs(sys.argv[1])"


def open_dgl(edges: Path, *, edge_weights: EdgeWeights = "refuse") -> GraphSource:
    """Read a graph that DGL saved; all of it is held in memory.

    Node data of the usual names are used: `feat` (`features`, `x`), `label` (`labels`, `y`), and the masks
    `train_mask`, `val_mask` (`valid_mask`), `test_mask`; others are counted and left out.

    Parameters
    ----------
    edges : Path
        File that holds one homogeneous graph.
    edge_weights : str
        `refuse` raises where edges carry data; `drop` leaves them out.

    Returns
    -------
    GraphSource

    Raises
    ------
    InputError
        DGL is not installed; the file is missing or damaged; it holds several graphs, or a heterogeneous one.
    """
    graph = _load(require_file(edges))
    carried = ", ".join(sorted(graph.edata))
    check_edge_data(f"data ({carried})" if carried else "", str(edges), edge_weights)
    data: dict[str, npt.NDArray[Any]] = {name: _to_numpy(tensor) for name, tensor in graph.ndata.items()}
    src, dst = (end.numpy() for end in graph.edges())
    features, labels = _pick(data, _FEATURES), _pick(data, _LABELS)
    splits = _splits(data, edges)
    left_out = {"node_data_left_out": len(data), "edge_data_left_out": len(graph.edata)}
    return GraphSource(
        where=str(edges),
        edges=EdgeArrays(src, dst, str(edges)),
        approx_edges=len(src),
        num_nodes=int(graph.num_nodes()),
        features=None if features is None else _features(features, edges),
        labels=None if labels is None else _labels(labels, edges),
        splits=splits,
        notes={name: count for name, count in left_out.items() if count},
    )


def _load(path: Path) -> Any:
    """The graph, after another process has read the file without harm."""
    # Unless it is told its backend, importing DGL writes ~/.dgl/config.json and talks about it.
    os.environ.setdefault("DGLBACKEND", "pytorch")
    try:
        import dgl
    except ImportError as error:
        raise InputError(f"reading {path} needs DGL: pip install '.[dgl]' (Python 3.11)") from error
    if _ends_the_reader(path):
        raise InputError(f"{path} is a damaged DGL file (DGL's reader was ended by it): save it again")
    try:
        graphs, _ = dgl.load_graphs(str(path))
    except dgl.DGLError as error:
        reason = str(error).splitlines()[0].rpartition(": ")[2]
        raise InputError(f"{path} is no readable DGL file ({reason}): write it with dgl.save_graphs") from error
    if len(graphs) != 1:
        raise InputError(f"{path} holds {len(graphs)} graphs: save one graph a file, or dgl.batch them into one")
    graph = graphs[0]
    if not graph.is_homogeneous:
        raise InputError(
            f"{path} is heterogeneous ({', '.join('-'.join(kind) for kind in graph.canonical_etypes)}): one kind of "
            "node and edge is supported, so save dgl.to_homogeneous(graph) or one relation"
        )
    return graph


def _ends_the_reader(path: Path) -> bool:
    """Whether reading a file ends the process that does it, by letting another one try."""
    probe = subprocess.run([sys.executable, "-c", _PROBE, str(path.absolute())], capture_output=True, check=False)
    return probe.returncode < 0


def _to_numpy(tensor: Any) -> npt.NDArray[Any]:
    """A tensor's values; bfloat16, which NumPy lacks, as float32."""
    is_brain = "bfloat16" in str(tensor.dtype)
    array: npt.NDArray[Any] = (tensor.float() if is_brain else tensor).numpy()
    return array


def _pick(data: dict[str, npt.NDArray[Any]], names: tuple[str, ...]) -> npt.NDArray[Any] | None:
    """Take the first of several names out of the data."""
    found = next((name for name in names if name in data), None)
    return None if found is None else data.pop(found)


def _features(features: npt.NDArray[Any], path: Path) -> FeatureTable:
    if features.ndim not in (1, 2):
        raise InputError(f"{path}: node features have shape {features.shape}: give (nodes, features)")
    return FeatureTable.from_array(features.reshape(len(features), -1), f"{path}, node features")


def _labels(labels: npt.NDArray[Any], path: Path) -> LabelColumn:
    return to_labels(labels, f"{path}, node labels")


def _splits(data: dict[str, npt.NDArray[Any]], path: Path) -> dict[str, IdArray] | None:
    """Nodes in the masks; None where there are none."""
    masks = {split: _pick(data, names) for split, names in _MASKS.items()}
    found = {split: mask for split, mask in masks.items() if mask is not None}
    if not found:
        return None
    if len(found) < len(masks) or any(mask.ndim != 1 for mask in found.values()):
        raise InputError(f"{path}: give train_mask, val_mask and test_mask with one value a node, or none of them")
    return {split: np.flatnonzero(mask) for split, mask in found.items()}
