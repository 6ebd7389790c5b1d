"""Counts the bytes of files without a name, which no listing of a folder shows, where they are written."""

from __future__ import annotations

import threading
from collections.abc import Sequence
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
