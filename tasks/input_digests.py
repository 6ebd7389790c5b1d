"""Content digests of raw input files, remembered by size, modification time and inode so that they are read once."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from pathlib import Path

from storage.atomic import write_text
from storage.errors import InputError
from storage.leftovers import remove_partial_file
from storage.locks import lock_file, locked

_logger = logging.getLogger(__name__)
_SETTLE_S = 2.0  # a file this young may still change within one tick of its modification time: hash it, trust it later


class InputDigests:
    """SHA-256 of input files, remembered in one JSON file below the state directory."""

    def __init__(self, state_dir: Path, *, verify: bool = False) -> None:
        """Open the memory; with `verify` every file is hashed anew, whatever is remembered."""
        self._path = state_dir / "input_digests.json"
        self._verify = verify
        remove_partial_file(self._path)
        self._known: dict[str, list[object]] = self._load()

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
            self._remember(key, [*identity, digest])
        return digest

    def _remember(self, key: str, entry: list[object]) -> None:
        with locked(lock_file(self._path)):
            self._known = self._load() | {key: entry}
            write_text(self._path, json.dumps(self._known, indent=1, sort_keys=True) + "\n")

    def _load(self) -> dict[str, list[object]]:
        try:
            known = json.loads(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        valid = isinstance(known, dict) and all(isinstance(v, list) and len(v) == 4 for v in known.values())
        return known if valid else {}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        return hashlib.file_digest(file, "sha256").hexdigest()
