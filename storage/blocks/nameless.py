"""Files without a name: whatever ends the process, nothing is left behind."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path

_UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.EISDIR)
"""What file systems answer that have no direct I/O, or no nameless files."""


def open_nameless(directory: Path, *, direct: bool) -> int:
    """Open a new file without a name for reading and writing.

    Parameters
    ----------
    directory : Path
        Where its bytes lie.
    direct : bool
        Past the page cache, where the file system allows that.

    Returns
    -------
    int
        The descriptor.

    Raises
    ------
    OSError
        If no file can be made there.
    """
    flags = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC
    for extra in [os.O_DIRECT, 0] if direct else [0]:
        try:
            return os.open(directory, flags | extra, 0o600)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
    return _open_unlinked(directory, direct=direct)


def _open_unlinked(directory: Path, *, direct: bool) -> int:
    """Open a file and take its name away at once, where it has to have one (NFS, FUSE)."""
    descriptor, name = tempfile.mkstemp(dir=directory, prefix=".garden-")
    try:
        if direct:
            with suppress(OSError):
                direct_descriptor = os.open(name, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
                os.close(descriptor)
                descriptor = direct_descriptor
    finally:
        Path(name).unlink()
    return descriptor
