"""Byte budgets: what a stage will need is compared with what it may use and with what is free, before it starts."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from storage.errors import BudgetError, MachineError

SMALL_FILES_BYTES = 1 << 20
"""Disk for what is small whatever the graph: a picture, a manifest, the frame of an HDF5 file."""
_logger = logging.getLogger(__name__)
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Estimate:
    """What a stage will need at most, above what its libraries take."""

    memory_bytes: int
    """Peak of main memory."""
    disk_bytes: int
    """Bytes written."""


@dataclass(frozen=True)
class Budgets:
    """What a stage may use; None means whatever the machine has free."""

    host_bytes: int | None = None
    """Main memory (`host_budget`)."""
    disk_bytes: int | None = None
    """Disk (`disk_budget`)."""

    def check(self, stage: str, estimate: Estimate, directory: Path) -> None:
        """Refuse a stage that cannot end well, and log what it will need.

        Raises
        ------
        BudgetError
            If the estimate is above a budget; names the smallest one that would do.
        MachineError
            If it is above what is free now.
        """
        free_memory, free_disk = available_memory(), shutil.disk_usage(directory).free
        _logger.info(
            "%s: needs up to %s of memory (%s free) and %s of disk (%s free)",
            stage,
            format_bytes(estimate.memory_bytes),
            format_bytes(free_memory),
            format_bytes(estimate.disk_bytes),
            format_bytes(free_disk),
        )
        _check_one(stage, "memory", estimate.memory_bytes, "host_budget", self.host_bytes, free_memory)
        _check_one(stage, f"disk at {directory}", estimate.disk_bytes, "disk_budget", self.disk_bytes, free_disk)


def _check_one(stage: str, what: str, needed: int, name: str, budget: int | None, free: int) -> None:
    if budget is not None and needed > budget:
        raise BudgetError(
            f"{stage} needs {needed} bytes of {what} and {name} is {budget}: set {name} to at least {needed}"
        )
    if needed > free:
        raise MachineError(
            f"{stage} needs {needed} bytes of {what} and {free} are free: free some, or use a larger machine"
        )


def available_memory() -> int:
    """Return the bytes of memory that can be had now, within the limit of a control group if one is set."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = (_CGROUP / "memory.max").read_text(encoding="ascii").strip()
        if limit == "max":
            return available
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii")) - _page_cache_bytes()
        return min(available, max(0, int(limit) - used))
    except (OSError, ValueError):
        return available


def _page_cache_bytes() -> int:
    """Memory that holds files' pages: it counts as used, and is given back as soon as it is wanted."""
    fields = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
    return sum(int(fields[name]) for name in ("inactive_file", "active_file"))


def format_bytes(nbytes: float) -> str:
    """Write a byte count for people: `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"
