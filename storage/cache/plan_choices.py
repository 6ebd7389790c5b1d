"""What a plan may take: rows and lists, either of them, and the best of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from kernels.cpu.greedy import Candidates, Rules, tally
from kernels.rank_map import RankMap
from storage.cache.greedy import BOTH, LISTS, ROWS, Taken, greedy
from storage.cache.profile import AccessProfile, CountArray, Counting, StoredProfile
from storage.errors import InputError

OFFSET_BYTES = 8
"""Bytes of one offset of a cached adjacency list (`Topology.cached_indptr`, int64)."""


def share_of(part: float, whole: float) -> float:
    """A part of a whole; 0 of nothing."""
    return float(part) / whole if whole else 0.0


def _scale(num_accesses: int, counted: int) -> Fraction:
    """Factor from counts to accesses, short enough to multiply counts by its terms."""
    return Fraction(num_accesses, counted).limit_denominator(1000) if counted else Fraction(1)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a choice takes, in bits."""

    kinds: int
    """Rows, lists, or both."""
    rows: npt.NDArray[np.uint8]
    """A bit a node: whether its row is taken."""
    lists: npt.NDArray[np.uint8]
    """A bit a node: whether its list is."""
    value: float
    """What that saves."""

    @classmethod
    def of(cls, kinds: int, taken: Taken) -> Choice:
        """Pack what was taken."""
        return cls(kinds, np.packbits(taken.rows_N), np.packbits(taken.lists_N), taken.value)

    def taken(self, num_nodes: int) -> Taken:
        """Unpack it."""
        rows_N, lists_N = (np.unpackbits(bits, count=num_nodes).view(np.bool_) for bits in (self.rows, self.lists))
        return Taken(rows_N, lists_N, self.value)


def choices_of(
    profile: AccessProfile | StoredProfile,
    counting: Counting,
    degree_N: npt.NDArray[np.integer],
    rules: Rules,
    budget: int,
) -> tuple[list[Choice], CountArray]:
    """The choices of both kinds, rows only and lists only; and the counts that rank rows."""
    num_nodes, accesses = len(degree_N), 0
    if counting == "full_link":
        accesses = int(profile.counts("input")[0].sum())
    feature_count_N, adjacency_count_N = profile.counts(counting)
    if num_nodes != len(feature_count_N):
        raise InputError(
            f"the profile counts {len(feature_count_N)} nodes, the graph has {num_nodes}: "
            "it is another graph's, make one of this graph"
        )
    scale = _scale(accesses, int(feature_count_N.sum())) if counting == "full_link" else Fraction(1)
    down = scale.denominator
    scaled = rules._replace(
        row_worth=rules.row_worth * scale.numerator,
        list_worth=rules.list_worth * down,
        list_byte_worth=rules.list_byte_worth * down,
    )
    candidates = Candidates(feature_count_N, adjacency_count_N, degree_N, scaled)
    one_map = RankMap.nbytes_for(num_nodes)
    fixed = {BOTH: 2 * one_map + OFFSET_BYTES, ROWS: one_map, LISTS: one_map + OFFSET_BYTES}
    choices = [Choice.of(kinds, greedy(candidates, kinds, budget - held)) for kinds, held in fixed.items()]
    return choices, feature_count_N


def best_choice(choices: Sequence[Choice], heldout: Candidates) -> tuple[Taken, tuple[float, float]]:
    """The best choice, or none at all; what rows only, and lists only, would save."""
    num_nodes, saved = len(heldout.in_degree_N), {BOTH: 0.0}
    for choice in choices[1:]:
        taken = choice.taken(num_nodes)
        saved[choice.kinds] = share_of(*tally(heldout, taken.rows_N, taken.lists_N)[4:])
        del taken
    best = max(choices, key=lambda choice: choice.value)  # the first of equals
    if best.value > 0:
        return best.taken(num_nodes), (saved[ROWS], saved[LISTS])
    none = Taken(np.zeros(num_nodes, np.bool_), np.zeros(num_nodes, np.bool_), 0.0)
    return none, (saved[ROWS], saved[LISTS])
