"""Datasets of a store as memory maps: processes that map the same file share its pages instead of copying them."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.blocks.extent import Extent
from storage.blocks.reader import check_block


def map_dataset(path: Path, extent: Extent, *, verify: bool) -> npt.NDArray[Any]:
    """Map a dataset into memory.

    Parameters
    ----------
    path : Path
        Store file.
    extent : Extent
        Where the dataset lies.
    verify : bool
        Read all of it now and compare each block with its CRC-32; of several processes one has to.

    Returns
    -------
    array in the dataset's shape and type
        Its pages are the page cache's; writing to them changes neither the file nor another process.

    Raises
    ------
    ChecksumMismatchError
        If a block is damaged.
    """
    if not extent.nbytes:
        return np.empty(extent.shape, extent.dtype)
    raw = np.memmap(path, np.uint8, "c", extent.offset, (extent.nbytes,)).view(np.ndarray)
    if verify:
        for block in range(extent.num_blocks):
            check_block(path, extent, block, raw[block * extent.block_bytes : (block + 1) * extent.block_bytes])
    return raw.view(extent.dtype).reshape(extent.shape)


def hold_dataset(path: Path, extent: Extent) -> tuple[npt.NDArray[Any], int]:
    """Read a dataset once into memory that other processes map as well, by `map_held`.

    For memory that a GPU's driver pins: pinning a map of the store itself copies each of its pages, once a process.

    Parameters
    ----------
    path : Path
        Store file.
    extent : Extent
        Where the dataset lies.

    Returns
    -------
    array in the dataset's shape and type
        Writing to it changes what the others see.
    int
        Descriptor of the memory, which the caller closes.

    Raises
    ------
    ChecksumMismatchError
        If a block is damaged.
    """
    descriptor = os.memfd_create(path.name)
    try:
        os.ftruncate(descriptor, extent.nbytes)
        held = map_held(descriptor, extent)
        held[...] = map_dataset(path, extent, verify=True)
    except BaseException:
        os.close(descriptor)
        raise
    return held, descriptor


def map_held(descriptor: int, extent: Extent) -> npt.NDArray[Any]:
    """Map what `hold_dataset` has read, here or in the process that this one was started by.

    Returns
    -------
    array in the dataset's shape and type
    """
    if not extent.nbytes:
        return np.empty(extent.shape, extent.dtype)
    return np.frombuffer(mmap.mmap(descriptor, extent.nbytes), extent.dtype).reshape(extent.shape)
