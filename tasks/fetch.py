"""Fetches a data set that is not there: download with progress, checksum, unpacking, and one rename at the end."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.data import DataConfig
from storage.atomic import building
from storage.disk_full import on_full_disk
from storage.errors import BudgetError, InputError, MachineError
from storage.locks import lock_file, locked
from storage.unpack import DiskAllowance, unpack
from tasks.progress import Advance, progress

if TYPE_CHECKING:
    import requests

_logger = logging.getLogger(__name__)
_TIMEOUT_S = 30
_CHUNK_BYTES = 1 << 20
_ARCHIVE = ".archive"


def fetch_missing(data: DataConfig, disk_budget: int | None = None) -> None:
    """Fetch and unpack a data set where its directory does not exist and an address is configured.

    It is written to `data.path`, through a folder beside it.

    Parameters
    ----------
    data
        Where it is and where it goes.
    disk_budget
        Most bytes that archive and content may take together; None: what is free.

    Raises
    ------
    InputError
        If there is nothing at the address, the checksum differs, or the archive is damaged or unsafe.
    BudgetError
        If it takes more than `disk_budget`; names the smallest one that would do, where that is known.
    MachineError
        If the server cannot be reached or the disk is too small.
    """
    if data.url is None or data.path is None or data.path.exists():
        return
    with locked(lock_file(data.path)):
        if not data.path.exists():
            with on_full_disk("set data.path to another disk"), building(data.path) as folder:
                allowance = DiskAllowance(folder, disk_budget)
                archive = _download(data.url, data.checksum, folder, data.path, allowance)
                unpack(archive, folder, allowance, name=data.url)
                archive.unlink()


def _download(url: str, checksum: str | None, folder: Path, target: Path, allowance: DiskAllowance) -> Path:
    """Download a file into a folder."""
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    _logger.info("fetching %s to %s", url, target)
    with progress("fetch", "bytes") as advance:
        try:
            pooch.retrieve(url, checksum, fname=_ARCHIVE, path=folder, downloader=_Transfer(advance, allowance))
        except requests.HTTPError as error:
            raise InputError(f"{url} cannot be fetched ({error}): check data.url, or fetch it to {target}") from error
        except requests.RequestException as error:
            if isinstance(error, ValueError):  # how requests says that it is no address
                raise InputError(f"data.url: {error}; give the address of a zip or tar file") from error
            raise MachineError(f"{url} cannot be reached ({error}): run again, or fetch it to {target}") from error
        except BudgetError:
            raise
        except ValueError as error:  # how pooch says that a checksum differs
            raise InputError(f"{url} is not the file that was expected: data.checksum is {checksum}") from error
    archive = folder / _ARCHIVE
    if checksum is None:
        found = pooch.file_hash(str(archive), alg="sha256")
        _logger.warning("%s was not checked: to pin it, set data.checksum=sha256:%s", url, found)
    return archive


@dataclass(frozen=True)
class _Transfer:
    """Moves the bytes for pooch, whose own downloader knows no bound and closes no connection."""

    advance: Advance
    """Told how far it is."""
    allowance: DiskAllowance
    """Asked before anything is written."""

    def __call__(self, url: str, output_file: str, _: Any) -> None:
        """Write what lies at `url` to a file."""
        import requests

        headers = {"Accept-Encoding": "identity"}  # else a server may repack it, and no size or checksum would hold
        with (
            requests.Session() as session,
            session.get(url, stream=True, timeout=_TIMEOUT_S, headers=headers) as response,
        ):
            response.raise_for_status()
            self._write(response, Path(output_file))

    def _write(self, response: requests.Response, path: Path) -> None:
        declared = response.headers.get("Content-Length", "")
        total, done = int(declared) if declared.isdigit() else 0, 0
        self.allowance.take(total, "the archive")
        with path.open("wb") as file:
            for chunk in response.iter_content(_CHUNK_BYTES):
                done += len(chunk)
                if done > total:
                    self.allowance.take(len(chunk), "the archive")
                file.write(chunk)
                self.advance(done, max(done, total))
