"""Memory control groups for tests: a limit that the kernel keeps, page cache and all. Version 1 and version 2."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


class NoControlGroupsError(Exception):
    """Why no group can be made here."""


@dataclass(frozen=True)
class MemoryGroup:
    """A control group that processes may be put into."""

    folder: Path
    version: int

    @classmethod
    def at(cls, folder: Path) -> MemoryGroup:
        """A group that exists."""
        return cls(folder, 2 if (_ROOT / "cgroup.controllers").exists() else 1)

    def limit(self, nbytes: int) -> None:
        """Set the most bytes that its processes, and the page cache they fill, may take."""
        self._write("memory.limit_in_bytes" if self.version == 1 else "memory.max", str(nbytes))

    def add(self, pid: int) -> None:
        """Move a process here; what it took before stays charged to where it was."""
        self._write("cgroup.procs", str(pid))

    @property
    def peak_bytes(self) -> int:
        """The most that was ever charged, page cache included."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        return int((self.folder / name).read_text(encoding="ascii"))

    @property
    def held_bytes(self) -> int:
        """What its processes and the kernel hold for them now, page cache left out."""
        prefix, usage = ("total_", "memory.usage_in_bytes") if self.version == 1 else ("", "memory.current")
        lines = (self.folder / "memory.stat").read_text(encoding="ascii").splitlines()
        fields = {name: int(value) for name, value in map(str.split, lines)}
        cached = fields[f"{prefix}inactive_file"] + fields[f"{prefix}active_file"]
        return int((self.folder / usage).read_text(encoding="ascii")) - cached

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="ascii")


@contextlib.contextmanager
def memory_group(name: str) -> Iterator[MemoryGroup]:
    """Make a group below this process's own, and remove it at the end.

    Raises
    ------
    NoControlGroupsError
        This machine or its rights do not allow it.
    """
    version = 2 if (_ROOT / "cgroup.controllers").exists() else 1
    root = _ROOT if version == 2 else _ROOT / "memory"
    parent = root / _own_path("" if version == 2 else "memory").strip("/")
    folder = (parent if parent.is_dir() else root) / f"{name}-{os.getpid()}"
    try:
        if version == 2:
            (folder.parent / "cgroup.subtree_control").write_text("+memory", encoding="ascii")
        folder.mkdir()
    except OSError as error:
        raise NoControlGroupsError(f"no memory control group can be made in {folder.parent}: {error}") from error
    try:
        group = MemoryGroup(folder, version)
        try:
            group.limit(1 << 40)
        except OSError as error:
            raise NoControlGroupsError(f"no limit can be set in {folder}: {error}") from error
        yield group
    finally:
        _remove(folder)


def _own_path(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"


def _remove(folder: Path) -> None:
    """Remove a group; the kernel needs a moment to see that its last process is gone."""
    for _ in range(100):
        try:
            folder.rmdir()
        except OSError:
            time.sleep(0.05)
        else:
            return
    folder.rmdir()
