"""The processes that train together, as one of them sees the others; `Alone` stands for training in one process."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Peers(Protocol):
    """Processes of equal standing, numbered from 0; number 0 validates, saves and decides when to stop."""

    @property
    def rank(self) -> int:
        """Number of this process."""

    @property
    def size(self) -> int:
        """How many there are."""

    @property
    def place(self) -> torch.device:
        """Where gradients meet."""

    def exchange(self, values: Tensor) -> list[Tensor]:
        """Give values to all and return everybody's, by rank; all must call with equal shapes and types.

        Values lie in host memory, or at `place`.

        Raises
        ------
        MachineError
            If another process has died or does not answer.
        """


class Alone:
    """Training in one process."""

    rank, size, place = 0, 1, torch.device("cpu")

    def exchange(self, values: Tensor) -> list[Tensor]:
        """Return the values given."""
        return [values]
