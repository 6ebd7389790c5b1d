"""Progress is logged now and then with rate and time left, unless another display is chosen."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import pytest

from tasks import progress as progress_module
from tasks.progress import Advance, log_lines, progress, set_display


def test_log_lines_tell_rate_and_time_left(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), log_lines("profile", "batches", every_s=0) as advance:
        advance(0, 10)
        advance(5, 10)
    assert len(caplog.records) == 1
    assert "profile: 5 of 10 batches, " in caplog.text
    assert "s left" in caplog.text


def test_log_lines_are_rare(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), log_lines("profile", "batches", every_s=60) as advance:
        for done in range(1, 11):
            advance(done, 10)
    assert caplog.records == []


def test_another_display_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    @contextlib.contextmanager
    def display(description: str, unit: str) -> Iterator[Advance]:
        seen.append((description, unit))
        yield lambda done, total: seen.append((done, total))

    monkeypatch.setattr(progress_module, "_display", log_lines)
    set_display(display)
    with progress("train", "epochs") as advance:
        advance(1, 2)
    assert seen == [("train", "epochs"), (1, 2)]
