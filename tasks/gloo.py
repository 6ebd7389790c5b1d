"""Peers over torch.distributed's gloo: processes of this machine, connected over the loopback interface alone."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from storage.errors import MachineError

# The group itself rather than the module's default group: nothing global is left behind, and it binds to one address.
_Group: Any = distributed.ProcessGroupGloo
_Store: Any = distributed.FileStore  # type: ignore[attr-defined]


class GlooPeers:
    """One process of a group that meets in a file; constructing it waits for the others.

    Parameters
    ----------
    meeting_file : Path
        A file that does not exist yet, the same for all.
    rank, size : int
    timeout_s : float
        How long to wait for the others, now and in each exchange.

    Raises
    ------
    MachineError
        If they do not come.
    """

    def __init__(self, meeting_file: Path, rank: int, size: int, timeout_s: float) -> None:
        self.rank, self.size, self.place = rank, size, torch.device("cpu")
        options = _Group._Options()
        options._devices = [_Group.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=timeout_s)
        try:
            self._group = _Group(_Store(str(meeting_file), size), rank, size, options)
        except RuntimeError as error:
            raise MachineError(f"the workers did not meet: {error}") from error

    def exchange(self, values: Tensor) -> list[Tensor]:
        """Give values to all and return everybody's, by rank."""
        given = [torch.empty_like(values) for _ in range(self.size)]
        try:
            self._group.allgather([given], [values.contiguous()]).wait()
        except RuntimeError as error:
            raise MachineError(f"a worker does not answer: {error}") from error
        return given
