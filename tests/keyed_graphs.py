"""Writes graphs whose edges, features and labels go by ids of the user's own, in no order, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
from polars.io.plugins import register_io_source

NameIds = Callable[[npt.NDArray[np.int64]], pl.Series]
_EDGES, _VALUES = 1 << 18, 1 << 20
_GROUP_PIECES = 4


def string_ids(nodes: npt.NDArray[np.int64]) -> pl.Series:
    """Names of nodes whose order is not that of their numbers."""
    return "user-" + pl.Series(nodes).cast(pl.String)


def gapped_ids(nodes: npt.NDArray[np.int64]) -> pl.Series:
    """Integers that lie far apart."""
    return pl.Series(nodes * 1_000_003 + 7)


def write_keyed_graph(
    folder: Path,
    suffix: str,
    num_nodes: int,
    num_edges: int,
    dim: int,
    *,
    ids: NameIds = string_ids,
    labelled: float = 1.0,
) -> int:
    """Write `edges`, `features` and `labels` with that suffix (`.csv` or `.parquet`); bytes of topology and features.

    Sources are skewed; every node has a row of features, and a share of them a label, in an order of their own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    pieces = {
        "edges": _edges(rng, num_nodes, num_edges, ids),
        "features": _features(rng, num_nodes, dim, ids),
        "labels": _labels(rng, num_nodes, ids, labelled),
    }
    for name, frames in pieces.items():
        _write(folder / f"{name}{suffix}", frames)
    return num_nodes * (4 * dim + 8) + 4 * num_edges


def settings(folder: Path, suffix: str) -> list[str]:
    """Overrides of the preset `edge_list` that read such a graph."""
    files = (f"data.{name}={folder / name}{suffix}" for name in ("edges", "features", "labels"))
    format_ = "parquet" if suffix == ".parquet" else "edge_list"
    return [*files, f"data.format={format_}", "data.id_column=id", "data.symmetrize=false"]


def _edges(rng: np.random.Generator, num_nodes: int, num_edges: int, ids: NameIds) -> Iterator[pl.DataFrame]:
    for start in range(0, num_edges, _EDGES):
        count = min(_EDGES, num_edges - start)
        src = (rng.random(count) ** 2 * num_nodes).astype(np.int64)
        yield pl.DataFrame({"src": ids(src), "dst": ids(rng.integers(0, num_nodes, count))})


def _features(rng: np.random.Generator, num_nodes: int, dim: int, ids: NameIds) -> Iterator[pl.DataFrame]:
    values, order = rng.standard_normal(_VALUES, np.float32), rng.permutation(num_nodes)
    rows = max(1, _VALUES // dim)
    for start in range(0, num_nodes, rows):
        nodes = order[start : start + rows]
        piece = np.resize(np.roll(values, start), (len(nodes), dim))
        yield pl.DataFrame({"id": ids(nodes)} | {f"f{column}": piece[:, column] for column in range(dim)})


def _labels(rng: np.random.Generator, num_nodes: int, ids: NameIds, labelled: float) -> Iterator[pl.DataFrame]:
    order = rng.permutation(num_nodes)[: int(labelled * num_nodes)]
    for start in range(0, len(order), _EDGES):
        nodes = order[start : start + _EDGES]
        yield pl.DataFrame({"id": ids(nodes), "label": rng.integers(0, 10, len(nodes))})


def _write(path: Path, frames: Iterator[pl.DataFrame]) -> None:
    """Write pieces one after the other, four to a row group."""
    if path.suffix == ".parquet":
        first = next(frames)
        source = register_io_source(lambda *_: chain([first], frames), schema=first.schema)
        rows = _GROUP_PIECES * max(1, first.height)
        source.sink_parquet(path, row_group_size=rows, compression="uncompressed", maintain_order=True)
        return
    with path.open("wb") as file:
        for number, frame in enumerate(frames):
            frame.write_csv(file, include_header=not number)
