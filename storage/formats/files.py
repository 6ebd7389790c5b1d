"""Files that users name: opened with errors that say what is wrong, read in blocks of whole lines."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from storage.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"
_LONGEST_LINE_BYTES = 64 << 20


def require_file(path: Path) -> Path:
    """Check that a file is there and can be read.

    Raises
    ------
    InputError
        It is not, or cannot.
    """
    if path.is_dir():
        raise InputError(f"{path} is a directory: name the file itself")
    if not path.exists():
        raise InputError(f"{path} does not exist: check the path (the working directory is {Path.cwd()})")
    if not path.is_file():  # opening a pipe would wait for its writer, and inputs are read more than once
        raise InputError(f"{path} is no regular file: write its content to one")
    try:
        path.open("rb").close()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    return path


def is_gzip(path: Path) -> bool:
    """Whether a file is gzip, whatever its name."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP_MAGIC


@contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """Open a plain or gzip file as bytes; a damaged gzip is an `InputError`."""
    file = cast(BinaryIO, gzip.open(path, "rb")) if is_gzip(path) else path.open("rb")  # noqa: SIM115 - closed below
    try:
        with file:
            yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is a damaged gzip file ({error}): fetch it again") from error


def line_blocks(file: BinaryIO, block_bytes: int) -> Iterator[bytes]:
    """Read about `block_bytes` at a time, each block ending where a line ends."""
    rest = b""
    while data := file.read(block_bytes):
        end = data.rfind(b"\n") + 1
        if end:
            yield rest + data[:end]
            rest = data[end:]
        else:
            rest += data
            if len(rest) > _LONGEST_LINE_BYTES:
                raise InputError(f"{file.name} has a line of more than {_LONGEST_LINE_BYTES} bytes: is it text?")
    if rest:
        yield rest
