"""Ids of a store's nodes as they are stored, taken from front to back: what goes with each row of a prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.graph_store import ORIGINAL_ID, GraphStore
from storage.store_format import NEW_TO_OLD


class ColumnInTurn:
    """A column whose rows are taken from front to back, a few at a time: each block is read once."""

    def __init__(self, store: GraphStore, name: str) -> None:
        self._reader = store.reader(name)
        self._num_rows = self._reader.extent.shape[0]
        self._block_bytes, self._row_bytes = store.info.block_bytes, self._reader.extent.row_bytes
        self._rows, self._first = self._reader.read_rows(0, 0), 0

    def take(self, first: int, last: int) -> npt.NDArray[Any]:
        """Rows `first` to `last`, not included."""
        parts = []
        while True:
            held = self._rows[max(0, first - self._first) : max(0, last - self._first)]
            parts.append(held.copy())
            first += len(held)
            if first >= last:
                return np.concatenate(parts)
            self._first, self._rows = first, self._rows[:0].copy()  # the old ones go before others come
            block = ((first + 1) * self._row_bytes - 1) // self._block_bytes
            end = min(self._num_rows, (block + 1) * self._block_bytes // self._row_bytes)
            self._rows = self._reader.read_rows(first, end)


def ids_in_turn(store: GraphStore) -> Callable[[int, int], npt.NDArray[Any]]:
    """Give ids of consecutive nodes of the store, not yet decoded, asked for from front to back."""
    for name in (ORIGINAL_ID, NEW_TO_OLD):
        if store.has(name):
            return ColumnInTurn(store, name).take
    return np.arange


def stored_ids(store: GraphStore, first: int, last: int) -> npt.NDArray[Any]:
    """Ids of consecutive nodes of the store, not yet decoded."""
    for name in (ORIGINAL_ID, NEW_TO_OLD):
        if store.has(name):
            return store.reader(name).read_rows(first, last)
    return np.arange(first, last)
