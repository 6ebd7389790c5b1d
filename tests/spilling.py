"""Counts bytes on disk: of files without a name, which no listing of a folder shows, where they are written."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from storage.blocks.spill import SpillFile


class SpillMeter:
    """Bytes of all open spill files: rows, samples and layers' outputs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.peak_bytes = 0
        self._open, self._lock = dict[int, int](), threading.Lock()
        add, close = SpillFile.add, SpillFile.close

        def counted_add(file: SpillFile, sizes: Sequence[int]) -> None:
            try:
                add(file, sizes)
            finally:
                self._note(file, file.nbytes)

        def counted_close(file: SpillFile) -> None:
            close(file)
            self._note(file, 0)

        monkeypatch.setattr(SpillFile, "add", counted_add)
        monkeypatch.setattr(SpillFile, "close", counted_close)

    @property
    def open_bytes(self) -> int:
        """Bytes of those that are open now."""
        with self._lock:
            return sum(self._open.values())

    def _note(self, file: Any, nbytes: int) -> None:
        with self._lock:
            self._open[id(file)] = nbytes
            self.peak_bytes = max(self.peak_bytes, sum(self._open.values()))


class DiskMeter:
    """The most bytes of a folder's files, those without a name included, while it watches."""

    def __init__(self, folder: Path, spills: SpillMeter) -> None:
        self.folder, self.spills, self.peak_bytes = folder, spills, 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                self.peak_bytes = max(self.peak_bytes, _folder_bytes(self.folder) + self.spills.open_bytes)
                done.wait(0.002)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _folder_bytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):  # which leaves out folders that go meanwhile
        for name in names:
            with suppress(OSError):  # it was there a moment ago
                total += (Path(parent) / name).lstat().st_size
    return total
