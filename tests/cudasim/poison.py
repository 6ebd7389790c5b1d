"""NumPy as a device's array module: memory that was not written holds what no kernel expects.

Fresh pages of a host are zero, as those of a GPU are not: a kernel that reads what nobody wrote would pass unseen.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

_INTEGER_BYTE = 0xA5


class PoisonedNumpy(ModuleType):
    """All of NumPy, but that `empty` and `empty_like` give numbers far out of range, and NaN."""

    def __init__(self) -> None:
        super().__init__("numpy")

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any = float) -> np.ndarray:
        """An array of poison."""
        return _poisoned(np.empty(shape, dtype))

    def empty_like(self, like: np.ndarray) -> np.ndarray:
        """An array of poison."""
        return _poisoned(np.empty_like(like))


def _poisoned(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f":
        array.fill(np.nan)
    else:
        array.reshape(-1).view(np.uint8).fill(_INTEGER_BYTE)
    return array


POISONED = PoisonedNumpy()
