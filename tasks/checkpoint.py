"""Checkpoints and models on disk: written whole or not at all, checked when read, nothing unpickled but tensors."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from kernels.nn.model import GnnModel, ModelSpec, build_model
from storage.atomic import write_bytes, write_text
from storage.errors import FormatVersionError, InputError, StorageError
from tasks.training_reports import StateDict

FORMAT_VERSION = 3
SPEC_FILE = "arch.json"
WEIGHTS_FILE = "state_dict.pt"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything that training needs to go on as if it had never stopped."""

    digest: str
    """Hash of what decides the outcome; a checkpoint serves no other run."""
    model: StateDict
    """Weights after the last epoch."""
    optimizer: dict[str, Any]
    """State of the optimizer."""
    best_model: StateDict
    """Weights of the best epoch."""
    history_bytes: int
    """How much of the history's file belongs to it (`tasks.history`)."""
    history_crc32: int
    """Checksum of that part."""


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint in one step: whenever the writer is killed, a reader finds the old one or the new one.

    Raises
    ------
    MachineError
        If the disk is full; the old checkpoint stays.
    """
    values = {field.name: getattr(checkpoint, field.name) for field in fields(Checkpoint)}
    _save_tensors(path, {"format_version": FORMAT_VERSION, **values})


def load_checkpoint(path: Path, digest: str) -> Checkpoint:
    """Read the checkpoint of the run that has this digest.

    Raises
    ------
    InputError
        If it belongs to a run of other options or data.
    StorageError
        If the file is damaged or no checkpoint.
    FormatVersionError
        If another version of this program wrote it.
    """
    values = _load_tensors(path)
    version = values.pop("format_version", None)
    if version is not None and version != FORMAT_VERSION:
        raise FormatVersionError(
            f"{path} has checkpoint format {version}, not {FORMAT_VERSION}: remove it to start anew"
        )
    if version is None or set(values) != {field.name for field in fields(Checkpoint)}:
        raise StorageError(f"{path} is not a checkpoint: remove it to train from the start")
    if values["digest"] != digest:
        raise InputError(
            f"{path} belongs to a run of other options or data: remove it to train from the start, "
            "or choose another checkpoint path"
        )
    return Checkpoint(**values)


def save_model(directory: Path, spec: ModelSpec, state_dict: StateDict) -> None:
    """Write `arch.json` (the network) and `state_dict.pt` (its weights) to a directory."""
    _save_tensors(directory / WEIGHTS_FILE, state_dict)
    write_text(directory / SPEC_FILE, json.dumps(spec.to_dict(), indent=2) + "\n")


def load_model(directory: Path) -> GnnModel:
    """Read what `save_model` wrote.

    Raises
    ------
    StorageError
        If a file is missing or damaged, or the weights do not fit the network.
    """
    path = directory / SPEC_FILE
    try:
        spec = ModelSpec.from_dict(json.loads(path.read_text(encoding="utf-8")))
        model = build_model(spec, seed=0)
        model.load_state_dict(_load_tensors(directory / WEIGHTS_FILE))
        model.eval()
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise (
            error if isinstance(error, StorageError) else StorageError(f"{directory} holds no model: {error}")
        ) from error
    return model


def _save_tensors(path: Path, values: Mapping[str, Any]) -> None:
    content = io.BytesIO()
    torch.save(dict(values), content)
    write_bytes(path, content.getbuffer())


def _load_tensors(path: Path) -> dict[str, Any]:
    """Load a dictionary of tensors and plain values; the archive's checksums are verified first, as torch does not."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise StorageError(f"{path} is damaged ({damaged} fails its checksum): remove it")
        values = torch.load(path, weights_only=True)
    except (zipfile.BadZipFile, EOFError, RuntimeError, KeyError, pickle.UnpicklingError) as error:
        raise StorageError(f"{path} is damaged or not a file of tensors ({error}): remove it") from error
    if not isinstance(values, dict):
        raise StorageError(f"{path} holds no dictionary of tensors: remove it")
    return values
