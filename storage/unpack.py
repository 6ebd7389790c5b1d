"""Unpacks archives from elsewhere: nothing is written outside the folder, nothing but plain files is made."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from storage.errors import BudgetError, DiskFullError, InputError, MachineError

_FAULTS = (
    zipfile.BadZipFile,
    tarfile.TarError,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True)
class _Member:
    """One entry of an archive; opened only once it may be written, for an open entry keeps the archive open."""

    name: str
    is_folder: bool
    is_file: bool
    size: int
    open: Callable[[], IO[bytes] | None]


class DiskAllowance:
    """Counts what is about to be written to a folder, and refuses what is more than may be, or than there is.

    Parameters
    ----------
    folder : Path
    most_bytes : int, optional
        `disk_budget`; default: what is free.
    """

    def __init__(self, folder: Path, most_bytes: int | None = None) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._taken = 0

    def check(self, nbytes: int, what: str) -> None:
        """Ask whether so much more may be written.

        Parameters
        ----------
        nbytes : int
        what : str
            Names it in messages.

        Raises
        ------
        BudgetError
            It is more than may be written; names the smallest budget that has room for it.
        DiskFullError
            It is more than is free.
        """
        total = self._taken + nbytes
        if self._most_bytes is not None and total > self._most_bytes:
            raise BudgetError(
                f"fetching needs {total} bytes of disk for {what} and disk_budget is {self._most_bytes}: set "
                f"disk_budget to at least {total}"
            )
        free = shutil.disk_usage(self._folder).free
        if nbytes + _SPARE_BYTES > free:
            raise DiskFullError(f"{what} has {nbytes} bytes and {free} are free at {self._folder}: free some")

    def take(self, nbytes: int, what: str) -> None:
        """Ask, and count it as written."""
        self.check(nbytes, what)
        self._taken += nbytes


def unpack(archive: Path, folder: Path, allowance: DiskAllowance | None = None, *, name: str | None = None) -> None:
    """Unpack a zip or tar file (gzip, bzip2, xz too).

    Folders that hold nothing but one other folder are left out, so that the data set itself lies at `folder`.

    Parameters
    ----------
    archive : Path
    folder : Path
        An existing directory.
    allowance : DiskAllowance, optional
        Asked before each file is written, and before the first one for all, where the archive lists its content.
    name : str, optional
        How messages name the archive; default: by its file name.

    Raises
    ------
    InputError
        The file is no archive or damaged, or has an entry that would lie outside the folder or is no plain file.
    BudgetError
        Its content is more than may be written.
    MachineError
        The disk is too small.
    """
    allowance, name = allowance or DiskAllowance(folder), name or archive.name
    inner = folder / ".unpacked"
    inner.mkdir()
    try:
        with _members(archive, allowance, name) as members:
            for member in members:
                _write(member, inner, name, allowance)
    except (*_FAULTS, OSError) as error:
        # gzip and bzip2 report damage as an OSError without a number, which the system's own errors have.
        if isinstance(error, InputError | MachineError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        reason = " ".join(str(error).split()[:12])
        raise InputError(f"{name} is no readable zip or tar file ({reason}): check the address") from error
    for path in _heart(inner).iterdir():
        path.rename(folder / path.name)
    shutil.rmtree(inner)


@contextmanager
def _members(archive: Path, allowance: DiskAllowance, name: str) -> Iterator[Iterator[_Member]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            allowance.check(sum(info.file_size for info in zipped.infolist()), f"the content of {name}")
            yield (_from_zip(zipped, info) for info in zipped.infolist())
    else:
        with tarfile.open(archive, "r:*") as tar:
            yield (_from_tar(tar, info) for info in tar)
            # The archive ends before the stream does, whose checksum comes last.
            while tar.fileobj is not None and tar.fileobj.read(1 << 20):
                pass


def _from_zip(zipped: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    kind = info.external_attr >> 28  # the upper bits of a Unix mode; 0 where the writer knew none
    is_file = not info.is_dir() and kind in (0, 0o10)
    return _Member(info.filename, info.is_dir(), is_file, info.file_size, lambda: zipped.open(info))


def _from_tar(tar: tarfile.TarFile, info: tarfile.TarInfo) -> _Member:
    return _Member(info.name, info.isdir(), info.isreg(), info.size, lambda: tar.extractfile(info))


def _write(member: _Member, folder: Path, archive: str, allowance: DiskAllowance) -> None:
    """Write one entry, if it may be written."""
    parts = PurePosixPath(member.name).parts
    if member.name.startswith(("/", "\\")) or ".." in parts or "\0" in member.name:
        raise InputError(f"{archive} has the entry {member.name!r}, outside its folder: do not trust this archive")
    if not (member.is_file or member.is_folder):
        raise InputError(f"{archive} has the entry {member.name!r}, which is a link or a device: unpack it by hand")
    path = folder.joinpath(*parts)
    if member.is_folder:
        path.mkdir(parents=True, exist_ok=True)
        return
    allowance.take(member.size, f"{member.name} of {archive}")
    if path.exists():
        raise InputError(f"{archive} has the entry {member.name!r} twice: do not trust this archive")
    path.parent.mkdir(parents=True, exist_ok=True)
    source = member.open()
    assert source is not None, "only files are opened"
    with source, path.open("xb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def _heart(folder: Path) -> Path:
    """The first folder that holds more than one other folder."""
    while True:
        entries = list(folder.iterdir())
        if len(entries) != 1 or not entries[0].is_dir():
            return folder
        folder = entries[0]
