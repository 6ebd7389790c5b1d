"""Publishing: files and directories appear whole or not at all, and the dead leave nothing behind for long.

A directory is built beside its final place under a lock that the kernel drops when its holder dies, made durable,
and renamed. So a leftover whose lock is free belongs to nobody alive.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from storage.errors import MachineError

_PARTIAL_SUFFIX = ".partial"
_ASIDE_SUFFIX = f".old{_PARTIAL_SUFFIX}"
_SCRATCH_GRACE_S = 60.0
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


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


def lock_file(directory: Path) -> Path:
    """Return the lock file that guards building `directory`: `<parent>/.locks/<name>`."""
    return directory.parent / ".locks" / directory.name


@contextlib.contextmanager
def in_use(directory: Path) -> Iterator[None]:
    """Keep a published directory from being removed; any number of users may hold it."""
    with locked(_use_file(directory), shared=True):
        yield


def remove_unused(directory: Path) -> bool:
    """Remove a published directory in one step, unless a live process uses or builds it.

    Returns
    -------
    bool
        Whether it was removed.
    """
    with locked(_use_file(directory), wait=False) as unused, locked(lock_file(directory), wait=False) as free:
        if not (unused and free):
            return False
        partial = directory.with_name(directory.name + _PARTIAL_SUFFIX)
        _remove(partial)
        directory.rename(partial)  # whoever is killed now leaves a leftover, no half of an artifact
        _remove(partial)
        return True


def is_busy(directory: Path) -> bool:
    """Whether a live process uses or builds a directory now."""
    with locked(_use_file(directory), wait=False) as unused, locked(lock_file(directory), wait=False) as free:
        return not (unused and free)


def _use_file(directory: Path) -> Path:
    return lock_file(directory).with_name(f"{directory.name}.use")


@contextlib.contextmanager
def building(directory: Path) -> Iterator[Path]:
    """Build a directory under a temporary name and publish it by one rename when the block ends well.

    Hold the lock on `lock_file(directory)` around this. What stood at `directory` stays until then.

    Raises
    ------
    MachineError
        If the disk is full; nothing is left behind.
    """
    partial = directory.with_name(directory.name + _PARTIAL_SUFFIX)
    _take_back(directory)
    _remove(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        _sync_tree(partial)
        _replace_directory(partial, directory)
    except OSError as error:
        _raise_where_disk_is_full(error, directory)
        raise
    finally:
        _remove(partial)


@contextlib.contextmanager
def publishing(path: Path) -> Iterator[Path]:
    """Write a file under a temporary name and publish it by one rename when the block ends well.

    Raises
    ------
    MachineError
        If the disk is full; what stood at `path` stays, and nothing else is left behind.
    """
    partial = path.with_name(path.name + _PARTIAL_SUFFIX)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        sync_file(partial)
        partial.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        _raise_where_disk_is_full(error, path)
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a directory that is gone when the block ends; those that the dead left there under `prefix` go too."""
    parent.mkdir(parents=True, exist_ok=True)
    for leftover in parent.glob(f"{prefix}*"):
        # A live process makes its directory and locks it in an instant, not in one step.
        if leftover.is_dir() and time.time() - leftover.stat().st_mtime > _SCRATCH_GRACE_S:
            with _locked_directory(leftover) as held:
                if held:
                    _remove(leftover)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        with _locked_directory(directory):
            yield directory
    finally:
        _remove(directory)


def _locked_directory(directory: Path) -> contextlib.AbstractContextManager[bool]:
    """Lock a directory itself, if nobody has; yields whether the lock is held."""
    return _flocked(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_EX | fcntl.LOCK_NB)


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
    for partial in sorted(parent.glob(f"*{_PARTIAL_SUFFIX}")):
        suffix = _ASIDE_SUFFIX if partial.name.endswith(_ASIDE_SUFFIX) else _PARTIAL_SUFFIX
        directory = partial.with_name(partial.name.removesuffix(suffix))
        with locked(lock_file(directory), wait=False) as held:
            if held:
                if not dry_run:
                    _take_back(directory)
                is_kept = suffix == _ASIDE_SUFFIX and not directory.exists()
                if is_kept or not partial.exists():
                    continue
                if not dry_run:
                    _remove(partial)
                removed.append(partial)
    return removed


def remove_partial_files(parent: Path) -> None:
    """Remove what dead writers left in the directories of `parent`; a live one holds its directory's lock."""
    for partial in parent.glob(f"[!.]*/*{_PARTIAL_SUFFIX}"):
        with locked(lock_file(partial.parent), wait=False) as held:
            if held:
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
    MachineError
        If the disk is full; the old content stays, and nothing else is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + _PARTIAL_SUFFIX)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        temporary.unlink(missing_ok=True)
        _raise_where_disk_is_full(error, path)
        raise
    temporary.replace(path)
    sync_directory(path.parent)


def write_tail(path: Path, offset: int, content: bytes) -> None:
    """Let a file end with `content` at `offset`, durably; whatever stood there or beyond is cut off first.

    A file that is not there is created; its name is durable once its directory is synced.

    Raises
    ------
    MachineError
        If the disk is full; what stands before `offset` stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("ab") as file:
            file.truncate(offset)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        _raise_where_disk_is_full(error, path)
        raise


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
    aside = target.with_name(target.name + _ASIDE_SUFFIX)
    _remove(aside)
    if target.exists():
        target.rename(aside)
    try:
        source.rename(target)
    finally:
        _take_back(target)
    sync_directory(target.parent)
    _remove(aside)


def _take_back(directory: Path) -> None:
    """Undo the first rename of `_replace_directory` where there was no second; call under the directory's lock."""
    aside = directory.with_name(directory.name + _ASIDE_SUFFIX)
    if aside.exists() and not directory.exists():
        aside.rename(directory)
        sync_directory(directory.parent)


def _remove(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)


def _raise_where_disk_is_full(error: OSError, path: Path) -> None:
    """Say what to do; HDF5 wraps the system's error and keeps only its text."""
    if error.errno not in _DISK_FULL and os.strerror(errno.ENOSPC) not in str(error):
        return
    free = shutil.disk_usage(path.parent).free
    raise MachineError(
        f"the disk is full: writing {path} stopped with {free:,} bytes free; "
        "free some space or set state_dir to another disk"
    ) from error
