"""Applies a trained model to all nodes of a graph: classes with probabilities, or hidden representations."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from storage.disk_full import on_full_disk
from storage.errors import InputError
from storage.formats.base import GraphSource
from storage.formats.results import Columns, write_npy, write_table
from storage.graph_store import FEATURES, GraphStore
from storage.ingest import IngestOptions, ingest
from storage.leftovers import scratch_directory
from storage.locks import in_use
from storage.manifest import Manifest
from tasks.artifacts import SCRATCH_FOLDER, find_artifact
from tasks.budgets import Budgets, Estimate
from tasks.memory import ingest_planner, numbering_room
from tasks.model_data import ModelData
from tasks.model_reference import NamedModel
from tasks.prediction_rows import Head, PredictionPlan, Rows, original_ids, plan_prediction, predicted_rows
from tasks.sources import STORE_FILE

Output = Literal["classes", "hidden"]
_logger = logging.getLogger(__name__)
_SCRATCH = ".garden-predict-"
_FULL_DISK = "choose an output on another disk"
_SCRATCH_DISK = "another state directory on another disk (--state-dir)"


@dataclass(frozen=True)
class Written:
    """What was written."""

    path: Path
    """The file."""
    rows: int
    """Rows in it, one a node."""
    columns: int
    """Classes, or width of the representation."""


def write_output(
    named: NamedModel,
    store_path: Path,
    out: Path,
    output: Output,
    budgets: Budgets,
    *,
    scratch: Path | None = None,
    held_bytes: int = 0,
) -> Written:
    """Apply a model to every node of a store, exactly, over all neighbors; rows come in the order of the input.

    Where memory does not hold the graph, it is read from disk layer by layer: the numbers are the same to rounding.

    Parameters
    ----------
    named
        The model.
    store_path
        Store file (`graph.h5`), or the artifact that holds it.
    out
        File to write: Parquet, CSV, or `.npy` for bare hidden representations.
    output
        `classes` writes the columns `id`, `class` and `p_<class>` for each class (no `class` where a node may have
        several labels); `hidden` writes `id` and `embedding`, what enters the last layer.
    budgets
        What memory and disk may be used.
    scratch
        Folder for files that are needed meanwhile; by default that of the output.
    held_bytes
        Bytes of disk that are taken already and count.

    Raises
    ------
    InputError
        If model and store do not fit together.
    BudgetError, MachineError
        If it needs more memory or disk than it may use or than there is.
    """
    path = store_file(store_path)
    with _open_in_use(path) as store:
        _check_fit(named, store)
        head, folder = Head.of(named.model, hidden=output == "hidden"), out.absolute().parent
        folder.mkdir(parents=True, exist_ok=True)
        plan = plan_prediction(head, store, out, budgets.memory_bytes())
        _check_budgets(budgets, plan, folder, scratch or folder, held_bytes)
        if plan.share is not None:
            _logger.info("prediction: from disk, layer by layer")
        with on_full_disk(_FULL_DISK), scratch_directory(scratch or folder, _SCRATCH) as files:
            left = max(0, budgets.free_disk_bytes(files, held_bytes) - plan.estimate.disk_bytes)
            rows = predicted_rows(head, store, plan, files, edges_disk_bytes=left)
            if out.suffix == ".npy":
                write_npy(out, (store.info.num_nodes, head.width), (output for _, output in rows))
            else:
                write_table(out, _table(named, store, output, rows))
        return Written(out, store.info.num_nodes, head.width)


def _check_budgets(budgets: Budgets, plan: PredictionPlan, folder: Path, scratch: Path, held_bytes: int) -> None:
    """Refuse what does not fit; where output and scratch files lie on two disks, each is to have room for its own."""
    scratch.mkdir(parents=True, exist_ok=True)
    budgets.check("prediction", plan.estimate, scratch, held_bytes)
    if folder.stat().st_dev != scratch.stat().st_dev:
        Budgets().check("the output of prediction", Estimate(0, plan.table_bytes), folder)


def _table(named: NamedModel, store: GraphStore, output: Output, rows: Iterator[Rows]) -> Iterator[Columns]:
    """Columns of the table, some rows at a time."""
    for ids, rows_ND in rows:
        columns = {"embedding": rows_ND} if output == "hidden" else _class_columns(rows_ND, named, store)
        yield {"id": original_ids(ids), **columns}


@contextlib.contextmanager
def ingested(
    named: NamedModel, open_graph: Callable[[], GraphSource], symmetrize: bool | None, folder: Path, budgets: Budgets
) -> Iterator[Path]:
    """Ingest a new graph for a model, as the training graph was, into a store that is gone when the block ends.

    Parameters
    ----------
    named
        The model.
    open_graph
        Describes the new graph.
    symmetrize
        Add the reverse of every edge; None does as for the training graph.
    folder
        Where the store lies meanwhile.
    budgets
        What memory and disk may be used.

    Yields
    ------
    Path
        The store.

    Raises
    ------
    InputError
        If the graph's features do not fit the model, or its files are wrong.
    """
    source = open_graph()
    if source.features is None:
        raise InputError(f"{source.where} has no features, which {named.where} needs: give --features")
    _check_width(named, source.features.dim, source.features.where)
    options = _reading_options(named.data, symmetrize)
    folder.mkdir(parents=True, exist_ok=True)
    plan = ingest_planner(options, budgets, folder)
    plan(source)
    with scratch_directory(folder, _SCRATCH) as directory:
        path = directory / STORE_FILE
        with on_full_disk(_SCRATCH_DISK):
            ingest(source, options, path, plan=plan, room=numbering_room(budgets, directory))
        yield path


def scratch_folder(state_dir: Path, out: Path) -> Path:
    """Where a prediction's scratch files go: to the state directory, or beside the output where there is none."""
    return state_dir / SCRATCH_FOLDER if state_dir.is_dir() else out.absolute().parent


def find_store(text: str, state_dir: Path) -> Path:
    """Return the store, or the artifact that holds it, which a command line names by path or digest.

    Raises
    ------
    InputError
        If there is none.
    """
    if Path(text).exists():
        return Path(text)
    artifact = find_artifact(text, state_dir)
    if artifact is None:
        raise InputError(
            f"{text} is no store: give a graph.h5, the artifact of a reorder stage, or its digest (`garden inspect "
            "NAME` shows those of a run; the state directory is --state-dir)"
        )
    return artifact


def store_file(path: Path) -> Path:
    """Return the store file of a store or of an artifact that holds one.

    Raises
    ------
    InputError
        If the artifact's store was collected, or there is none.
    """
    if not path.is_dir():
        return path
    manifest = Manifest.read(path)
    if manifest is None or STORE_FILE not in manifest.files:
        raise InputError(f"{path} is no artifact with a store: give a graph.h5, or an artifact of the reorder stage")
    if manifest.missing_files():
        raise InputError(f"the store of {path} is an intermediate and was removed: give the reordered one")
    return manifest.path(STORE_FILE)


@contextlib.contextmanager
def _open_in_use(path: Path) -> Iterator[GraphStore]:
    """Open a store; one in an artifact is protected from `garden gc` meanwhile."""
    is_artifact = Manifest.read(path.parent) is not None
    with in_use(path.parent) if is_artifact else contextlib.nullcontext(), GraphStore.open(path) as store:
        yield store


def _check_fit(named: NamedModel, store: GraphStore) -> None:
    if not store.has(FEATURES):
        raise InputError(f"{store.path} has no features, which {named.where} needs: ingest them with the graph")
    _check_width(named, store.info.feature_dim, str(store.path))


def _check_width(named: NamedModel, width: int, where: str) -> None:
    expected = named.model.spec.in_dim
    if width != expected:
        raise InputError(
            f"{where} has {width} features a node, {named.where} was trained on {expected}: they must agree"
        )


def _reading_options(data: ModelData | None, symmetrize: bool | None) -> IngestOptions:
    options = IngestOptions(symmetrize=True, split="random") if data is None else data.reading_options()
    return options if symmetrize is None else replace(options, symmetrize=symmetrize)


def _names(named: NamedModel, store: GraphStore) -> tuple[str, ...]:
    """Names of the classes: the model's own, else the store's if they are as many, else their numbers."""
    num_classes = named.model.spec.num_classes
    for names in (named.data.class_names if named.data else (), store.info.label_names):
        if len(names) == num_classes:
            return names
    return tuple(map(str, range(num_classes)))


def _is_multi_label(named: NamedModel, store: GraphStore) -> bool:
    """Whether each output is a label of its own; a bare model was trained for a graph like this one."""
    return store.info.is_multi_label if named.data is None else named.data.multi_label


def _class_columns(
    logits_NC: npt.NDArray[np.float32], named: NamedModel, store: GraphStore
) -> dict[str, npt.NDArray[Any]]:
    """Probabilities, and the likeliest class; rows sum to 1 where a node has one class."""
    names, many = _names(named, store), _is_multi_label(named, store)
    logits = torch.from_numpy(logits_NC)
    rows_NC = (torch.sigmoid(logits) if many else torch.softmax(logits, dim=1)).numpy()
    columns: dict[str, npt.NDArray[Any]] = {f"p_{name}": rows_NC[:, index] for index, name in enumerate(names)}
    if many:
        return columns
    return {"class": np.array(names, np.str_)[rows_NC.argmax(axis=1)], **columns}
