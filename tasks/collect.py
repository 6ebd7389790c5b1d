"""Garbage collection of a state directory: artifacts that no run needs, leftovers of the dead, stale kernel caches."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import kernels
from storage.errors import InputError, StorageError
from storage.leftovers import remove_dead_scratch, remove_leftovers, remove_unused
from storage.locks import is_busy, lock_file, locked
from storage.manifest import Manifest
from tasks.artifacts import SCRATCH_FOLDER, USED_FILE

_CHAMPION_NEEDS = {"reorder": "store_digest", "train": "train_digest"}
_KERNEL_CACHE = re.compile(r"^(\w+)\..*\.nb[ic]$")

Artifact = tuple[str, str]
"""Stage and digest."""


@dataclass(frozen=True)
class Removal:
    """One thing that was removed, or would be."""

    path: Path
    """Where it was."""
    nbytes: int
    """Bytes given back."""
    why: str
    """Why nobody needs it."""


def collect_garbage(state_dir: Path, *, older_than_s: float = 0.0, dry_run: bool = False) -> list[Removal]:
    """Remove what nobody needs; what a live process uses or builds stays.

    An artifact is needed if the newest run of any name used it, if the champion of any name does (its store, its
    training), or if such an artifact was made of it. Where the newest
    run of a name stopped early, what an older one of that name made after that stage is needed too. A checkpoint is
    needed if the newest run of any name that came to training would go on from it.

    Parameters
    ----------
    state_dir
        State directory.
    older_than_s
        Only what is older than so many seconds.
    dry_run
        Remove nothing.

    Raises
    ------
    InputError
        If there is no such directory.
    """
    if not state_dir.is_dir():
        raise InputError(f"there is no state directory at {state_dir}: name it with --state-dir")
    newest = time.time() - older_than_s
    return [
        *_leftovers(state_dir / "artifacts", dry_run=dry_run),
        *_scratch(state_dir / SCRATCH_FOLDER, dry_run=dry_run),
        *_artifacts(state_dir, newest, dry_run=dry_run),
        *_checkpoints(state_dir, newest, dry_run=dry_run),
        *_kernel_caches(Path(next(iter(kernels.__path__))), dry_run=dry_run),
    ]


def needed_artifacts(state_dir: Path) -> set[Artifact]:
    """Return what the newest run of each name needs, and each champion, and all that those were made of."""
    latest: dict[Artifact, str] = {}
    for use in map(read_use, newest_first(state_dir / "runs")):
        for stage, digest in use.stages.items():
            latest.setdefault((use.name, stage), digest)
    open_ends = [(stage, digest) for (_, stage), digest in latest.items()]
    from tasks.tracking_models import champion_digests  # MLflow takes long to import

    for tags in champion_digests(state_dir).values():
        open_ends += [(stage, tags[tag]) for stage, tag in _CHAMPION_NEEDS.items() if tag in tags]
    needed: set[Artifact] = set()
    while open_ends:
        artifact = open_ends.pop()
        if artifact not in needed:
            needed.add(artifact)
            open_ends += _made_of(state_dir / "artifacts", artifact)
    return needed


def needed_checkpoints(state_dir: Path) -> set[str]:
    """Return the trainings, by digest, that the newest run of each name would go on with."""
    latest: dict[str, str] = {}
    for use in map(read_use, newest_first(state_dir / "runs")):
        if use.training is not None:
            latest.setdefault(use.name, use.training)
    return set(latest.values())


@dataclass(frozen=True)
class Use:
    """What one run needs, as it wrote it down."""

    name: str
    """Name of the run."""
    stages: Mapping[str, str]
    """Digest of the artifact of each stage that it finished."""
    training: str | None = None
    """Digest of the training that it began."""


def newest_first(runs: Path) -> list[Path]:
    """Notes of all runs on what they need, the newest first."""
    return sorted(runs.glob(f"*/{USED_FILE}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)


def read_use(path: Path) -> Use:
    """Read what a run noted.

    Raises
    ------
    StorageError
        If it is damaged: what that run needs is not known.
    """
    try:
        use = Use(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        use = None
    if use is None or not isinstance(use.stages, dict):
        raise StorageError(f"{path} does not say what its run needs: remove {path.parent}, and what it used goes too")
    return use


def _made_of(root: Path, artifact: Artifact) -> list[Artifact]:
    """Inputs that are artifacts; raw files stand in a manifest under other names."""
    manifest = _manifest(root.joinpath(*artifact))
    return [] if manifest is None else [item for item in manifest.inputs.items() if root.joinpath(*item).is_dir()]


def _manifest(directory: Path) -> Manifest | None:
    try:
        return Manifest.read(directory)
    except StorageError:
        return None


def _artifacts(state_dir: Path, newest: float, *, dry_run: bool) -> Iterator[Removal]:
    needed = needed_artifacts(state_dir)
    for directory in sorted((state_dir / "artifacts").glob("[!.]*/[!.]*")):
        artifact = (directory.parent.name, directory.name)
        if artifact in needed or directory.suffix == ".partial" or directory.stat().st_mtime > newest:
            continue
        nbytes = _size(directory)
        if not is_busy(directory) if dry_run else remove_unused(directory):
            yield Removal(directory, nbytes, "no newest run and no champion needs it")


def _leftovers(root: Path, *, dry_run: bool) -> Iterator[Removal]:
    for stage in sorted(root.glob("[!.]*")):
        sizes = {path: _size(path) for path in stage.glob("*.partial")}
        for path in remove_leftovers(stage, dry_run=dry_run):
            yield Removal(path, sizes.get(path, 0), "left by a process that died")


def _scratch(folder: Path, *, dry_run: bool) -> Iterator[Removal]:
    sizes = {path: _size(path) for path in folder.glob("*")}
    for path in remove_dead_scratch(folder, dry_run=dry_run):
        yield Removal(path, sizes.get(path, 0), "left by a process that died")


def _checkpoints(state_dir: Path, newest: float, *, dry_run: bool) -> Iterator[Removal]:
    needed = needed_checkpoints(state_dir)
    for directory in sorted((state_dir / "checkpoints").glob("*")):
        if directory.name in needed:
            continue
        nbytes = _size(directory)
        with locked(lock_file(state_dir / "artifacts" / "train" / directory.name), wait=False) as dead:
            if not dead or _changed(directory) > newest:
                continue
            if not dry_run:
                shutil.rmtree(directory)
        yield Removal(directory, nbytes, "checkpoint that no newest run goes on from")


def _kernel_caches(package: Path, *, dry_run: bool) -> Iterator[Removal]:
    """Compiled kernels whose source has changed since; Numba would never load them again."""
    for path in sorted(package.rglob("__pycache__/*.nb[ic]")):
        match = _KERNEL_CACHE.match(path.name)
        source = path.parents[1] / f"{match[1] if match else ''}.py"
        if match is None or (source.is_file() and source.stat().st_mtime <= path.stat().st_mtime):
            continue
        nbytes = path.stat().st_size
        if not dry_run:
            path.unlink(missing_ok=True)
        yield Removal(path, nbytes, "compiled from a source that has changed")


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file())


def _changed(directory: Path) -> float:
    return max(path.stat().st_mtime for path in (directory, *directory.rglob("*")))
