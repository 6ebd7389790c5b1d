"""What decides each stage's output; settings that change only speed or memory are left out and cause no rebuild."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from conf.data import DataConfig
from conf.schema import PipelineConfig
from storage.formats.igb import igb_files
from storage.formats.ogb import ogb_files
from storage.formats.triples import triple_files
from storage.graph_store import FORMAT_VERSION as STORE_FORMAT_VERSION
from tasks.artifacts import StageSpec
from tasks.input_digests import InputDigests

INGEST, REORDER, PROFILE, CACHE, TRAIN = STAGES = ("ingest", "reorder", "profile", "cache", "train")
"""Names of the stages, in order."""

# Raise a stage's number when the same input and configuration would give another result.
_ALGORITHM_VERSION = {INGEST: 1, REORDER: 1, PROFILE: 2, CACHE: 2, TRAIN: 3}
_FORMAT_VERSION = {INGEST: STORE_FORMAT_VERSION, REORDER: STORE_FORMAT_VERSION, PROFILE: 2, CACHE: 2, TRAIN: 1}

_FILE_FIELDS = {"path", "edges", "features", "labels", "url", "checksum"}
_NO_EFFECT_ON_SAMPLES = {"superbatch", "threads", "in_flight_bytes"}


def ingest_spec(config: PipelineConfig, digests: InputDigests) -> StageSpec:
    """Decide ingest by the content of the input files and the `data` section, file names and other formats left out.

    Raises
    ------
    InputError
        If an input file is missing.
    """
    files = input_files(config.data)
    unused = {"demo", "rmat"} - {config.data.format}
    unused |= {"id_column"} if config.data.id_column is None else set()  # stores made before there was one stay
    content = {name: digests.digest(path) for name, path in files.items()}
    return _spec(INGEST, content, _plain(config.data, _FILE_FIELDS | unused))


def reorder_spec(config: PipelineConfig, ingest: str) -> StageSpec:
    """Decide the laid-out store by the ingested one; the hotness order also by what is sampled to find it."""
    section = _plain(config.layout, {"keep_ingest"})
    if config.layout.order == "hotness":
        # Its counts come from epochs that choose; there are no held-out ones.
        section |= {"hotness": _sampled(config, {"heldout_epochs"}) | {"counting": config.profile.counting}}
    return _spec(REORDER, {INGEST: ingest}, section)


def profile_spec(config: PipelineConfig, reorder: str) -> StageSpec:
    """Decide the access profile by the laid-out store and what is sampled; both counting rules are kept."""
    return _spec(PROFILE, {REORDER: reorder}, _sampled(config))


def cache_spec(config: PipelineConfig, profile: str) -> StageSpec:
    """Decide the cache plan by the profile, the budget and the counting rule."""
    section = _plain(config.cache, {"pinned"}) | {"counting": config.profile.counting}
    return _spec(CACHE, {PROFILE: profile}, section)


def train_spec(config: PipelineConfig, cache: str) -> StageSpec:
    """Decide training by the plan (and so the store) and everything else that its figures depend on."""
    sampling = _plain(config.sampling, {"threads", "in_flight_bytes"})
    sections = {"sampling": sampling, "model": _plain(config.model), "training": _plain(config.training)}
    return _spec(TRAIN, {CACHE: cache}, {"seed": config.seed, **sections})


def input_files(data: DataConfig) -> dict[str, Path]:
    """Return the raw files that a configuration reads, by role and suffix; none for a generated graph.

    Where the reader finds files in a folder by their names, the names are the roles.

    Raises
    ------
    InputError
        If a data set's directory is not what it should be.
    """
    if data.format == "planetoid":
        parts = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
        return _in_folder(data, [f"ind.{data.name}.{part}" for part in parts])
    if data.format == "musae":
        return _in_folder(data, [f"{data.name}{rest}" for rest in ("_edges.csv", ".json", "_target.csv")])
    if data.format in ("ogb", "igb", "triples"):
        return _of_directory(data)
    named = {"edges": data.edges, "features": data.features, "labels": data.labels}
    # The suffix counts, the rest of the name does not: readers go by it.
    return {f"{role}{''.join(path.suffixes[-2:])}": path for role, path in named.items() if path is not None}


def _of_directory(data: DataConfig) -> dict[str, Path]:
    """Files whose names the format's own reader knows."""
    assert data.path is not None, "checked by the schema"
    if data.format == "ogb":
        return ogb_files(data.path, data.split_scheme)
    return igb_files(data.path, data.label_set) if data.format == "igb" else triple_files(data.path)


def _in_folder(data: DataConfig, names: list[str]) -> dict[str, Path]:
    assert data.path is not None, "checked by the schema"
    return {name: data.path / name for name in names}


def _sampled(config: PipelineConfig, unused: Collection[str] = ()) -> dict[str, Any]:
    """Everything that the sampled streams of the profile depend on."""
    epochs = _plain(config.profile, {"counting", *unused})
    return {"seed": config.seed, "sampling": _plain(config.sampling, _NO_EFFECT_ON_SAMPLES), **epochs}


def _plain(section: BaseModel, exclude: Collection[str] = ()) -> dict[str, Any]:
    return section.model_dump(mode="json", exclude=set(exclude))


def _spec(stage: str, inputs: Mapping[str, str], config: Mapping[str, Any]) -> StageSpec:
    return StageSpec(stage, inputs, config, _ALGORITHM_VERSION[stage], _FORMAT_VERSION[stage])
