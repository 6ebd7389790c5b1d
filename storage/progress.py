"""How long work below the stages says how far it is, without knowing who shows it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

Advance = Callable[[int, int], None]
"""Called with how many units are done and how many there are."""
OpenProgress = Callable[[str, str], AbstractContextManager[Advance]]
"""Opens a display for a description and a unit."""


@contextlib.contextmanager
def no_progress(_description: str, _unit: str) -> Iterator[Advance]:
    """Show nothing."""
    yield lambda _done, _total: None
