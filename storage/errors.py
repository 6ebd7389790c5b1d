"""The error hierarchy. Each error knows the exit code that `garden` ends with."""

from __future__ import annotations


class GardenError(Exception):
    """Base of the errors this project raises on purpose; the message says what, where and what to do."""

    exit_code = 1


class InputError(GardenError, ValueError):
    """The input, the configuration or a data file is wrong (exit code 2)."""

    exit_code = 2


class StorageError(InputError):
    """A file of ours is damaged or of the wrong kind (exit code 2)."""


class ChecksumMismatchError(StorageError):
    """A block's bytes do not match its recorded CRC-32."""


class FormatVersionError(StorageError):
    """A store was written by another, incompatible format version."""


class MachineError(GardenError, RuntimeError):
    """This machine cannot do it now: no space, no memory, a port in use, a server away (exit code 3)."""

    exit_code = 3


class DiskFullError(MachineError):
    """A disk ran full while something was written to it (exit code 3); what was half-written is gone."""

    def __init__(self, problem: str, *, way_out: str | None = None) -> None:
        """Say what happened, and what else may be done than to free some space."""
        super().__init__(problem if way_out is None else f"{problem}, or {way_out}")
        self.way_out = way_out


class BudgetError(InputError):
    """A byte budget cannot be met; the message names the smallest one that would do (exit code 2)."""

    def __init__(self, problem: str, needed: int | None = None) -> None:
        """Say what happened; `needed` is that smallest one, where a caller may know of another way."""
        super().__init__(problem)
        self.needed = needed


class TierMismatchError(GardenError, RuntimeError):
    """A gathered row differs from its source: memory was damaged or this program is wrong (exit code 1)."""
