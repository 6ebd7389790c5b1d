"""The stamp table: numbers nodes by first appearance with one look-up each, and is emptied for free."""

from __future__ import annotations

import numpy as np

_MAX_STAMP = 2**31 - 1


class StampTable:
    """Local id of each node in the set being numbered: 8 bytes a node, for one thread at a time.

    An entry is `stamp << 32 | local id`. Stamps only rise, so every entry of an earlier set is smaller than those of
    the present one: taking the next stamp empties the table.
    """

    def __init__(self, num_nodes: int) -> None:
        self.entries = np.zeros(num_nodes, np.int64)
        self._last = 0

    def take(self, count: int) -> int:
        """First of `count` stamps above every stamp taken before."""
        if self._last + count > _MAX_STAMP:
            self.entries.fill(0)
            self._last = 0
        first = self._last + 1
        self._last += count
        return first
