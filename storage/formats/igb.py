"""IGB directories (Illinois Graph Benchmark): citations among papers, in large `.npy` files that are streamed.

Khatua, Mailthody, Taleka, Ma, Song and Hwu, "IGB: Addressing the Gaps in Labeling, Features, Heterogeneity, and Size of
Public Graph Datasets", KDD 2023.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from storage.errors import InputError
from storage.formats.array_files import ArrayFile, PairEdges, array_features
from storage.formats.base import GraphSource, IdArray, LabelColumn
from storage.formats.files import require_file
from storage.formats.labels import array_label_bytes, array_labels

_FEATURES = "paper/node_feat.npy"
_EDGES = "paper__cites__paper/edge_index.npy"
_RAW_DIM = 1024
_SPLIT_BYTES = 9  # a labelled paper: its id, and whether it is one
_TRAIN_FRACTION, _VALID_FRACTION = 0.6, 0.2


def igb_files(path: Path, label_set: str) -> dict[str, Path]:
    """Find the files of an IGB directory, by their names in it.

    Raises
    ------
    InputError
        The directory holds relations of other kinds too.
    """
    folder = _folder(path)
    others = sorted(part.name for part in folder.glob("*__*__*") if f"{part.name}/edge_index.npy" != _EDGES)
    if others:
        raise InputError(
            f"{folder} is heterogeneous ({', '.join(others)}): one kind of node and edge is supported, so move the "
            "paper and paper__cites__paper folders to a directory of their own"
        )
    return {name: folder / name for name in (_FEATURES, f"paper/node_label_{label_set}.npy", _EDGES)}


def open_igb(path: Path, *, label_set: str = "19") -> GraphSource:
    """Describe a homogeneous IGB graph.

    The split is that of IGB's own loader: of the labelled papers in the order of their ids, the first 60 % train, the
    next 20 % validate, the others test. The `large` and `full` sizes come without headers: then features are rows of
    1024 float32, labels float32.

    Parameters
    ----------
    path : Path
        Directory that holds `paper` and `paper__cites__paper`, itself or in `processed`.
    label_set : str
        `19` or `2K`: which labels to take.

    Returns
    -------
    GraphSource

    Raises
    ------
    InputError
        A file is missing, or is not what it should be.
    """
    features_file, labels_file, edges_file = igb_files(path, label_set).values()
    features = array_features(_open_array(features_file, _RAW_DIM))
    labels = _read_labels(labels_file)
    edges = PairEdges.of(ArrayFile.open(edges_file), likely_axis=0)
    return GraphSource(
        where=str(path),
        edges=edges,
        approx_edges=edges.num_edges,
        num_nodes=features.num_rows,
        features=features,
        labels=labels,
        splits=_own_split(labels.labels_N),
    )


def igb_label_bytes(path: Path) -> int:
    """Memory that reading the labels of a label file takes, with the split that is made of them."""
    array = _open_array(path, None)
    return array_label_bytes(array) + _SPLIT_BYTES * array.size


def _folder(path: Path) -> Path:
    return path / "processed" if (path / "processed").is_dir() else path


def _read_labels(path: Path) -> LabelColumn:
    return array_labels(_open_array(path, None))


def _open_array(path: Path, raw_dim: int | None) -> ArrayFile:
    """An array with a header, or float32 without one (`raw_dim` columns, if not None)."""
    with require_file(path).open("rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
            return ArrayFile.open(path)
    row_bytes = 4 * (raw_dim or 1)
    rows, rest = divmod(path.stat().st_size, row_bytes)
    if rest or not rows:
        raise InputError(f"{path} has no .npy header, and {path.stat().st_size} bytes are no rows of {row_bytes}")
    return ArrayFile(path, None, (rows, raw_dim) if raw_dim else (rows,), np.dtype(np.float32), False, 0)


def _own_split(labels_N: IdArray) -> dict[str, IdArray]:
    labelled = np.flatnonzero(labels_N >= 0)
    train = int(len(labelled) * _TRAIN_FRACTION)
    valid = train + int(len(labelled) * _VALID_FRACTION)
    return {"train": labelled[:train], "valid": labelled[train:valid], "test": labelled[valid:]}
