"""A process is dead when its host and boot are ours and no process has its id and start time."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from tasks.processes import is_dead, this_process


def test_this_process_lives() -> None:
    assert not is_dead(this_process())


def test_a_process_that_ended_is_dead() -> None:
    code = "from tasks.processes import this_process; print(this_process())"
    description = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert is_dead(description)


def test_a_process_that_nobody_has_waited_for_is_dead() -> None:
    code = "from tasks.processes import this_process; print(this_process(), flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        description = process.stdout.readline()
        process.stdout.read()
        deadline = time.monotonic() + 10
        while not is_dead(description):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("position", "value", "dead"),
    [
        (0, "another-host", False),
        (1, "another-boot", True),
        (3, 0.0, True),  # the process id was used again
    ],
)
def test_what_tells_processes_apart(position: int, value: object, dead: bool) -> None:
    description = json.loads(this_process())
    description[position] = value
    assert is_dead(json.dumps(description)) is dead


def test_an_unknown_description_is_not_known_to_be_dead() -> None:
    assert not is_dead("")
