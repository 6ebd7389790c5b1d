"""Reads every block of a dataset and names each one that is damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from storage.blocks.extent import Extent
from storage.blocks.reader import BlockReader
from storage.errors import StorageError
from storage.formats.base import CHUNK_BYTES


def damaged_blocks(path: Path, extent: Extent, on_blocks: Callable[[int], None]) -> Iterator[StorageError]:
    """Check all blocks of a dataset against their CRC-32, a few MiB at a time.

    Parameters
    ----------
    path : Path
        Store file.
    extent : Extent
        Where the dataset lies.
    on_blocks : callable
        Told how many blocks were read since it was last called.

    Yields
    ------
    StorageError
        One for each block that is damaged or cut off; its message names dataset, block and byte.
    """
    reader = BlockReader(path, extent)
    step = max(1, CHUNK_BYTES // extent.block_bytes)
    try:
        for first in range(0, extent.num_blocks, step):
            last = min(first + step, extent.num_blocks)
            try:
                reader.read_blocks(first, last)
            except StorageError:
                yield from _one_by_one(reader, first, last)
            on_blocks(last - first)
    finally:
        reader.close()


def _one_by_one(reader: BlockReader, first: int, last: int) -> Iterator[StorageError]:
    for block in range(first, last):
        try:
            reader.read_blocks(block, block + 1)
        except StorageError as error:
            yield error
