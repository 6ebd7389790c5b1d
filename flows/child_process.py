"""Child processes that never outlive us: the kernel ends them when their parent dies, however it dies.

Run as a program with `PARENT COMMAND...`, this file asks the kernel for that and becomes COMMAND.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def spawn(command: Sequence[str], environment: Mapping[str, str], log_file: Path) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own, so that Ctrl-C reaches us alone and we stop it in order.

    Call it from the main thread: the kernel watches the thread that started the child.

    Parameters
    ----------
    command
        Program and arguments.
    environment
        All environment variables of the child.
    log_file
        File that its output is appended to.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    wrapped = [sys.executable, "-P", __file__, str(os.getpid()), *command]
    with log_file.open("ab") as log:
        return subprocess.Popen(
            wrapped, env=dict(environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def stop(child: subprocess.Popen[bytes], patience_s: float) -> None:
    """Ask a child to end, and end it with its whole session if it has not after `patience_s` seconds."""
    if child.poll() is None:
        child.terminate()
    try:
        child.wait(patience_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _become(parent: int, command: list[str]) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before we could ask
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - no shell is meant to be there


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
