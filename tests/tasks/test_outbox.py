"""Calls arrive in order; a server that goes away delays them, one that never returns leaves them in a file."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path

import pytest

from tasks.outbox import Call, Outbox


class Server:
    """Takes calls while it is up, refuses those named `bad`."""

    def __init__(self) -> None:
        self.up = threading.Event()
        self.up.set()
        self.tried = threading.Event()
        self.taken: list[int] = []

    def take(self, call: Call) -> None:
        self.tried.set()
        if not self.up.is_set():
            raise ConnectionError("connection refused\nsecond line")
        if call.verb == "bad":
            raise ValueError("no such run")
        self.taken.append(call.arguments["number"])


def make(server: Server, path: Path) -> Outbox:
    return Outbox(
        server.take, lambda error: isinstance(error, ValueError), server="the server", unsent_file=path, retry_s=0.01
    )


def test_calls_arrive_in_order(tmp_path: Path) -> None:
    server = Server()
    outbox = make(server, tmp_path / "unsent.jsonl")
    for number in range(100):
        outbox.put("good", number=number)
    assert outbox.close(10) is None
    assert server.taken == list(range(100))
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_returns_gets_everything(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.up.clear()
    with caplog.at_level(logging.INFO):
        outbox = make(server, tmp_path / "unsent.jsonl")
        for number in range(5):
            outbox.put("good", number=number)
        assert server.tried.wait(10)
        server.up.set()
        assert outbox.close(10) is None
    assert server.taken == list(range(5))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "is away; figures are kept" in caplog.text
    assert "second line" not in caplog.text
    assert "is back" in caplog.text


def test_a_server_that_stays_away_leaves_a_file_that_the_warning_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    server.up.clear()
    outbox = make(server, tmp_path / "folder" / "unsent.jsonl")
    for number in range(3):
        outbox.put("good", number=number)
    path = outbox.close(0.05)
    assert path == tmp_path / "folder" / "unsent.jsonl"
    calls = [json.loads(line) for line in path.read_text().splitlines()]
    assert calls == [{"verb": "good", "arguments": {"number": number}} for number in range(3)]
    assert str(path) in caplog.text


def test_what_is_refused_does_not_hold_up_the_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    outbox = make(server, tmp_path / "unsent.jsonl")
    outbox.put("bad", number=1)
    outbox.put("good", number=2)
    path = outbox.close(10)
    assert server.taken == [2]
    assert "refused bad: no such run" in caplog.text
    assert path is not None
    assert json.loads(path.read_text()) == {"verb": "bad", "arguments": {"number": 1}}


def test_giving_a_call_never_waits_for_the_server(tmp_path: Path) -> None:
    release = threading.Event()

    def hang(call: Call) -> None:
        release.wait(10)

    outbox = Outbox(
        hang,
        lambda error: False,
        server="a hanging server",
        unsent_file=tmp_path / "unsent.jsonl",
    )
    for number in range(1000):
        outbox.put("good", number=number)
    assert outbox.close(0.05) is not None
    release.set()


def test_what_waits_is_merged_and_a_server_that_is_behind_is_waited_for(tmp_path: Path) -> None:
    sent: list[list[int]] = []

    def slowly(call: Call) -> None:
        time.sleep(0.05)
        sent.append(list(call.arguments["numbers"]))

    def merge(last: Call, new: Call) -> Call | None:
        numbers = [*last.arguments["numbers"], *new.arguments["numbers"]]
        return Call("count", {"numbers": numbers}) if len(numbers) <= 10 else None

    outbox = Outbox(slowly, lambda error: False, server="a server", unsent_file=tmp_path / "unsent", merge=merge)
    for number in range(100):
        outbox.put("count", numbers=[number])
    assert outbox.close(0.2, patient=True) is None  # longer than one call, shorter than all
    assert [number for numbers in sent for number in numbers] == list(range(100))
    assert 10 <= len(sent) <= 13
