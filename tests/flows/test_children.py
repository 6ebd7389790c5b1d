"""Who the children of a supervisor are is written down, and what a killed one left is gone before others start."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows import children
from flows.children import Children, end_leftovers
from tasks.processes import describe

SERVER = """
import socket, subprocess, sys, time
server = socket.create_server(("127.0.0.1", 0))
server.set_inheritable(True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
block = bytearray(200 << 20)  # memory that is given back before the port is
print(server.getsockname()[1], flush=True)
time.sleep(60)
"""


def test_what_is_left_has_ended_when_it_is_said_to_have(tmp_path: Path) -> None:
    started = [subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    with contextlib.ExitStack() as stack:
        for process in started:
            stack.enter_context(process)
            stack.callback(process.kill)
        ports = [int(process.stdout.readline()) for process in started if process.stdout]
        below = [child for process in started for child in psutil.Process(process.pid).children()]
        known = {str(process.pid): describe(process.pid) for process in started}
        (tmp_path / "children.json").write_text(json.dumps(known))
        end_leftovers(tmp_path)
        for port in ports:
            socket.create_server(("127.0.0.1", port)).close()
        assert len(below) == 3
        assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in below)
        assert not (tmp_path / "children.json").exists()


def test_a_child_that_has_just_died_is_left_out_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    with contextlib.ExitStack() as stack:
        watched = Children(tmp_path, os.environ, stack, lambda text: None)
        watched.start("dying", sleep, 0.1)
        dying = int(json.loads(json.loads((tmp_path / "children.json").read_text())["dying"])[2])

        def gone(pid: int) -> str:
            if pid == dying:
                raise psutil.NoSuchProcess(pid)
            return describe(pid)

        monkeypatch.setattr(children, "describe", gone)
        watched.start("living", sleep, 0.1)
        assert list(json.loads((tmp_path / "children.json").read_text())) == ["living"]
