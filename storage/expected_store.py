"""A laid-out store that is not written yet: sizes alone, for whoever plans memory and disk before there is a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from storage.blocks.extent import Extent
from storage.csc import id_dtype
from storage.store_format import (
    FEATURES,
    INDICES,
    INDPTR,
    LABELS,
    MULTI_LABELS,
    NEW_TO_OLD,
    OUT_DEGREE,
    StoreInfo,
)


class StoreSizes(Protocol):
    """What memory and disk are planned by: a store that is open, or one that is expected."""

    @property
    def info(self) -> StoreInfo:
        """Counts and types."""

    @property
    def datasets(self) -> tuple[str, ...]:
        """Names of all datasets that are read block by block."""

    def extent(self, name: str) -> Extent:
        """Where a dataset lies; of an expected one, its size alone means anything."""

    def has(self, name: str) -> bool:
        """Whether the store holds a dataset."""

    def nbytes(self, name: str) -> int:
        """Bytes of a dataset; 0 where the store has none of that name."""


@dataclass(frozen=True)
class ExpectedStore:
    """Sizes of a store, from what is known about the graph.

    Parameters
    ----------
    info : StoreInfo
        What the store is expected to hold.
    """

    info: StoreInfo

    @property
    def datasets(self) -> tuple[str, ...]:
        """As `GraphStore.datasets`."""
        return tuple(self._arrays)

    def extent(self, name: str) -> Extent:
        """As `GraphStore.extent`; neither place nor checksums are known."""
        shape, dtype = self._arrays[name]
        return Extent(name, shape, dtype, 0, self.info.block_bytes, np.empty(0, np.uint32))

    def has(self, name: str) -> bool:
        """As `GraphStore.has`."""
        return name in self._arrays

    def nbytes(self, name: str) -> int:
        """As `GraphStore.nbytes`."""
        return self.extent(name).nbytes if name in self._arrays else 0

    @property
    def _arrays(self) -> Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and type of each dataset."""
        info, whole = self.info, np.dtype(np.int64)
        arrays: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            INDPTR: ((info.num_nodes + 1,), whole),
            INDICES: ((info.num_edges,), id_dtype(info.num_nodes)),
            OUT_DEGREE: ((info.num_nodes,), whole),
            NEW_TO_OLD: ((info.num_nodes,), whole),
        }
        if info.feature_dim:
            arrays[FEATURES] = ((info.num_nodes, info.feature_dim), info.feature_dtype)
        if info.is_multi_label:
            arrays[MULTI_LABELS] = ((info.num_nodes, info.num_classes), np.dtype(np.int8))
        elif info.num_classes:
            arrays[LABELS] = ((info.num_nodes,), np.dtype(np.int32))
        return arrays | {f"splits/{split}": ((size,), whole) for split, size in info.split_sizes.items()}
