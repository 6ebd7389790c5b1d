"""Publishing: files and directories appear whole or not at all.

A directory is built beside its final place under a lock that the kernel drops when its holder dies, made durable,
and renamed. So a leftover whose lock is free belongs to nobody alive (`storage.leftovers`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from storage.disk_full import explaining_full_disk

PARTIAL_SUFFIX = ".partial"
"""Ends the name of what is being written."""
ASIDE_SUFFIX = f".old{PARTIAL_SUFFIX}"
"""Ends the name of a directory that is about to be replaced."""


@contextlib.contextmanager
def building(directory: Path) -> Iterator[Path]:
    """Build a directory under a temporary name and publish it by one rename when the block ends well.

    Hold the lock on `lock_file(directory)` around this. What stood at `directory` stays until then.

    Raises
    ------
    DiskFullError
        Nothing is left behind.
    """
    partial = directory.with_name(directory.name + PARTIAL_SUFFIX)
    take_back(directory)
    remove_tree(partial)
    with explaining_full_disk(directory):
        try:
            partial.mkdir(parents=True)
            yield partial
            _sync_tree(partial)
            _replace_directory(partial, directory)
        finally:
            remove_tree(partial)


@contextlib.contextmanager
def publishing(path: Path) -> Iterator[Path]:
    """Write a file under a temporary name and publish it by one rename when the block ends well.

    Raises
    ------
    DiskFullError
        What stood at `path` stays, and nothing else is left behind.
    """
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    with explaining_full_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            sync_file(partial)
            partial.replace(path)
            sync_directory(path.parent)
        finally:
            partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a small file's content in one step, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Replace a small file's content in one step: temporary file, fsync, rename, fsync of the directory.

    The temporary file has one name, so a dead writer's is overwritten by the next; where several processes may
    write, each holds a lock meanwhile.

    Raises
    ------
    DiskFullError
        The old content stays, and nothing else is left behind.
    """
    with publishing(path) as partial:
        partial.write_bytes(content)


def write_tail(path: Path, offset: int, content: bytes) -> None:
    """Let a file end with `content` at `offset`, durably; whatever stood there or beyond is cut off first.

    A file that is not there is created; its name is durable once its directory is synced.

    Raises
    ------
    DiskFullError
        What stands before `offset` stays.
    """
    with explaining_full_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.truncate(offset)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Make a file's bytes durable."""
    _fsync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync_tree(root: Path) -> None:
    for folder, _, files in os.walk(root, topdown=False):
        for name in files:
            sync_file(Path(folder, name))
        sync_directory(Path(folder))


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace_directory(source: Path, target: Path) -> None:
    """Rename over a directory that may exist: by itself the kernel replaces only an empty one."""
    aside = target.with_name(target.name + ASIDE_SUFFIX)
    remove_tree(aside)
    if target.exists():
        target.rename(aside)
    try:
        source.rename(target)
    finally:
        take_back(target)
    sync_directory(target.parent)
    remove_tree(aside)


def take_back(directory: Path) -> None:
    """Undo the first rename of `_replace_directory` where there was no second; call under the directory's lock."""
    aside = directory.with_name(directory.name + ASIDE_SUFFIX)
    if aside.exists() and not directory.exists():
        aside.rename(directory)
        sync_directory(directory.parent)


def remove_tree(directory: Path) -> None:
    """Remove a directory and all below it, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)
