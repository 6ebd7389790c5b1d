"""Feature rows of a mini-batch where they lie in the device's tiers, read by the first layer without a copy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from kernels.cuda.current import to_torch
from kernels.cuda.gather import TierTable, gather_rows, row_addresses
from kernels.cuda.launch import Array, DeviceLauncher


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """As `kernels.tiered_rows.TieredRows`, on a device. The tiers must not change while the rows are in use."""

    launcher: DeviceLauncher
    """Of the device."""
    table: TierTable
    """All tiers."""
    tier_n: Array
    """(n,) uint8 tier of each row."""
    slot_n: Array
    """(n,) int64 row of that tier."""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.tier_n)

    @property
    def width(self) -> int:
        """Elements of a row."""
        return int(self.table.tiers[0].shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the elements."""
        dtype: np.dtype[Any] = self.table.tiers[0].dtype
        return dtype

    def head(self, num_rows: int) -> DeviceRows:
        """The first rows."""
        return DeviceRows(self.launcher, self.table, self.tier_n[:num_rows], self.slot_n[:num_rows])

    def tensor(self) -> Tensor:
        """Copy of all rows, on the device and in the dtype of the tiers."""
        with self.launcher.stream():
            out_nD = self.launcher.xp.empty((len(self), self.width), self.dtype)
            gather_rows(self.launcher, self.table, self.tier_n, self.slot_n, out_nD)
            return to_torch(out_nD)

    @cached_property
    def address_n(self) -> Array:
        """(n,) uint64 address of each row."""
        with self.launcher.stream():
            return row_addresses(self.launcher, self.table, self.tier_n, self.slot_n)[0]
