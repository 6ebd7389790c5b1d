"""Stage 1, ingest: the files that users have become a graph store, checked and counted."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from conf.schema import DataConfig, PipelineConfig
from storage.formats.base import GraphSource
from storage.formats.demo import open_demo
from storage.formats.dgl_binary import open_dgl
from storage.formats.edge_list import open_edge_list
from storage.formats.igb import open_igb
from storage.formats.matrix_market import open_matrix_market
from storage.formats.musae import open_musae
from storage.formats.ogb import open_ogb
from storage.formats.parquet import open_parquet
from storage.formats.planetoid import open_planetoid
from storage.formats.sparse_npz import open_sparse_npz
from storage.formats.triples import open_triples
from storage.ingest import IngestOptions, ingest
from storage.manifest import Manifest
from tasks.artifacts import StageOutcome, StageSpec
from tasks.fetch import fetch_missing
from tasks.memory import ingest_estimate
from tasks.run_context import RunContext
from tasks.specs import INGEST, ingest_spec, reorder_spec

_logger = logging.getLogger(__name__)
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

STORE_FILE = "graph.h5"
"""Name of the store within an artifact."""


@task(name=INGEST, cache_policy=NO_CACHE)
def ingest_graph(run: RunContext) -> Manifest:
    """Open or build the store in ingest order.

    It is an intermediate: once the laid-out store exists its data may be gone, and nobody needs it.
    """
    fetch_missing(run.config.data)
    spec = ingest_spec(run.config, run.input_digests)
    collected = _finished_and_collected(run, spec)
    if collected is not None:
        return run.record(INGEST, lambda _: StageOutcome(collected, reused=True, seconds=0.0))

    options = ingest_options(run.config)
    source = functools.cache(lambda: open_source(run.config.data))  # for the estimate and for building

    def build(directory: Path) -> Mapping[str, Any]:
        def check_size(num_nodes: int) -> None:
            if source().num_nodes is None:  # else it was checked before the stage started
                run.artifacts.budgets.check(INGEST, ingest_estimate(source(), options, num_nodes), directory)

        report = ingest(source(), options, directory / STORE_FILE, on_num_nodes=check_size).as_dict()
        found = (f"{value:,} {name.removeprefix('num_').replace('_', ' ')}" for name, value in report.items() if value)
        _logger.info("%s: %s", INGEST, ", ".join(found))
        return report

    return run.open_or_build(spec, build, lambda: ingest_estimate(source(), options))


def open_source(data: DataConfig) -> GraphSource:
    """Describe the graph that a configuration names; large files are opened, not read through.

    Raises
    ------
    InputError
        If a file is missing or not of the format.
    """
    if data.format == "demo":
        return open_demo(**data.demo.model_dump())
    return _OPENERS[data.format](**data.reading_fields())


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
        train_fraction=data.train_fraction,
        valid_fraction=data.valid_fraction,
        split_seed=data.split_seed,
        block_bytes=int(config.layout.block_bytes),
    )


def _finished_and_collected(run: RunContext, spec: StageSpec) -> Manifest | None:
    """Return the ingest manifest if the laid-out store that was made of it is there."""
    if run.config.layout.keep_ingest or run.artifacts.open(reorder_spec(run.config, spec.digest)) is None:
        return None
    return run.artifacts.find(spec)
