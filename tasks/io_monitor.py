"""Watches the disk traffic of a run: totals over time, at a pace that keeps the number of samples bounded."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from storage.blocks.io_stats import IoStats

_FIRST_PAUSE_S = 0.1
_MOST_SAMPLES = 2000


class IoMonitor:
    """Samples counters in a thread of its own while its `with` block lasts.

    Parameters
    ----------
    stats : IoStats
    """

    def __init__(self, stats: IoStats) -> None:
        self._stats, self._start = stats, time.perf_counter()
        self._pause_s, self._ended = _FIRST_PAUSE_S, threading.Event()
        self.seconds: list[float] = []
        """When each sample was taken."""
        self.read_bytes: list[int] = []
        """Bytes read until then."""
        self.write_bytes: list[int] = []
        """Bytes written until then."""
        self._thread = threading.Thread(target=self._watch, name="io-monitor", daemon=True)

    def __enter__(self) -> IoMonitor:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        self._sample()
        while not self._ended.wait(self._pause_s):
            self._sample()
            if len(self.seconds) >= _MOST_SAMPLES:
                for samples in (self.seconds, self.read_bytes, self.write_bytes):
                    del samples[1::2]
                self._pause_s *= 2

    def _sample(self) -> None:
        counts = self._stats.counts()
        self.seconds.append(time.perf_counter() - self._start)
        self.read_bytes.append(counts.read_bytes)
        self.write_bytes.append(counts.write_bytes)
