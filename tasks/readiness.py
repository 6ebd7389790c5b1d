"""Whether a run that is to end with training can: asked as early as the answer is known, before anything is built."""

from __future__ import annotations

from pathlib import Path

from conf.data import DataConfig
from conf.schema import PipelineConfig
from storage.errors import InputError
from storage.formats.base import GraphSource
from storage.formats.files import require_file
from storage.formats.tables import check_lengths
from storage.graph_store import FEATURES, LABELS, GraphStore
from tasks.specs import input_files

_PUBLISHED = {
    "planetoid": "https://github.com/kimiyoung/planetoid/tree/master/data",
    "musae": "https://github.com/benedekrozemberczki/MUSAE/tree/master/input",
}
_TABLE_FORMATS = ("edge_list", "parquet", "matrix_market", "npz")


def check_config(config: PipelineConfig) -> None:
    """Refuse a configuration whose data cannot be trained on, whatever its files hold.

    Raises
    ------
    InputError
        If it names no features or no labels, reads a format that has none, or trains on no node.
    """
    data = config.data
    if data.format == "triples":
        raise InputError("triples have no labels of nodes to train on: stop before training (--until cache)")
    if data.format in _TABLE_FORMATS:
        _require(data.features is not None, data.labels is not None, str(data.edges))
    if data.split == "random" and not data.train_fraction:
        raise InputError("data.train_fraction=0 leaves no node to train on: set it above 0")


def check_files(config: PipelineConfig) -> None:
    """Look for the input files, and compare the sizes that tables declare, before anything is started.

    Raises
    ------
    InputError
        If a file is missing or is not of its kind, or features and labels differ in length.
    """
    data = config.data
    if data.path is not None and not data.path.exists():
        if data.url is None:
            raise InputError(f"{data.path} does not exist: {_way_to(data)}")
        return
    for path in input_files(data).values():
        if data.path is not None and not path.exists():
            raise InputError(f"{path} does not exist: {_way_to(data)}")
        require_file(path)
    if data.format in _TABLE_FORMATS and data.id_column is None and data.num_nodes is None:
        check_lengths(data.features, data.labels)


def _way_to(data: DataConfig) -> str:
    """Where a data set's files are to be had, and how to say where they are."""
    known = _PUBLISHED.get(data.format)
    fetch = f"its files are at {known}; " if known else ""
    if data.format in ("ogb", "igb", "triples"):
        fetch = "to have it fetched, --set data.url=https://... (docs/formats.md); "
    return f"{fetch}where they lie elsewhere, --set data.path=DIR"


def check_source(source: GraphSource) -> None:
    """Refuse an opened data set without features or without labels of its nodes.

    Raises
    ------
    InputError
        If it has none.
    """
    _require(source.features is not None, source.labels is not None or source.labelled_later, source.where)


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
            f"the graph has no {missing} ({where}): give --{missing} FILE (--set data.{missing}=FILE), or stop "
            "before training (--until cache)"
        )
