"""A child ends with its parent, however the parent ends, and is stopped in order otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from flows.child_process import spawn, stop

SLEEP = [sys.executable, "-c", "import time; print('started', flush=True); time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('started', flush=True); time.sleep(60)",
]


def wait_for_start(log: Path) -> None:
    deadline = time.monotonic() + 20
    while not log.exists() or "started" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_is_stopped_and_its_output_kept(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"
    child = spawn(SLEEP, os.environ, log)
    wait_for_start(log)
    stop(child, 10)
    assert child.returncode == -signal.SIGTERM


def test_a_stubborn_child_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    child = spawn(STUBBORN, os.environ, log)
    wait_for_start(log)
    stop(child, 0.1)
    assert child.returncode == -signal.SIGKILL


def test_stopping_a_child_that_has_ended_is_fine(tmp_path: Path) -> None:
    child = spawn([sys.executable, "-c", "pass"], os.environ, tmp_path / "child.log")
    child.wait(20)
    stop(child, 1)
    assert child.returncode == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_with_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    log = tmp_path / "child.log"
    code = f"""
import os, time
from pathlib import Path
from flows.child_process import spawn
print(spawn({SLEEP!r}, os.environ, Path({str(log)!r})).pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    wait_for_start(log)
    parent.send_signal(how)
    parent.communicate()
    gone, _ = psutil.wait_procs([child], timeout=10)
    assert gone == [child]
