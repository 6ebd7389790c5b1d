"""Data sets that are not there are fetched from a server of our own: whole or not at all."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.data import DataConfig
from storage.errors import BudgetError, InputError, MachineError
from tasks.fetch import fetch_missing
from tasks.progress import Advance

TRIPLES = b"a\tr\tb\n"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a server that offers a good archive and an evil one."""
    folder = tmp_path / "served"
    folder.mkdir()
    for name, entry in (("good.zip", "FB/train.txt"), ("evil.zip", "../owned")):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr(entry, TRIPLES)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        httpd.daemon_threads = False  # so that closing waits until each has closed its socket
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files; `untold` is the good archive without its size, `broken` ends before the size it told."""

    def do_GET(self) -> None:
        name = self.path.strip("/")
        if name not in ("untold", "broken"):
            super().do_GET()
            return
        content = Path(self.directory, "good.zip").read_bytes()
        self.send_response(200)
        if name == "broken":
            self.send_header("Content-Length", str(len(content) + 1))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def data(path: Path, url: str, checksum: str | None = None) -> DataConfig:
    return DataConfig(format="triples", path=path, url=url, checksum=checksum)


def sha256(tmp_path: Path) -> str:
    return hashlib.sha256((tmp_path / "served" / "good.zip").read_bytes()).hexdigest()


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("served", ".locks"))


def test_fetches_unpacks_and_publishes(tmp_path: Path, server: str, caplog: pytest.LogCaptureFixture) -> None:
    fetch_missing(data(tmp_path / "fb", f"{server}/good.zip"))
    assert left_in(tmp_path) == ["fb"]
    assert [path.name for path in (tmp_path / "fb").iterdir()] == ["train.txt"]
    assert (tmp_path / "fb" / "train.txt").read_bytes() == TRIPLES
    assert f"data.checksum=sha256:{sha256(tmp_path)}" in caplog.text


def test_a_checksum_is_compared(tmp_path: Path, server: str, caplog: pytest.LogCaptureFixture) -> None:
    fetch_missing(data(tmp_path / "fb", f"{server}/good.zip", f"sha256:{sha256(tmp_path)}"))
    assert "was not checked" not in caplog.text
    with pytest.raises(InputError, match=r"is not the file that was expected: data\.checksum is sha256:0000"):
        fetch_missing(data(tmp_path / "other", f"{server}/good.zip", f"sha256:{'0' * 64}"))
    assert left_in(tmp_path) == ["fb"]


def test_what_is_there_is_not_fetched(tmp_path: Path, server: str) -> None:
    (tmp_path / "fb").mkdir()
    fetch_missing(data(tmp_path / "fb", f"{server}/good.zip"))
    assert list((tmp_path / "fb").iterdir()) == []
    fetch_missing(DataConfig(format="triples", path=tmp_path / "nowhere"))
    assert left_in(tmp_path) == ["fb"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [("nothing.zip", "404"), ("evil.zip", "outside its folder: do not trust this archive")],
)
def test_nothing_is_left_of_what_is_refused(tmp_path: Path, server: str, name: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        fetch_missing(data(tmp_path / "fb", f"{server}/{name}"))
    assert "\n" not in str(caught.value)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("good.zip", 20),  # less than the archive, whose size the server tells
        ("untold", 20),  # less than the archive, whose size nobody tells
        ("good.zip", 130),  # enough for the archive alone
    ],
)
def test_disk_budget_bounds_what_is_fetched(tmp_path: Path, server: str, name: str, budget: int) -> None:
    with pytest.raises(BudgetError, match=f"disk_budget is {budget}: set disk_budget to at least") as caught:
        fetch_missing(data(tmp_path / "fb", f"{server}/{name}"), budget)
    assert left_in(tmp_path) == []
    enough = int(str(caught.value).rsplit(" ", 1)[-1])
    if budget > 20:
        fetch_missing(data(tmp_path / "fb", f"{server}/{name}"), enough)
        assert left_in(tmp_path) == ["fb"]


def test_a_connection_that_breaks_leaves_nothing(tmp_path: Path, server: str) -> None:
    with pytest.raises(MachineError, match=r"cannot be reached .*: run again"):
        fetch_missing(data(tmp_path / "fb", f"{server}/broken"))
    assert left_in(tmp_path) == []


def test_what_is_no_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.url: .*; give the address of a zip or tar file"):
        fetch_missing(data(tmp_path / "fb", "http://[x/good.zip"))


def test_a_server_that_is_away_is_no_fault_of_the_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(MachineError, match="cannot be reached"):
        fetch_missing(data(tmp_path / "fb", "http://127.0.0.1:9/good.zip"))
    assert left_in(tmp_path) == []


def test_progress_is_reported(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    @contextlib.contextmanager
    def display(description: str, unit: str) -> Iterator[Advance]:
        yield lambda done, total: seen.append((done, total))

    monkeypatch.setattr("tasks.progress._display", display)
    fetch_missing(data(tmp_path / "fb", f"{server}/good.zip"))
    size = (tmp_path / "served" / "good.zip").stat().st_size
    assert seen[-1] == (size, size)
