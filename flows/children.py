"""The processes that one supervisor starts, watches, starts again when they die, and stops in order."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flows.answering import answers
from flows.child_process import spawn, stop
from storage.atomic import write_text
from storage.errors import MachineError
from tasks.processes import describe, is_dead

_READY_S = 120.0
_MOST_RESTARTS = 3
_WITHIN_S = 600.0
_LARGEST_LOG = 16 << 20
_RECORD = "children.json"
_KILLED_S = 10.0


@dataclass
class _Child:
    command: list[str]
    patience_s: float
    process: subprocess.Popen[bytes]
    started_again: list[float] = field(default_factory=list)


def end_leftovers(state_dir: Path) -> None:
    """Kill what the children of a supervisor that was killed have left: one may be stuck, waiting for another."""
    record = state_dir / _RECORD
    try:
        left = [child for child in json.loads(record.read_text(encoding="utf-8")).values() if not is_dead(child)]
    except (OSError, ValueError, AttributeError):
        return
    killed = list[psutil.Process]()
    for child in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(json.loads(child)[2])
            killed += [*process.children(recursive=True), process]
    for each in killed:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(killed, _KILLED_S)  # until then they hold their ports
    record.unlink(missing_ok=True)


class Children:
    """The processes of one supervisor; leaving its stack stops them, the last started first."""

    def __init__(
        self,
        state_dir: Path,
        environment: Mapping[str, str],
        stack: contextlib.ExitStack,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Choose where logs go and what the children see.

        Parameters
        ----------
        state_dir
            Logs go to the folder `logs` below it.
        environment
            All environment variables of the children.
        stack
            Stops the children when it is left.
        say
            Told about each child that is started again; without it none is, and its death is an error.
        """
        self._logs, self._environment, self._stack, self._say = state_dir / "logs", environment, stack, say
        self._children: dict[str, _Child] = {}

    def start(self, name: str, command: list[str], patience_s: float) -> None:
        """Start a process; when it is stopped, it has so many seconds to end by itself."""
        self._children[name] = child = _Child(command, patience_s, self._spawn(name, command))
        self._stack.callback(lambda: stop(child.process, patience_s))
        self._write_record()

    def run(self, name: str, command: list[str]) -> None:
        """Run a step to its end.

        Raises
        ------
        MachineError
            If it fails.
        """
        with self._log(name).open("ab") as log:
            done = subprocess.run(command, env=dict(self._environment), stdout=log, stderr=log, check=False)
        if done.returncode:
            raise self._died(name, done.returncode)

    def wait_for(self, name: str, url: str) -> None:
        """Wait until a process answers.

        Raises
        ------
        MachineError
            If it has died, or does not answer in time.
        """
        deadline = time.monotonic() + _READY_S
        while not answers(url, 1):
            code = self._children[name].process.poll()
            if code is not None:
                raise self._died(name, code)
            if time.monotonic() > deadline:
                raise MachineError(f"{name} does not answer after {_READY_S:.0f} s; see {self._log(name)}")
            time.sleep(0.05)

    def check(self) -> None:
        """Start again what has died.

        Raises
        ------
        MachineError
            If it dies again and again, or is not to be started again.
        """
        for name, child in self._children.items():
            code = child.process.poll()
            if code is None:
                continue
            now = time.monotonic()
            child.started_again = [then for then in child.started_again if then > now - _WITHIN_S]
            if self._say is None or len(child.started_again) == _MOST_RESTARTS:
                raise self._died(name, code)
            child.started_again.append(now)
            self._say(f"{name} ended with code {code}; started again (see {self._log(name)})")
            child.process = self._spawn(name, child.command)
            self._write_record()

    def _spawn(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        log = self._log(name)
        if log.exists() and log.stat().st_size > _LARGEST_LOG:
            log.replace(log.with_suffix(".old.log"))
        return spawn(command, self._environment, log)

    def _write_record(self) -> None:
        """Write down who the children of a supervisor that stays are."""
        if self._say is not None:
            known = dict[str, str]()
            for name, child in self._children.items():
                with contextlib.suppress(psutil.NoSuchProcess):
                    known[name] = describe(child.process.pid)
            write_text(self._logs.parent / _RECORD, json.dumps(known) + "\n")

    def _log(self, name: str) -> Path:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._logs / f"{name}.log"

    def _died(self, name: str, code: int) -> MachineError:
        return MachineError(f"{name} ended with code {code}; see {self._log(name)}")
