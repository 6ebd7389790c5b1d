"""A full disk, told from other errors of writing, with the way out that fits what was being written."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from storage.errors import DiskFullError

_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def explaining_full_disk(path: Path) -> Iterator[None]:
    """Say so where the disk runs full while `path` is written; other errors pass.

    Raises
    ------
    DiskFullError
        In place of the system's error, or of HDF5's, which keeps no more than the text of it.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        is_full = isinstance(error, OSError) and error.errno in _CODES
        if isinstance(error, DiskFullError) or not (is_full or any(os.strerror(code) in str(error) for code in _CODES)):
            raise
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        free = shutil.disk_usage(folder).free
        raise DiskFullError(
            f"the disk is full: writing {path} stopped with {free:,} bytes free; free some space"
        ) from error


@contextlib.contextmanager
def on_full_disk(way_out: str) -> Iterator[None]:
    """Add to the error of a full disk what else may be done, as `set state_dir to another disk`."""
    try:
        yield
    except DiskFullError as error:
        if error.way_out is not None:  # who was closer to it knows better
            raise
        raise DiskFullError(str(error), way_out=way_out) from error
