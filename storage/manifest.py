"""The manifest of an artifact: what a stage made, of what, and how. An artifact without one does not exist."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from storage.atomic import write_text
from storage.errors import StorageError

MANIFEST_NAME = "manifest.json"
_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """Description of one published artifact; the data files lie beside it in `directory`."""

    stage: str
    """Name of the stage that made it."""
    digest: str
    """Identity: inputs, configuration, algorithm version and format version, hashed."""
    inputs: Mapping[str, str]
    """Digest of each input, by name."""
    config: Mapping[str, Any]
    """The part of the configuration that decided the content."""
    algorithm_version: int
    """Version of the algorithm; raised when the same input would give another result."""
    format_version: int
    """Version of the file format."""
    counts: Mapping[str, Any]
    """What was found, changed and made: plain numbers and texts."""
    files: Mapping[str, int]
    """Bytes of each data file, by name relative to `directory`."""
    seconds: float
    """Wall time of the stage."""
    created: str
    """When it was published, ISO 8601 in UTC."""
    directory: Path = field(default=Path(), compare=False)
    """Where it lies; not part of the file, so that an artifact can be moved."""

    @property
    def nbytes(self) -> int:
        """Bytes of all data files together, as published."""
        return sum(self.files.values())

    @property
    def present_bytes(self) -> int:
        """Bytes of those data files that are there."""
        return sum(_size(self.directory / name) or 0 for name in self.files)

    def path(self, name: str) -> Path:
        """Return the path of a data file.

        Raises
        ------
        KeyError
            If the manifest lists no such file.
        """
        if name not in self.files:
            raise KeyError(f"artifact {self.stage}/{self.digest} has no file {name!r} (has {sorted(self.files)})")
        return self.directory / name

    def missing_files(self) -> list[str]:
        """Return the names of data files that are gone or of another size than recorded."""
        return [name for name, nbytes in self.files.items() if _size(self.directory / name) != nbytes]

    def write(self) -> None:
        """Write the manifest into `directory`, in one step; the data files must be there already."""
        tree = {"schema_version": _SCHEMA_VERSION} | dataclasses.asdict(self)
        del tree["directory"]
        write_text(self.directory / MANIFEST_NAME, json.dumps(tree, indent=2, sort_keys=True) + "\n")

    @classmethod
    def read(cls, directory: Path) -> Manifest | None:
        """Read the manifest of an artifact.

        Returns
        -------
        Manifest or None
            None where `directory` has no manifest, that is, no artifact.

        Raises
        ------
        StorageError
            If the manifest is damaged or names files outside its directory.
        """
        path = directory / MANIFEST_NAME
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise StorageError(f"{path}: not a manifest ({error}); remove {directory} to build it anew") from error
        return cls(**_checked(tree, path), directory=directory)


def files_in(directory: Path) -> dict[str, int]:
    """Return the bytes of each file below a directory, the manifest left out, by relative name."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != MANIFEST_NAME)
    return {path.relative_to(directory).as_posix(): path.stat().st_size for path in paths}


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _checked(tree: Any, path: Path) -> dict[str, Any]:
    """Refuse what another version or another program wrote, and names that would lead out of the directory."""
    again = f"remove {path.parent} to build it anew"
    if not isinstance(tree, dict) or tree.pop("schema_version", None) != _SCHEMA_VERSION:
        raise StorageError(f"{path}: not a manifest of schema version {_SCHEMA_VERSION}; {again}")
    expected = {f.name for f in dataclasses.fields(Manifest)} - {"directory"}
    if set(tree) != expected:
        raise StorageError(f"{path}: expected the keys {sorted(expected)} (got {sorted(tree)}); {again}")
    if not all(isinstance(tree[key], dict) for key in ("inputs", "config", "counts", "files")):
        raise StorageError(f"{path}: inputs, config, counts and files must be mappings; {again}")
    for name in tree["files"]:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise StorageError(f"{path}: file name {name!r} leads out of the artifact; {again}")
    return tree
