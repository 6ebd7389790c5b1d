"""Stores cut into blocks of any size, so that small graphs have rows and lists that span many."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from storage.blocks.extent import Extent
from storage.graph_store import GraphStore, write_store


def recut_store(store: GraphStore, block_bytes: int) -> GraphStore:
    """The same file with other blocks; their checksums are computed here."""
    content = store.path.read_bytes()

    def recut(extent: Extent) -> Extent:
        data = content[extent.offset : extent.offset + extent.nbytes]
        crcs = [zlib.crc32(data[at : at + block_bytes]) for at in range(0, len(data), block_bytes)]
        return replace(extent, block_bytes=block_bytes, crc_B=np.array(crcs, np.uint32))

    extents = {name: recut(store.extent(name)) for name in store.datasets}
    return GraphStore(store.path, replace(store.info, block_bytes=block_bytes), extents, store.num_file_bytes)


def store_of(path: Path, block_bytes: int, **contents: Any) -> GraphStore:
    """Write a store and open it in blocks of any size that a row of offsets divides."""
    write_store(path, block_bytes=4096, **contents)
    return recut_store(GraphStore.open(path), block_bytes)
