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
from storage.ingest import IngestOptions
from storage.splits import count_labelled, has_training_nodes, labelled_chunks
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
        If it names no features or no labels, reads a format that has none, or trains on no node; or if a generated
        graph has not as many classes as there are class weights.
    """
    data = config.data
    if data.format in ("demo", "rmat"):
        generated = data.demo if data.format == "demo" else data.rmat
        _check_weights(config, generated.classes, f"the generated graph (data.{data.format})")
        if data.split == "provided" and not generated.train_fraction:
            raise InputError(f"data.{data.format}.train_fraction=0 leaves no node to train on: set it above 0")
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


def check_source(source: GraphSource, config: PipelineConfig) -> None:
    """Refuse an opened data set that cannot be trained on: as far as is known, without reading an edge.

    Labels that go by id are looked at once they were read: ask again then.

    Raises
    ------
    InputError
        If it has no features or no labels of its nodes, if all labels are unknown, or if there are not as many class
        weights as classes.
    """
    labels = source.labels
    _require(source.features is not None, labels is not None or source.labelled_later, source.where)
    if labels is None:
        return
    if not any(len(nodes) for nodes in labelled_chunks(labels.labels_N, len(labels.labels_N))):
        raise InputError(
            f"no node of {source.where} has a label: all are negative, NaN or empty; give at least some nodes a class"
        )
    _check_weights(config, len(labels.names), source.where)


def check_seeds(source: GraphSource, options: IngestOptions) -> None:
    """Refuse an opened data set whose split leaves no node to train on, as far as `check_source` knows.

    Raises
    ------
    InputError
        If there is none.
    """
    labels, num_nodes = source.labels, source.num_nodes
    if num_nodes is None or (labels is None and source.labelled_later):
        return
    labels_N = None if labels is None else labels.labels_N
    if labels_N is not None and len(labels_N) != num_nodes:
        return  # which ingest says
    counted = "all nodes" if labels is None else "the labelled nodes"
    if options.split == "random":
        total = count_labelled(labels_N, num_nodes)
        if not round(total * options.train_fraction):
            raise InputError(
                f"data.train_fraction={options.train_fraction} of {counted} of {source.where}, {total}, leaves no node "
                "to train on: set it higher"
            )
    elif source.splits is not None and not has_training_nodes(
        source.splits, labels_N, num_nodes, full=options.split == "full"
    ):
        raise InputError(
            f"the split of {source.where} leaves no labelled node to train on: set data.split=random, or correct the "
            "split or the labels"
        )


def check_store(path: Path, config: PipelineConfig) -> None:
    """Refuse a store that cannot be trained on.

    Raises
    ------
    InputError
        If it has no features, no labels, no node to train on, or not as many classes as there are class weights.
    """
    with GraphStore.open(path) as store:
        _require(store.has(FEATURES), store.has(LABELS) or store.info.is_multi_label, str(path))
        if not store.info.split_sizes["train"]:
            raise InputError(f"{path} has no training nodes: check data.split and the labels")
        _check_weights(config, store.info.num_classes, str(path))


def _check_weights(config: PipelineConfig, num_classes: int, where: str) -> None:
    weights = config.training.class_weights
    if isinstance(weights, tuple) and len(weights) != num_classes:
        raise InputError(
            f"training.class_weights has {len(weights)} numbers, {where} has {num_classes} classes: give one a class, "
            "or set it to balanced or none"
        )


def _require(features: bool, labels: bool, where: str) -> None:
    if not (features and labels):
        missing = "features" if labels else "labels"
        raise InputError(
            f"the graph has no {missing} ({where}): give --{missing} FILE (--set data.{missing}=FILE), or stop "
            "before training (--until cache)"
        )
