"""Who a process is, so that another can tell later whether it still lives."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import psutil

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def this_process() -> str:
    """Describe this process: host, boot, process id and start time (ids are used again, start times are not)."""
    return describe(os.getpid())


def describe(pid: int) -> str:
    """Describe a process of this machine, so that `is_dead` knows it again."""
    process = psutil.Process(pid)
    return json.dumps([socket.gethostname(), _boot_id(), process.pid, process.create_time()])


def is_dead(description: str) -> bool:
    """Whether a described process is known to be gone, be it waited for or not; one on another host is not."""
    try:
        host, boot, pid, create_time = json.loads(description)
    except ValueError:
        return False
    if host != socket.gethostname():
        return False
    if boot != _boot_id():
        return True
    try:
        process = psutil.Process(pid)
        return bool(abs(process.create_time() - create_time) > 1 or process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _boot_id() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip()
