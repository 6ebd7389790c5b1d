"""Room on disk for what is spilled: how much there is, and what to say where it is too little."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from storage.blocks.extent import DIRECT_ALIGNMENT
from storage.errors import BudgetError, GardenError, MachineError


@dataclass(frozen=True, slots=True)
class SpillRoom:
    """Bytes that may be spilled at once."""

    nbytes: int
    """Most bytes on disk at any time."""
    beside: int = 0
    """Bytes that the budget covers beside them: a budget that is named has them in it."""
    least: int = 0
    """Bytes that others take of it at other times: a budget that is named leaves so much at least."""
    is_budget: bool = True
    """Whether a `disk_budget` is the limit, else what is free."""
    enough: int = 0
    """A budget that does for anything that may be spilled, where it is known."""

    @classmethod
    def of(cls, disk_budget: int | None, beside: int, directory: Path, *, least: int = 0) -> SpillRoom:
        """What a budget leaves, or the disk where that is less or none is set."""
        there = next(folder for folder in (directory, *directory.absolute().parents) if folder.exists())
        free = shutil.disk_usage(there).free
        if disk_budget is None or disk_budget - beside > free:
            return cls(free, beside, least, is_budget=False)
        return cls(max(0, disk_budget - beside), beside, least)

    def less(self, nbytes: int) -> SpillRoom:
        """What something of our own leaves that lies beside the spills."""
        least = max(0, self.least - nbytes)
        return replace(self, nbytes=max(0, self.nbytes - nbytes), beside=self.beside + nbytes, least=least)

    def part(self, nbytes: int, enough: int) -> SpillRoom:
        """Some of the room, and how much in all would do for anything."""
        return replace(self, nbytes=nbytes, enough=self.beside + max(enough, self.least))

    def short(self, what: str, needed: int) -> GardenError:
        """The error where it takes more: names a `disk_budget` that does."""
        if self.is_budget:
            return BudgetError(
                f"{what} {needed} bytes on disk and disk_budget leaves {self.nbytes}: set disk_budget to at least "
                f"{self.enough or self.beside + max(needed, self.least)}, or host_budget higher"
            )
        return MachineError(
            f"{what} {needed} bytes on disk and {self.nbytes} are free: free some, use another disk, or set "
            "host_budget higher"
        )


ENDLESS = SpillRoom(1 << 62, is_budget=False)
"""No limit."""


def spilled_bytes(num_rows: int, row_bytes: int, num_batches: int) -> int:
    """Bound what rows of some mini-batches take on disk, each segment on a boundary of direct I/O."""
    return num_rows * row_bytes + num_batches * DIRECT_ALIGNMENT if num_rows else 0
