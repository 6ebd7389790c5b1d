"""Where a dataset's bytes lie in a store file: a contiguous byte range, cut into blocks with a CRC-32 each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

DIRECT_ALIGNMENT = 4096
"""Alignment of offset, length and memory that direct I/O asks for."""


@dataclass(frozen=True)
class Extent:
    """One dataset of a store as byte range."""

    name: str
    """Name of the dataset in the file."""
    shape: tuple[int, ...]
    """Shape of the whole array."""
    dtype: np.dtype[Any]
    """Type of its elements."""
    offset: int
    """First byte in the file."""
    block_bytes: int
    """Bytes a block; the last one may be shorter."""
    crc_B: npt.NDArray[np.uint32]
    """(num_blocks,) CRC-32 of each block."""

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry along the first axis."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return num_blocks(self.nbytes, self.block_bytes)


def num_blocks(nbytes: int, block_bytes: int) -> int:
    """Blocks that hold `nbytes`."""
    return -(-nbytes // block_bytes)


def aligned_empty(nbytes: int) -> npt.NDArray[np.uint8]:
    """Uninitialised bytes whose address direct I/O accepts."""
    raw = np.empty(nbytes + DIRECT_ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % DIRECT_ALIGNMENT
    return raw[start : start + nbytes]
