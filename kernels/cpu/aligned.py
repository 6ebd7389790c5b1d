"""Memory on cache-line boundaries: matrix products round differently where it does not start on one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes; also what torch gives its own tensors."""


def empty_aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """`np.empty` whose data start at a multiple of 64 bytes."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(num_bytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    aligned: npt.NDArray[Any] = raw[start : start + num_bytes].view(dtype).reshape(shape)
    return aligned


def is_aligned(array: npt.NDArray[Any]) -> bool:
    """Whether the data start at a multiple of 64 bytes."""
    return array.ctypes.data % ALIGNMENT == 0


def aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array itself where it is aligned and contiguous, else a copy that is."""
    if is_aligned(array) and array.flags.c_contiguous:
        return array
    copy = empty_aligned(array.shape, array.dtype)
    copy[...] = array
    return copy
