"""What the access counts leave of a budget: further rows and lists, by id."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kernels.cpu.greedy import Candidates, list_bytes
from kernels.rank_map import RankMap
from storage.cache.greedy import Taken

_PIECE_NODES = 1 << 16
Ids = npt.NDArray[np.int64]


def fill_spare(taken: Taken, candidates: Candidates, budget: int) -> None:
    """Take rows, then lists, as far as the budget goes; their maps are paid where there is none yet.

    Parameters
    ----------
    taken : Taken
        Changed in place.
    candidates : Candidates
        Sizes; the counts are not looked at.
    budget : int
        Bytes in all; one that is spent already adds nothing.
    """
    rules, num_nodes = candidates.rules, len(taken.rows_N)
    row_map = RankMap.nbytes_for(num_nodes)
    list_map = row_map + rules.offset_bytes
    has_rows, has_lists = bool(taken.rows_N.any()), bool(taken.lists_N.any())
    room = budget - int(taken.rows_N.sum()) * rules.row_bytes - int(list_bytes(candidates, taken.lists_N))
    room -= row_map * has_rows + list_map * has_lists
    if rules.row_bytes:
        added = _take(taken.rows_N, room - row_map * (not has_rows), lambda part: np.full(len(part), rules.row_bytes))
        room -= added + row_map * (added > 0 and not has_rows)

    def bytes_of(part: Ids) -> Ids:
        degree: Ids = candidates.in_degree_N[part].astype(np.int64)
        return degree * rules.id_bytes + rules.offset_bytes

    _take(taken.lists_N, room - list_map * (not has_lists), bytes_of)


def _take(held_N: npt.NDArray[np.bool_], room: int, bytes_of: Callable[[Ids], Ids]) -> int:
    """Take what is not held yet, by id, until one does not fit; returns the bytes of what was taken."""
    added = 0
    for begin in range(0, len(held_N), _PIECE_NODES):
        part = begin + np.flatnonzero(~held_N[begin : begin + _PIECE_NODES])
        sums = np.cumsum(bytes_of(part))
        fitting = int(np.searchsorted(sums, room - added, side="right"))
        held_N[part[:fitting]] = True
        added += int(sums[fitting - 1]) if fitting else 0
        if fitting < len(part):
            break
    return added
