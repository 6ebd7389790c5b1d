"""Describes what a path, a digest or a configuration stands for, as plain values: from metadata, and block by block."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from conf.schema import PipelineConfig
from storage.errors import InputError
from storage.formats.files import require_file
from storage.formats.summary import summarize_input
from storage.graph_store import INDPTR, OUT_DEGREE, GraphStore, row_chunks
from storage.manifest import MANIFEST_NAME, Manifest
from tasks.artifacts import CONFIG_FILE, ArtifactStore, StageSpec, find_artifact
from tasks.budgets import Budgets
from tasks.collect import newest_first, read_use
from tasks.input_digests import InputDigests
from tasks.sources import EXPLANATION_FILE, STORE_FILE
from tasks.specs import cache_spec, ingest_spec, profile_spec, reorder_spec, train_spec

Facts = dict[str, Any]
PERCENTILES = (0, 25, 50, 75, 90, 99, 100)
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


def describe_path(path: Path) -> Facts:
    """Describe a store, an artifact or an input file.

    Raises
    ------
    InputError
        If it is nothing that this program reads.
    """
    if path.is_dir():
        manifest = Manifest.read(path)
        if manifest is None:
            raise InputError(
                f"{path} is a directory without {MANIFEST_NAME}, so no artifact: give a store, an artifact, a file or "
                "a configuration"
            )
        return describe_artifact(manifest)
    with require_file(path).open("rb") as file:
        is_hdf5 = file.read(len(_HDF5_MAGIC)) == _HDF5_MAGIC
    if is_hdf5 or path.suffix == ".h5":
        return describe_store(path)
    return {"path": str(path), "bytes": path.stat().st_size, **summarize_input(path)}


def describe_digest(text: str, state_dir: Path) -> Facts | None:
    """Describe the artifact whose digest starts with a text; None where there is none.

    Raises
    ------
    InputError
        If several do.
    """
    found = find_artifact(text, state_dir)
    return None if found is None else describe_path(found)


def describe_run(name: str, state_dir: Path) -> Facts | None:
    """Describe what the newest run of a name used, stage by stage; None where no run has that name."""
    for path in newest_first(state_dir / "runs"):
        use = read_use(path)
        if use.name == name:
            stages = {stage: _stage_facts(state_dir, stage, digest) for stage, digest in use.stages.items()}
            config = path.parent / CONFIG_FILE
            return {"kind": "run", "name": name, "config": str(config) if config.exists() else None, "stages": stages}
    return None


def _stage_facts(state_dir: Path, stage: str, digest: str) -> Facts:
    directory = state_dir / "artifacts" / stage / digest
    manifest = Manifest.read(directory) if directory.is_dir() else None
    return {
        "digest": digest,
        "path": str(directory),
        "there": manifest is not None and not manifest.missing_files(),
        "counts": dict(manifest.counts) if manifest else {},
    }


def describe_artifact(manifest: Manifest) -> Facts:
    """Describe an artifact, and the store in it."""
    missing = manifest.missing_files()
    facts: Facts = {
        "kind": "artifact",
        "path": str(manifest.directory),
        "stage": manifest.stage,
        "digest": manifest.digest,
        "created": manifest.created,
        "seconds": manifest.seconds,
        "bytes": manifest.nbytes,
        "files": dict(manifest.files),
        "missing_files": missing,
        "inputs": dict(manifest.inputs),
        "counts": dict(manifest.counts),
        "config": dict(manifest.config),
    }
    if EXPLANATION_FILE in manifest.files and not missing:
        facts["explanation"] = " ".join(manifest.path(EXPLANATION_FILE).read_text(encoding="utf-8").splitlines())
    if STORE_FILE in manifest.files and not missing:
        facts["store"] = describe_store(manifest.path(STORE_FILE))
    return facts


def describe_store(path: Path) -> Facts:
    """Describe a graph store; degrees are read block by block."""
    with GraphStore.open(path) as store:
        info = store.info
        extents = {name: store.extent(name) for name in store.datasets}
        return {
            "kind": "store",
            "path": str(path),
            "bytes": store.num_file_bytes,
            "format_version": info.format_version,
            "order": info.order,
            "block_bytes": info.block_bytes,
            "num_nodes": info.num_nodes,
            "num_edges": info.num_edges,
            "feature_dim": info.feature_dim,
            "feature_dtype": str(info.feature_dtype) if info.feature_dim else None,
            "num_classes": info.num_classes,
            "class_names": list(info.label_names),
            "relations": len(info.relation_names),
            "splits": dict(info.split_sizes),
            "links": dict(info.link_sizes),
            "degree_percentiles": {"in": _degrees(store, INDPTR), "out": _degrees(store, OUT_DEGREE)},
            "datasets": {
                name: {"dtype": str(e.dtype), "shape": list(e.shape), "bytes": e.nbytes, "blocks": e.num_blocks}
                for name, e in extents.items()
            },
        }


def describe_config(config: PipelineConfig) -> Facts:
    """Tell for each stage of a configuration whether it is finished, and where its artifact lies or would lie.

    Raises
    ------
    InputError
        If an input file is missing.
    """
    artifacts = ArtifactStore(config.state_dir, Budgets())
    stages: Facts = {}
    for spec in _specs(config):
        manifest = artifacts.find(spec)
        stages[spec.stage] = {
            "digest": spec.digest,
            "path": str(artifacts.directory(spec)),
            "finished": manifest is not None,
            "removed": bool(manifest and manifest.missing_files()),
            "counts": dict(manifest.counts) if manifest else {},
        }
    return {"kind": "configuration", "name": config.name, "format": config.data.format, "stages": stages}


def _specs(config: PipelineConfig) -> list[StageSpec]:
    specs = [ingest_spec(config, InputDigests(config.state_dir, verify=False))]
    for make in (reorder_spec, profile_spec, cache_spec, train_spec):
        specs.append(make(config, specs[-1].digest))
    return specs


def _degrees(store: GraphStore, name: str) -> Mapping[str, int]:
    """Percentiles of the degrees (nearest rank) from a histogram, which is small however many nodes there are."""
    histogram: dict[int, int] = {}
    last: npt.NDArray[Any] = np.empty(0, np.int64)
    for chunk in row_chunks(store, name):
        values = np.diff(chunk, prepend=last) if name == INDPTR else chunk
        last = chunk[-1:]
        for degree, count in zip(*np.unique(values, return_counts=True), strict=True):
            histogram[int(degree)] = histogram.get(int(degree), 0) + int(count)
    degrees = np.array(sorted(histogram), np.int64)
    if not len(degrees):
        return {}
    reached = np.cumsum([histogram[degree] for degree in degrees.tolist()])
    ranks = [max(1, -(-percent * int(reached[-1]) // 100)) for percent in PERCENTILES]
    return {str(p): int(degrees[np.searchsorted(reached, rank)]) for p, rank in zip(PERCENTILES, ranks, strict=True)}
