"""Progress of long stages: how far, how fast, how long still; shown by whatever runs the flow, else logged."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

from storage.progress import Advance
from storage.progress import OpenProgress as Display

_logger = logging.getLogger(__name__)
_LOG_EVERY_S = 4.0

__all__ = ["Advance", "Display", "log_lines", "progress", "set_display"]


@contextlib.contextmanager
def log_lines(description: str, unit: str, every_s: float = _LOG_EVERY_S) -> Iterator[Advance]:
    """Show progress as a log line now and then."""
    start = last = time.monotonic()

    def advance(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < every_s or not done:
            return
        last = now
        rate = done / (now - start)
        left_s = (total - done) / rate
        _logger.info("%s: %d of %d %s, %.4g a second, %.0f s left", description, done, total, unit, rate, left_s)

    yield advance


_display: Display = log_lines


def set_display(display: Display) -> None:
    """Choose how this process shows progress."""
    global _display
    _display = display


def progress(description: str, unit: str) -> AbstractContextManager[Advance]:
    """Open a progress display.

    Parameters
    ----------
    description
        What is going on, as `profile`.
    unit
        What is counted, as `mini-batches`.
    """
    return _display(description, unit)
