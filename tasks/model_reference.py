"""Finds the model that a command line names: a folder, a training's artifact, or a version in the registry."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernels.nn.model import GnnModel
from storage.errors import InputError
from tasks.checkpoint import SPEC_FILE, load_model
from tasks.model_data import MODEL_FOLDER, ModelData
from tasks.specs import REORDER

_REGISTERED = re.compile(r"^(?P<name>[^@/]+)@(?P<version>[A-Za-z0-9_-]+)$")


@dataclass(frozen=True)
class NamedModel:
    """A model and what it knows of its training data."""

    model: GnnModel
    """Network and weights."""
    data: ModelData | None
    """Classes and reading rules; None where the folder has none."""
    where: str
    """How messages name it."""


def open_model(reference: str, state_dir: Path) -> NamedModel:
    """Load a model.

    Parameters
    ----------
    reference
        Directory of a model (`arch.json`, `state_dict.pt`) or of a training's artifact, or `name@champion`, or
        `name@3` for a version in the MLflow registry.
    state_dir
        State directory of the registry, unless MLFLOW_TRACKING_URI names another.

    Raises
    ------
    InputError
        If there is no such model.
    StorageError
        If it is damaged.
    MachineError
        If the registry cannot be reached.
    """
    with _folder(reference, state_dir) as folder:
        return NamedModel(load_model(folder), ModelData.load(folder), reference)


def trained_on(named: NamedModel, state_dir: Path) -> Path:
    """Return the artifact that holds the store a model was trained on.

    Raises
    ------
    InputError
        If the model does not know, or the store is gone.
    """
    digest = None if named.data is None else named.data.store_digest
    if digest is None:
        raise InputError(f"{named.where} does not know which store it was trained on: give a STORE")
    directory = state_dir / "artifacts" / REORDER / digest
    if not directory.is_dir():
        raise InputError(
            f"the store that {named.where} was trained on is not in {state_dir} ({REORDER}/{digest}): run its "
            f"configuration again with --until {REORDER}, or give a STORE"
        )
    return directory


@contextlib.contextmanager
def _folder(reference: str, state_dir: Path) -> Iterator[Path]:
    path = Path(reference)
    for candidate in (path, path / MODEL_FOLDER):
        if (candidate / SPEC_FILE).is_file():
            yield candidate
            return
    if path.exists():
        raise InputError(f"{reference} holds no model: give the folder with {SPEC_FILE}, or the artifact of a training")
    match = _REGISTERED.match(reference)
    if match is None:
        raise InputError(
            f"{reference} is no model: give its folder, a training's artifact, or NAME@champion for a registered one"
        )
    from tasks.tracking_models import download_model

    with tempfile.TemporaryDirectory(prefix="garden-model-") as directory:
        yield download_model(state_dir, match["name"], match["version"], Path(directory))
