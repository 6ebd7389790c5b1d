"""Content digests of raw input files, remembered by size, modification time and inode so that they are read once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from storage.atomic import write_text
from storage.errors import InputError
from storage.leftovers import remove_partial_file
from storage.locks import lock_file, locked
from storage.progress import no_progress
from tasks.progress import progress

_logger = logging.getLogger(__name__)
_LARGE_BYTES, _PIECE_BYTES = 1 << 28, 1 << 20
_SETTLE_S = 2.0  # a file this young may still change within one tick of its modification time: hash it, trust it later


class InputDigests:
    """SHA-256 of input files, remembered in one JSON file below the state directory."""

    def __init__(self, state_dir: Path, *, verify: bool = False) -> None:
        """Open the memory; with `verify` every file is hashed anew, whatever is remembered."""
        self._path = state_dir / "input_digests.json"
        self._verify = verify
        remove_partial_file(self._path)
        self._known: dict[str, list[object]] = self._load()
        self._new: dict[str, list[object]] = {}

    def digest(self, path: Path) -> str:
        """Return the SHA-256 of a file's content.

        Raises
        ------
        InputError
            If the file is missing or cannot be read.
        """
        key = str(path.absolute())
        try:
            stat = path.stat()
            if not (path.is_file() or path.is_dir()):  # a pipe would be waited for, and inputs are read more than once
                raise InputError(f"{path} is no regular file: write its content to one")
            identity = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
            known = self._known.get(key)
            if known is not None and known[:3] == identity and not self._verify:
                return str(known[3])
            digest = _hash(path)
        except OSError as error:
            raise InputError(f"{path}: cannot read the input file ({error.strerror}); check the path") from error
        if known is not None and known[:3] == identity and known[3] != digest:
            _logger.warning("%s: its content changed though size, time and inode did not", path)
        if time.time_ns() - stat.st_mtime_ns > _SETTLE_S * 1e9:
            self._known[key] = self._new[key] = [*identity, digest]
        return digest

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Remember what was found for later runs, once the work is done or breaks off; refused input makes no file."""
        may_make = True
        try:
            yield
        except InputError:
            may_make = False
            raise
        finally:
            if may_make or self._path.exists():
                self._keep()

    def _keep(self) -> None:
        if not self._new:
            return
        with locked(lock_file(self._path)):
            known = self._load() | self._new
            write_text(self._path, json.dumps(known, indent=1, sort_keys=True) + "\n")
        self._new = {}

    def _load(self) -> dict[str, list[object]]:
        try:
            known = json.loads(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        valid = isinstance(known, dict) and all(isinstance(v, list) and len(v) == 4 for v in known.values())
        return known if valid else {}


def _hash(path: Path) -> str:
    digest, size, done = hashlib.sha256(), path.stat().st_size, 0
    # A bar that is gone at once would say nothing.
    shows = progress if size > _LARGE_BYTES else no_progress
    with (
        path.open("rb", buffering=0) as file,
        shows(f"checking whether {path.name} is known", "bytes") as advance,
    ):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            done += len(piece)
            advance(done, max(size, done))
    return digest.hexdigest()
