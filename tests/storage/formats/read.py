"""Read a source as ingest would, into plain Python."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from storage.formats.base import GraphSource

DATA = Path(os.environ.get("GARDEN_DATA", "data"))


def read_edges(source: GraphSource) -> list[tuple[int, int]]:
    """Edges as pairs of raw ids."""
    return [pair for src, dst in source.edge_chunks() for pair in zip(src.tolist(), dst.tolist(), strict=True)]


def read_features(source: GraphSource) -> npt.NDArray[Any]:
    """All feature rows."""
    assert source.features is not None
    chunks = [chunk.copy() for chunk in source.features.chunks()]
    return np.concatenate(chunks) if chunks else np.empty((0, source.features.dim))


def real_graph(folder: str) -> Path:
    """Folder of a public graph, or a skip."""
    if not (DATA / folder).is_dir():
        pytest.skip(f"{folder} is not in GARDEN_DATA ({DATA})")
    return DATA / folder
