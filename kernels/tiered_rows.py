"""Feature rows where they lie: the tiers, and the tier and slot of each row, read without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.cpu.aligned import empty_aligned
from kernels.cpu.gather import gather_rows, row_addresses

TIER_DTYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint8))
"""How features may be stored where layers read them in place."""


@dataclass(frozen=True, eq=False)
class TieredRows:
    """Rows of a matrix that was never put together.

    The tiers must not change while the rows are in use.
    """

    tiers: Sequence[npt.NDArray[Any]]
    """(rows_t, width) arrays of one dtype and width."""
    tier_n: npt.NDArray[np.uint8]
    """(n,) tier of each row."""
    slot_n: npt.NDArray[np.int64]
    """(n,) row of that tier."""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.tier_n)

    @property
    def width(self) -> int:
        """Elements of a row."""
        return int(self.tiers[0].shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the elements."""
        return self.tiers[0].dtype

    def head(self, num_rows: int) -> TieredRows:
        """The first rows."""
        return TieredRows(self.tiers, self.tier_n[:num_rows], self.slot_n[:num_rows])

    def gather(self, begin: int = 0, end: int | None = None) -> npt.NDArray[Any]:
        """Copy of rows [begin, end), on a cache-line boundary and in the dtype of the tiers."""
        tier_n, slot_n = self.tier_n[begin:end], self.slot_n[begin:end]
        out_nD = empty_aligned((len(tier_n), self.width), self.dtype)
        gather_rows(self.tiers, tier_n, slot_n, out_nD)
        return out_nD

    def tensor(self) -> Tensor:
        """Copy of all rows, in the dtype of the tiers."""
        return torch.from_numpy(self.gather())

    @cached_property
    def address_n(self) -> npt.NDArray[np.uint64]:
        """(n,) address of each row, every slot checked.

        Raises
        ------
        ValueError
            If the tiers do not fit together, or a tier or slot is out of range.
        """
        return row_addresses(self.tiers, self.tier_n, self.slot_n)
