"""Checks what lies on disk: every block of every store, every artifact's files, every model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from storage.errors import InputError, StorageError
from storage.graph_store import GraphStore
from storage.manifest import MANIFEST_NAME, Manifest
from tasks.checkpoint import load_model
from tasks.model_data import MODEL_FOLDER
from tasks.sources import STORE_FILE

OnBlocks = Callable[[int, int], None]
"""Told how many blocks were read, and how many there are to read."""


@dataclass
class Verification:
    """What was checked, and what is wrong."""

    stores: int = 0
    """Stores read."""
    blocks: int = 0
    """Blocks read."""
    artifacts: int = 0
    """Artifacts looked at."""
    removed: int = 0
    """Artifacts among them whose store was removed on purpose, an intermediate."""
    damage: list[str] = field(default_factory=list)
    """One line for each thing that is wrong: what, where, what to do."""


def verify_path(path: Path, on_blocks: OnBlocks) -> Verification:
    """Check a store, one artifact, or all artifacts of a state directory.

    Parameters
    ----------
    path
        Store file, artifact or state directory.
    on_blocks
        Told how far it is.

    Raises
    ------
    InputError
        If it is none of these.
    """
    found = Verification()
    if not path.exists():
        raise InputError(f"{path} does not exist: give a store, an artifact or a state directory")
    if not path.is_dir():
        _verify_stores([path], found, on_blocks)
        return found
    is_artifact = (path / MANIFEST_NAME).is_file()
    if not is_artifact and not (path / "artifacts").is_dir():
        raise InputError(f"{path} is no store, artifact or state directory: give one of these")
    directories = [path] if is_artifact else sorted(path.glob("artifacts/[!.]*/[!.]*"))
    stores: list[Path] = []
    for directory in directories:
        try:
            stores += _verify_artifact(directory, found)
        except StorageError as error:
            found.damage.append(str(error))
    _verify_stores(stores, found, on_blocks)
    return found


def _verify_artifact(directory: Path, found: Verification) -> list[Path]:
    """Compare files with the manifest; returns the stores whose blocks are to be read."""
    manifest = Manifest.read(directory)
    if manifest is None:  # being built, or the leftover that the next run removes
        return []
    found.artifacts += 1
    missing = manifest.missing_files()
    if missing and not any(manifest.path(name).exists() for name in manifest.files):
        found.removed += 1
        return []
    found.damage += [
        f"{manifest.path(name)} is missing or not of its recorded {manifest.files[name]} bytes: "
        f"remove {directory} and run again"
        for name in missing
    ]
    if any(name.startswith(f"{MODEL_FOLDER}/") for name in manifest.files):
        load_model(directory / MODEL_FOLDER)
    return [manifest.path(STORE_FILE)] if STORE_FILE in manifest.files and STORE_FILE not in missing else []


def _verify_stores(paths: list[Path], found: Verification, on_blocks: OnBlocks) -> None:
    total = sum(_num_blocks(path, found) for path in paths)

    def advance(blocks: int) -> None:
        found.blocks += blocks
        on_blocks(found.blocks, total)

    for path in paths:
        try:
            with GraphStore.open(path) as store:
                found.stores += 1
                found.damage += [str(error) for error in store.damage(advance)]
        except StorageError:
            pass  # counting its blocks has told of it


def _num_blocks(path: Path, found: Verification) -> int:
    try:
        with GraphStore.open(path) as store:
            return sum(store.extent(name).num_blocks for name in store.datasets)
    except StorageError as error:
        found.damage.append(str(error))
        return 0
