"""Fetches a data set that is not there: download with progress, checksum, unpacking, and one rename at the end."""

from __future__ import annotations

import logging
from pathlib import Path

from conf.schema import DataConfig
from storage.atomic import building, lock_file, locked
from storage.errors import InputError, MachineError
from storage.unpack import unpack
from tasks.progress import Advance, progress

_logger = logging.getLogger(__name__)
_TIMEOUT_S = 30
_ARCHIVE = ".archive"


def fetch_missing(data: DataConfig) -> None:
    """Fetch and unpack a data set where its directory does not exist and an address is configured.

    Raises
    ------
    InputError
        If there is nothing at the address, the checksum differs, or the archive is damaged or unsafe.
    MachineError
        If the server cannot be reached or the disk is full.
    """
    if data.url is None or data.path is None or data.path.exists():
        return
    with locked(lock_file(data.path)):
        if not data.path.exists():
            with building(data.path) as folder:
                archive = _download(data.url, data.checksum, folder, data.path)
                unpack(archive, folder)
                archive.unlink()


def _download(url: str, checksum: str | None, folder: Path, target: Path) -> Path:
    """Download a file into a folder."""
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    _logger.info("fetching %s to %s", url, target)
    with progress("fetch", "bytes") as advance:
        bar = _Bar(advance)
        downloader = pooch.HTTPDownloader(progressbar=bar, timeout=_TIMEOUT_S)
        try:
            pooch.retrieve(url, checksum, fname=_ARCHIVE, path=folder, downloader=downloader)
        except requests.HTTPError as error:
            if error.response is not None:
                error.response.close()
            raise InputError(f"{url} cannot be fetched ({error}): check data.url, or fetch it to {target}") from error
        except requests.RequestException as error:
            raise MachineError(f"{url} cannot be reached ({error}): run again, or fetch it to {target}") from error
        except ValueError as error:  # how pooch says that a checksum differs
            raise InputError(f"{url} is not the file that was expected: data.checksum is {checksum}") from error
    archive = folder / _ARCHIVE
    if checksum is None:
        found = pooch.file_hash(str(archive), alg="sha256")
        _logger.warning("%s was not checked: to pin it, set data.checksum=sha256:%s", url, found)
    return archive


class _Bar:
    """What pooch reports its progress to."""

    def __init__(self, advance: Advance) -> None:
        self.total = 0
        self._advance = advance
        self._done = 0

    def update(self, nbytes: int) -> None:
        """Count bytes that came."""
        self._done += nbytes
        self._advance(min(self._done, self.total), self.total)

    def reset(self) -> None:
        """Begin at the beginning."""
        self._done = 0

    def close(self) -> None:
        """End; whoever shows the progress closes it."""
