"""Byte budgets: what a stage will need is compared with what it may use and with what is free, before it starts."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from storage.errors import BudgetError, MachineError

SMALL_FILES_BYTES = 1 << 20
"""Disk for what is small whatever the graph: a picture, a manifest, the frame of an HDF5 file."""
_logger = logging.getLogger(__name__)
_CGROUP = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Estimate:
    """What a stage will need at most, above what its libraries take."""

    memory_bytes: int
    """Peak of main memory."""
    disk_bytes: int
    """Peak of disk, beyond what was there before."""
    joint_disk_bytes: int = 0
    """The same while later stages of the run work, what this one leaves included: the least that they take."""
    enough_disk_bytes: int = 0
    """What is sure to do for them, where that is more."""
    held_memory_bytes: int = 0
    """Of `memory_bytes`, what is in memory already when the estimate is checked."""
    is_final: bool = True
    """Whether nothing is left to be found out; what is not final is checked, but not told."""


@dataclass(frozen=True)
class Budgets:
    """What a stage may use; None means whatever the machine has free."""

    host_bytes: int | None = None
    """Main memory (`host_budget`)."""
    disk_bytes: int | None = None
    """Disk (`disk_budget`): most bytes at any time, those of what is there already included."""
    host_option: str = "host_budget"
    """How errors name the setting of `host_bytes`."""
    disk_option: str = "disk_budget"
    """How errors name the setting of `disk_bytes`."""

    def memory_bytes(self, free_memory: int | None = None) -> int:
        """Return the most memory a stage may use: `host_budget`, or what is free if that is less or none is set."""
        free = available_memory() if free_memory is None else free_memory
        return free if self.host_bytes is None else min(self.host_bytes, free)

    def free_disk_bytes(self, directory: Path, held_bytes: int = 0) -> int:
        """Return the most bytes a stage may write there now: what is left of `disk_budget`, or of the disk if less."""
        free = shutil.disk_usage(directory).free
        return free if self.disk_bytes is None else max(0, min(self.disk_bytes - held_bytes, free))

    def check(
        self,
        stage: str,
        estimate: Estimate,
        directory: Path,
        held_bytes: int = 0,
        free_memory: int | None = None,
    ) -> None:
        """Refuse a stage that cannot end well, or after which a later one cannot, and log what it will need.

        Parameters
        ----------
        stage
            Its name.
        estimate
            What it, and stages after it, will need.
        directory
            Where it writes.
        held_bytes
            Bytes of disk that are there already and count.
        free_memory
            What was free before the stage took anything; None: what is free now.

        Raises
        ------
        BudgetError
            If the estimate is above a budget; names the smallest one that would do.
        MachineError
            If it is above what is free now.
        """
        free_memory = max(available_memory() + estimate.held_memory_bytes, free_memory or 0)
        free_disk = shutil.disk_usage(directory).free
        _logger.log(
            logging.INFO if estimate.is_final else logging.DEBUG,
            "%s: needs up to %s of memory (%s free) and %s of disk (%s free)%s",
            stage,
            format_bytes(estimate.memory_bytes),
            format_bytes(free_memory),
            format_bytes(estimate.disk_bytes),
            format_bytes(free_disk),
            _joint_line(estimate, held_bytes),
        )
        memory, disk = estimate.memory_bytes, max(estimate.disk_bytes, estimate.joint_disk_bytes)
        _check_one(stage, "memory", memory, self.host_option, self.host_bytes, free_memory, "use a larger machine")
        place = f"disk at {directory}{_listed(estimate, held_bytes)}"
        enough = held_bytes + max(disk, estimate.enough_disk_bytes)
        if self.disk_bytes is not None and held_bytes + disk > self.disk_bytes:
            raise BudgetError(
                f"{stage} needs {held_bytes + disk} bytes of {place} and {self.disk_option} is {self.disk_bytes}: "
                f"set {self.disk_option} to at least {enough}"
            )
        _check_one(stage, place, disk, self.disk_option, None, free_disk, "use another disk")


def _listed(estimate: Estimate, held_bytes: int) -> str:
    """What else is counted than what a stage adds."""
    later = " and what later stages take" if estimate.joint_disk_bytes > estimate.disk_bytes else ""
    held = f" with the {held_bytes} that are there" if held_bytes else ""
    return f"{held}{later}" if held else later.replace(" and", " with")


def _joint_line(estimate: Estimate, held_bytes: int) -> str:
    if not (held_bytes or estimate.joint_disk_bytes):
        return ""
    joint = held_bytes + max(estimate.disk_bytes, estimate.joint_disk_bytes)
    return f"; with {format_bytes(held_bytes)} that are there and later stages, up to {format_bytes(joint)}"


def _check_one(stage: str, what: str, needed: int, name: str, budget: int | None, free: int, way_out: str) -> None:
    if budget is not None and needed > budget:
        raise BudgetError(
            f"{stage} needs {needed} bytes of {what} and {name} is {budget}: set {name} to at least {needed}"
        )
    if needed > free:
        raise MachineError(f"{stage} needs {needed} bytes of {what} and {free} are free: free some, or {way_out}")


def available_memory() -> int:
    """Return the bytes of memory that can be had now, within the limits of control groups if any are set."""
    available = int(psutil.virtual_memory().available)
    return min([available, *_group_leftovers()])


def _group_leftovers() -> Iterator[int]:
    """Bytes that this process's control group, and those above it, leave: of version 2, and of version 1."""
    for folder in _own_groups(_CGROUP, ""):
        yield from _left(folder, "memory.max", "memory.current", ("inactive_file", "active_file"))
    for folder in _own_groups(_CGROUP / "memory", "memory"):
        file_pages = ("total_inactive_file", "total_active_file")
        yield from _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", file_pages)


def _own_groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's groups, from its own to the root; a container may show its own as the root."""
    try:
        lines = [line.split(":", 2) for line in _OWN_CGROUPS.read_text(encoding="utf-8").splitlines()]
    except OSError:
        lines = []
    own = next((path for _, controllers, path in lines if controller in controllers.split(",")), "/")
    folder = root / own.strip("/")
    yield from (part for part in (folder, *folder.parents) if part.is_relative_to(root))


def _left(folder: Path, limit: str, usage: str, file_pages: Sequence[str]) -> Iterator[int]:
    """Bytes below a group's limit, if it has one; files' pages are given back as soon as they are wanted."""
    try:
        text = (folder / limit).read_text(encoding="ascii").strip()
        if text == "max":
            return
        used = int((folder / usage).read_text(encoding="ascii"))
        fields = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        yield max(0, int(text) - used + sum(int(fields[name]) for name in file_pages))
    except (OSError, ValueError, KeyError):
        return


def format_bytes(nbytes: float) -> str:
    """Write a byte count for people: `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"
