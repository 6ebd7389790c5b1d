"""Which ids a cache holds and where: a bitmap with ranks, 0.19 bytes a node instead of the 4 of a slot array."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.cpu import rank_map as cpu
from kernels.mfg import IdArray

_WORD_BITS = 64
_COMPARED_AT_ONCE = 1 << 18


def is_ascending(ids: npt.NDArray[np.integer]) -> bool:
    """Whether ids ascend strictly; compared some at a time."""
    firsts = range(0, len(ids) - 1, _COMPARED_AT_ONCE)
    pieces = (ids[first : first + _COMPARED_AT_ONCE + 1] for first in firsts)
    return all(bool(np.all(piece[1:] > piece[:-1])) for piece in pieces)


def check_ascending(ids: IdArray, num_nodes: int) -> None:
    """Refuse ids that do not ascend strictly within [0, num_nodes).

    Raises
    ------
    ValueError
    """
    if not is_ascending(ids):
        raise ValueError("nodes must ascend strictly: each of them once, in order")
    if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= num_nodes):
        raise ValueError(f"nodes must lie in [0, {num_nodes}) (got {ids[0]}..{ids[-1]})")


@dataclass(frozen=True, slots=True)
class RankMap:
    """Slots of a set of ids: the slot of an id is its position among the ids held, in ascending order."""

    bits: npt.NDArray[np.uint64]
    """(ceil(num_nodes / 64),) one bit a node, lowest bit first."""
    rank: npt.NDArray[np.uint32]
    """(ceil(num_nodes / 64),) number of ids held before each word."""
    num_nodes: int
    """Ids lie in [0, num_nodes)."""
    num_slots: int
    """Number of ids held."""

    @classmethod
    def from_sorted_ids(cls, ids: IdArray, num_nodes: int) -> RankMap:
        """Build the map of `ids`.

        Parameters
        ----------
        ids : (num_slots,) int32 or int64
            Strictly ascending ids.
        num_nodes : int

        Raises
        ------
        ValueError
            If the ids do not ascend strictly or lie outside [0, num_nodes).
        """
        ids = np.ascontiguousarray(ids, np.int64)
        if ids.ndim != 1 or not is_ascending(ids):
            raise ValueError("a rank map needs a 1-D array of strictly ascending ids")
        if len(ids) and (ids[0] < 0 or ids[-1] >= num_nodes):
            raise ValueError(f"ids of a rank map must lie in [0, {num_nodes}) (got {ids[0]}..{ids[-1]})")
        num_words = -(-num_nodes // _WORD_BITS)
        bits, rank = np.zeros(num_words, np.uint64), np.empty(num_words, np.uint32)
        cpu.set_bits(bits, ids)
        cpu.rank_words(bits, rank)
        return cls(bits, rank, num_nodes, len(ids))

    @classmethod
    def of_all(cls, num_nodes: int) -> RankMap:
        """Build the map of all ids: each is its own slot."""
        bits = np.full(-(-num_nodes // _WORD_BITS), ~np.uint64(0))
        if spare := -num_nodes % _WORD_BITS:
            bits[-1] >>= np.uint64(spare)
        rank = np.arange(0, num_nodes, _WORD_BITS, dtype=np.uint32)
        return cls(bits, rank, num_nodes, num_nodes)

    @staticmethod
    def nbytes_for(num_nodes: int) -> int:
        """Bytes that a map over `num_nodes` nodes takes, however many ids it holds."""
        return -(-num_nodes // _WORD_BITS) * (np.dtype(np.uint64).itemsize + np.dtype(np.uint32).itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        return self.bits.nbytes + self.rank.nbytes

    def ids(self) -> npt.NDArray[np.int64]:
        """(num_slots,) the ids held, ascending; takes a byte a node meanwhile."""
        held = np.unpackbits(self.bits.view(np.uint8), bitorder="little")
        return np.flatnonzero(held)

    def slots(self, ids: IdArray) -> npt.NDArray[np.int64]:
        """Slot of each id.

        Parameters
        ----------
        ids : (n,) int32 or int64, in [0, num_nodes)

        Returns
        -------
        (n,) int64
            -1 where the id is not held.
        """
        out = np.empty(len(ids), np.int64)
        cpu.slots(self.bits, self.rank, np.ascontiguousarray(ids), out)
        return out
