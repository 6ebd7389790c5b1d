"""Whether a run that is to end with training can: asked as early as the answer is known, before anything is built."""

from __future__ import annotations

from pathlib import Path

from conf.schema import PipelineConfig
from storage.errors import InputError
from storage.formats.base import GraphSource
from storage.graph_store import FEATURES, LABELS, GraphStore

_TABLE_FORMATS = ("edge_list", "parquet", "matrix_market", "npz")


def check_config(config: PipelineConfig) -> None:
    """Refuse a configuration whose data cannot be trained on, whatever its files hold.

    Raises
    ------
    InputError
        If it names no features or no labels, or reads a format that has none.
    """
    data = config.data
    if data.format == "triples":
        raise InputError("triples have no labels of nodes to train on: stop before training (--until cache)")
    if data.format in _TABLE_FORMATS:
        _require(data.features is not None, data.labels is not None, str(data.edges))


def check_source(source: GraphSource) -> None:
    """Refuse an opened data set without features or without labels of its nodes.

    Raises
    ------
    InputError
        If it has none.
    """
    _require(source.features is not None, source.labels is not None, source.where)


def check_store(path: Path) -> None:
    """Refuse a store without features or labels.

    Raises
    ------
    InputError
        If it has none.
    """
    with GraphStore.open(path) as store:
        _require(store.has(FEATURES), store.has(LABELS) or store.info.is_multi_label, str(path))


def _require(features: bool, labels: bool, where: str) -> None:
    if not (features and labels):
        missing = "features" if labels else "labels"
        raise InputError(
            f"the graph has no {missing} ({where}): give data.{missing}, or stop before training (--until cache)"
        )
