"""MUSAE graphs: `NAME_edges.csv`, `NAME.json` (features as lists of indices), `NAME_target.csv`.

Rozemberczki, Allen and Sarkar, "Multi-scale Attributed Node Embedding", J. Complex Networks 9, 2021.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from storage.errors import InputError
from storage.formats.base import FeatureTable, GraphSource, LabelColumn, rows_per_chunk
from storage.formats.edge_list import TextEdges
from storage.formats.files import require_file
from storage.formats.labels import to_labels
from storage.formats.text_dialect import find_dialect

_ID_COLUMNS = ("new_id", "id")
_LABEL_COLUMNS = ("page_type", "ml_target", "mature")


def open_musae(path: Path, name: str) -> GraphSource:
    """Describe a MUSAE graph (page-page networks, GitHub, Twitch). Its files hold each edge in one direction only.

    Nodes are the rows of the target file, whose ids must be 0..N-1 in any order.

    Parameters
    ----------
    path : Path
        Directory of the files.
    name : str
        As `facebook` in `facebook_edges.csv`.

    Returns
    -------
    GraphSource

    Raises
    ------
    InputError
        A file is missing, or is not what it should be.
    """
    labels = _read_labels(require_file(path / f"{name}_target.csv"))
    num_nodes = len(labels.labels_N)
    edges = require_file(path / f"{name}_edges.csv")
    reader = TextEdges(edges, find_dialect(edges, ",", None, None))
    if reader.dialect.names:
        raise InputError(f"{edges}: the ids in its first lines are no integers: fetch it again")
    bits = _read_features(require_file(path / f"{name}.json"), num_nodes)
    return GraphSource(
        where=f"{path / name}",
        edges=reader,
        approx_edges=reader.approx_edges,
        num_nodes=num_nodes,
        features=bits.table(f"{path / name}.json"),
        labels=labels,
        notes={"nodes_without_features": int(np.count_nonzero(np.diff(bits.indptr) == 0))},
    )


def _read_labels(path: Path) -> LabelColumn:
    """Labels in the order of the ids."""
    try:
        frame = pl.read_csv(path, infer_schema=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path} is no readable CSV file ({error})") from error
    id_column, label_column = _pick(path, frame, _ID_COLUMNS), _pick(path, frame, _LABEL_COLUMNS)
    ids = frame[id_column].cast(pl.Int64, strict=False).fill_null(-1).to_numpy()
    misplaced = np.flatnonzero(np.sort(ids) != np.arange(len(ids)))
    if len(misplaced):
        raise InputError(f"{path}: the ids in column {id_column!r} are not 0..{len(ids) - 1}, each once")
    labels_N = np.empty(len(ids), object)
    labels_N[ids] = frame[label_column].to_numpy()
    return to_labels(labels_N, str(path))


def _pick(path: Path, frame: pl.DataFrame, candidates: tuple[str, ...]) -> str:
    found = next((name for name in candidates if name in frame.columns), None)
    if found is None:
        raise InputError(f"{path} has none of the columns {candidates}: it has {', '.join(frame.columns)}")
    return found


@dataclass(frozen=True)
class _FeatureBits:
    """Multi-hot features as the indices that are set."""

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int64]

    def table(self, where: str) -> FeatureTable:
        """Make the rows dense, a chunk at a time."""
        num_nodes, dim = len(self.indptr) - 1, int(self.indices.max(initial=-1)) + 1
        rows = rows_per_chunk(dim)

        def chunks() -> Iterator[npt.NDArray[np.uint8]]:
            for start in range(0, num_nodes, rows):
                stop = min(start + rows, num_nodes)
                dense = np.zeros((stop - start, dim), np.uint8)
                row = np.repeat(np.arange(stop - start), np.diff(self.indptr[start : stop + 1]))
                dense[row, self.indices[self.indptr[start] : self.indptr[stop]]] = 1
                yield dense

        return FeatureTable(num_nodes, dim, np.dtype(np.uint8), chunks, where)


def _read_features(path: Path, num_nodes: int) -> _FeatureBits:
    """Feature indices of each node; the keys come in any order."""
    try:
        lists = json.loads(path.read_bytes())
        by_node = {int(key): indices for key, indices in lists.items()}
        lengths_N = np.array([len(by_node.get(node, ())) for node in range(num_nodes)], np.int64)
        flat = [index for node in range(num_nodes) for index in by_node.get(node, ())]
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is no JSON object of node id -> list of feature indices ({error})") from error
    stray = next((node for node in by_node if not 0 <= node < num_nodes), None)
    if stray is not None:
        raise InputError(f"{path} describes node {stray}, but ids end at {num_nodes - 1}")
    wrong = next((index for index in flat if not isinstance(index, int) or not 0 <= index < 2**31), None)
    if wrong is not None:
        raise InputError(f"{path}: {wrong!r} is no feature index: they are whole numbers from 0 on")
    return _FeatureBits(np.concatenate([[0], np.cumsum(lengths_N)]), np.array(flat, np.int64))
