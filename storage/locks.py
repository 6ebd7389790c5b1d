"""Advisory locks on files, which the kernel drops when their holder dies, however it dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True, shared: bool = False) -> Iterator[bool]:
    """Hold an advisory lock on a lock file, which is created and stays behind, empty.

    Parameters
    ----------
    path
        The lock file. It is never removed: removing it would let two holders lock two files of one name.
    wait
        Whether to wait until the lock is free.
    shared
        Whether other shared holders are welcome.

    Yields
    ------
    bool
        Whether the lock is held; always true with `wait`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with _flocked(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)) as held:
        yield held


@contextlib.contextmanager
def _flocked(descriptor: int, mode: int) -> Iterator[bool]:
    """Lock an open descriptor, and close it at the end; yields whether the lock is held."""
    try:
        try:
            fcntl.flock(descriptor, mode)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


def locked_directory(directory: Path) -> contextlib.AbstractContextManager[bool]:
    """Lock a directory itself, if nobody has; yields whether the lock is held."""
    return _flocked(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_file(directory: Path) -> Path:
    """Return the lock file that guards building `directory`: `<parent>/.locks/<name>`."""
    return directory.parent / ".locks" / directory.name


@contextlib.contextmanager
def in_use(directory: Path) -> Iterator[None]:
    """Keep a published directory from being removed; any number of users may hold it."""
    with locked(use_file(directory), shared=True):
        yield


def is_busy(directory: Path) -> bool:
    """Whether a live process uses or builds a directory now."""
    with locked(use_file(directory), wait=False) as unused, locked(lock_file(directory), wait=False) as free:
        return not (unused and free)


def use_file(directory: Path) -> Path:
    """Return the lock file that the users of `directory` share."""
    return lock_file(directory).with_name(f"{directory.name}.use")
