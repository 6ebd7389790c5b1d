"""The graph that a configuration names, and how it is to be ingested; knows no Prefect."""

from __future__ import annotations

from collections.abc import Callable

from conf.data import DataConfig
from conf.schema import PipelineConfig
from storage.formats.base import GraphSource
from storage.formats.demo import open_demo
from storage.formats.dgl_binary import open_dgl
from storage.formats.edge_list import open_edge_list
from storage.formats.igb import igb_label_bytes, open_igb
from storage.formats.matrix_market import open_matrix_market
from storage.formats.musae import open_musae
from storage.formats.ogb import open_ogb
from storage.formats.parquet import open_parquet
from storage.formats.planetoid import open_planetoid
from storage.formats.rmat import open_rmat
from storage.formats.sparse_npz import open_sparse_npz
from storage.formats.tables import label_reading_bytes
from storage.formats.triples import open_triples
from storage.ingest import IngestOptions
from tasks.specs import input_files

_OPENERS: dict[str, Callable[..., GraphSource]] = {
    "planetoid": open_planetoid,
    "edge_list": open_edge_list,
    "parquet": open_parquet,
    "musae": open_musae,
    "matrix_market": open_matrix_market,
    "npz": open_sparse_npz,
    "dgl": open_dgl,
    "ogb": open_ogb,
    "igb": open_igb,
    "triples": open_triples,
}

EXPLANATION_FILE = "explanation.txt"
"""Name of a cache plan in words, within its artifact."""
STORE_FILE = "graph.h5"
"""Name of the store within an artifact."""


def open_source(data: DataConfig) -> GraphSource:
    """Describe the graph that a configuration names; large files are opened, not read through.

    Raises
    ------
    InputError
        If a file is missing or not of the format.
    """
    if data.format == "demo":
        return open_demo(**data.demo.model_dump())
    if data.format == "rmat":
        return open_rmat(**data.rmat.model_dump())
    return _OPENERS[data.format](**data.reading_fields())


def opening_bytes(data: DataConfig) -> int:
    """Memory that opening the files takes, as far as their sizes tell: labels are read then, unless they go by id.

    Raises
    ------
    InputError
        If a file is missing or damaged.
    """
    labels = next((path for role, path in input_files(data).items() if "label" in role), None)
    if labels is None or data.id_column is not None:
        return 0
    read = igb_label_bytes if data.format == "igb" else label_reading_bytes
    return read(labels)


def ingest_options(config: PipelineConfig) -> IngestOptions:
    """Translate the `data` section."""
    data = config.data
    return IngestOptions(
        symmetrize=data.symmetrize,
        deduplicate=data.deduplicate,
        self_loops=data.self_loops,
        nan_policy=data.nan_policy,
        normalize_features=data.normalize_features,
        split=data.split,
        task=data.task,
        train_fraction=data.train_fraction,
        valid_fraction=data.valid_fraction,
        split_seed=data.split_seed,
    )
