"""What the dead left behind goes: a leftover whose lock is free belongs to nobody alive."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from storage.atomic import ASIDE_SUFFIX, PARTIAL_SUFFIX, remove_tree, take_back
from storage.locks import lock_file, locked, locked_directory, use_file

_SCRATCH_GRACE_S = 60.0


def remove_leftovers(parent: Path, *, dry_run: bool = False) -> list[Path]:
    """Remove what dead builders left under `parent`; what a live one is building stays.

    What a builder set aside and died before it put the new in its place goes back there.

    Parameters
    ----------
    parent
        Directory of published directories.
    dry_run
        Remove nothing.

    Returns
    -------
    list of Path
        What was removed, or would be.
    """
    removed = []
    for partial in sorted(parent.glob(f"*{PARTIAL_SUFFIX}")):
        suffix = ASIDE_SUFFIX if partial.name.endswith(ASIDE_SUFFIX) else PARTIAL_SUFFIX
        directory = partial.with_name(partial.name.removesuffix(suffix))
        with locked(lock_file(directory), wait=False) as held:
            if held:
                if not dry_run:
                    take_back(directory)
                is_kept = suffix == ASIDE_SUFFIX and not directory.exists()
                if is_kept or not partial.exists():
                    continue
                if not dry_run:
                    remove_tree(partial)
                removed.append(partial)
    return removed


def remove_partial_files(parent: Path) -> None:
    """Remove what dead writers left in the directories of `parent`; a live one holds its directory's lock."""
    for partial in parent.glob(f"[!.]*/*{PARTIAL_SUFFIX}"):
        with locked(lock_file(partial.parent), wait=False) as held:
            if held:
                partial.unlink(missing_ok=True)


def remove_partial_file(path: Path) -> None:
    """Remove what a dead writer of one file left; a live one holds the file's lock."""
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    if partial.exists():
        with locked(lock_file(path), wait=False) as held:
            if held:
                partial.unlink(missing_ok=True)


def remove_unused(directory: Path) -> bool:
    """Remove a published directory in one step, unless a live process uses or builds it.

    Returns
    -------
    bool
        Whether it was removed.
    """
    with locked(use_file(directory), wait=False) as unused, locked(lock_file(directory), wait=False) as free:
        if not (unused and free):
            return False
        partial = directory.with_name(directory.name + PARTIAL_SUFFIX)
        remove_tree(partial)
        directory.rename(partial)  # whoever is killed now leaves a leftover, no half of an artifact
        remove_tree(partial)
        return True


def remove_dead_scratch(parent: Path, prefix: str = "", *, dry_run: bool = False) -> list[Path]:
    """Remove the scratch directories of dead processes under `parent`.

    Returns
    -------
    list of Path
        What was removed, or would be.
    """
    removed = []
    for leftover in sorted(parent.glob(f"{prefix}*")):
        # A live process makes its directory and locks it in an instant, not in one step.
        if leftover.is_dir() and time.time() - leftover.stat().st_mtime > _SCRATCH_GRACE_S:
            with locked_directory(leftover) as held:
                if held:
                    removed.append(leftover)
                    if not dry_run:
                        remove_tree(leftover)
    return removed


@contextlib.contextmanager
def scratch_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a directory that is gone when the block ends; those that the dead left there under `prefix` go too."""
    parent.mkdir(parents=True, exist_ok=True)
    remove_dead_scratch(parent, prefix)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        with locked_directory(directory):
            yield directory
    finally:
        remove_tree(directory)
