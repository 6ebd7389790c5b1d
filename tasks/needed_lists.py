"""The nodes whose rows exact inference needs, layer by layer, and their lists, read some at a time from the disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.cpu.bits import mark_bits, take_ids
from kernels.cpu.rank_map import rank_words
from kernels.mfg import IdArray
from kernels.rank_map import RankMap
from storage.blocks.stored_topology import StoredTopology

I64Array = npt.NDArray[np.int64]

DEFAULT_LISTS, DEFAULT_ENTRIES = 1 << 14, 1 << 17
"""Offsets and entries on their way, about 6 MB, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class ListReads:
    """Reads lists of the nodes of a set, consecutive in it, within a little memory."""

    topology: StoredTopology
    """Where they are."""
    lists_at_once: int = DEFAULT_LISTS
    """Lists whose offsets are in memory."""
    entries_at_once: int = DEFAULT_ENTRIES
    """Most entries of lists in memory."""

    def nodes(self, needed: RankMap, first: int, last: int) -> Iterator[tuple[int, I64Array]]:
        """Ids of the slots `first` to `last` of a set, the latter excluded, some at a time with their first slot."""
        for at in range(first, last, self.lists_at_once):
            yield at, ids_between(needed, at, min(self.lists_at_once, last - at))

    def degrees(self, needed: RankMap) -> Iterator[tuple[int, I64Array]]:
        """Lengths of the lists of all nodes of a set, some at a time with their first slot."""
        for at, ids in self.nodes(needed, 0, needed.num_slots):
            yield at, self.topology.lists(ids)[1]

    def edges(self, needed: RankMap, first: int, last: int) -> Iterator[tuple[IdArray, npt.NDArray[np.int32]]]:
        """Sources and destinations of all edges into such nodes; destinations count from `first`."""
        for at, ids in self.nodes(needed, first, last):
            begin, degree = self.topology.lists(ids)
            end = np.cumsum(degree)
            start, num_entries = end - degree, int(end[-1])
            for low in range(0, num_entries, self.entries_at_once):
                high = min(low + self.entries_at_once, num_entries)
                # The lists of which a part lies in [low, high) of these entries.
                part = slice(int(np.searchsorted(end, low, "right")), int(np.searchsorted(start, high, "left")))
                length = np.minimum(end[part], high) - np.maximum(start[part], low)
                sources = self.topology.read_lists(begin[part] + np.maximum(low - start[part], 0), length)
                targets = np.arange(part.start, part.stop, dtype=np.int32) + np.int32(at - first)
                yield sources, np.repeat(targets, length)


def needed_sets(reads: ListReads, nodes: I64Array, num_layers: int, *, needs_graph: bool) -> list[RankMap]:
    """Nodes whose rows each layer reads, from the input to the output, which are `nodes` (ascending, distinct)."""
    num_nodes = reads.topology.num_nodes
    sets = [RankMap.from_sorted_ids(nodes, num_nodes)]
    for _ in range(num_layers):
        if not needs_graph:
            sets.append(sets[0])
            continue
        bits = sets[-1].bits.copy()
        for sources, _targets in reads.edges(sets[-1], 0, sets[-1].num_slots):
            mark_bits(bits, sources)
        rank = np.empty(len(bits), np.uint32)
        rank_words(bits, rank)
        sets.append(RankMap(bits, rank, num_nodes, int(np.bitwise_count(bits).sum())))
    return sets[::-1]


def ids_between(needed: RankMap, first_slot: int, count: int) -> I64Array:
    """Ids of the slots [first_slot, first_slot + count) of a set."""
    if not count:
        return np.empty(0, np.int64)
    # A plain int would have all ranks copied to its type.
    word = int(np.searchsorted(needed.rank, needed.rank.dtype.type(first_slot), side="right")) - 1
    out = np.empty(first_slot - int(needed.rank[word]) + count, np.int64)
    take_ids(needed.bits, 64 * word, out)
    return out[first_slot - int(needed.rank[word]) :]
