"""Which rows a dynamic cache should hold: scores of what the static cache misses, decayed mini-batch by mini-batch.

GARDEN Eq. 5 and 6, with what the prose says in place of what Eq. 5 prints: scored is what the *static* cache misses.
Read literally (cache-hit nodes), a row that is not cached could never gain a score, and nothing would ever change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu.top import top_ids
from kernels.rank_map import RankMap

Ids = npt.NDArray[np.int64]

SPARE_SHARE = 8
"""One slot in so many more is spare: an update moves at most that many rows while the old ones are still read."""
_SLOT_BYTES = 4
_LARGEST_WEIGHT = 1e150
_LEAST_GAIN = 1 - 1e-9  # one access, but for rounding


@dataclass(frozen=True, slots=True)
class DynamicOptions:
    """How a dynamic cache is kept up."""

    share: float = 0.0
    """Share of the device budget, everything that the dynamic cache needs on the device included; 0 means none."""
    gamma: float = 0.999
    """What is left of a score after one mini-batch."""
    interval_batches: int = 0
    """Mini-batches from one update to the next; 0 updates at the end of each epoch."""
    epochs: int = 10
    """Epochs after which updates stop."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or not 0 < self.gamma <= 1:
            raise ValueError(f"share must lie in [0, 1] and gamma in (0, 1] (got {self.share} and {self.gamma})")
        if self.interval_batches < 0 or self.epochs < 0:
            got = f"{self.interval_batches} and {self.epochs}"
            raise ValueError(f"interval_batches and epochs must be >= 0 (got {got})")


@dataclass(frozen=True, slots=True)
class DynamicLayout:
    """Sizes of a dynamic cache."""

    rows: int
    """Rows that it holds at most."""
    row_bytes: int
    """Bytes of one."""
    num_nodes: int
    """Nodes that its maps cover."""

    @property
    def spare_rows(self) -> int:
        """Slots beside them, for the rows that come in while those that go are still read."""
        return max(1, self.rows // SPARE_SHARE) if self.rows else 0

    @property
    def nbytes(self) -> int:
        """Bytes on the device: rows, spare rows, and two generations of maps and slot numbers."""
        if not self.rows:
            return 0
        maps = 2 * (RankMap.nbytes_for(self.num_nodes) + _SLOT_BYTES * self.rows)
        return (self.rows + self.spare_rows) * self.row_bytes + maps

    @classmethod
    def within(cls, budget_bytes: int, row_bytes: int, num_nodes: int) -> DynamicLayout:
        """The largest that fits (no rows where not even one does)."""
        low, high = 0, min(num_nodes, max(0, budget_bytes) // row_bytes) if row_bytes else 0
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if cls(middle, row_bytes, num_nodes).nbytes <= budget_bytes else (low, middle - 1)
            )
        return cls(low, row_bytes, num_nodes)


@dataclass(frozen=True, slots=True)
class Swap:
    """What an update changes."""

    incoming: Ids
    """Rows to bring in, the hottest first."""
    outgoing: Ids
    """Rows to let go, the coldest first; as many, less the slots that were empty."""
    gain: float
    """Accesses that the incoming rows are expected to serve beyond the outgoing ones."""


class HotSet:
    """Scores of all nodes, 8 bytes each; a mini-batch is scored by adding, never by going through the others.

    Decay is lazy: instead of all scores shrinking by gamma, what is added grows by 1/gamma from one mini-batch to the
    next (forward decay, Cormode et al., ICDE 2009). The order is that of Eq. 5.

    Parameters
    ----------
    score_N : (N,) float64
        Scores, zeros at first; on a device where they are added to there.
    gamma : float
    """

    def __init__(self, score_N: Any, gamma: float) -> None:
        self.score_N = score_N
        self.weight = 1.0
        """What an access of the present mini-batch adds."""
        self._gamma = gamma

    def advance(self) -> None:
        """Go on to the next mini-batch."""
        self.weight /= self._gamma
        if self.weight > _LARGEST_WEIGHT:
            self.score_N /= self.weight
            self.weight = 1.0

    def of_now(self, score_N: npt.NDArray[np.float64]) -> HotSet:
        """A copy of the scores with the weight of now, if nobody adds meanwhile."""
        copied = HotSet(score_N, self._gamma)
        copied.weight = self.weight
        return copied

    def propose(self, held: Ids, capacity: int, most_moves: int) -> Swap:
        """Choose what to change so that the hottest rows are held (Eq. 6), as far as moving them pays.

        A score is, but for its unit, the accesses that a row will see before it is forgotten, if it goes on as it
        did. Moving one costs one access: what replaces a row must have one more to its score.

        Parameters
        ----------
        held : (k,) int64
            Rows held now, ascending.
        capacity : int
            Rows that may be held.
        most_moves : int
            Rows that may come in.

        Returns
        -------
        Swap
            Ties go to the lower id.
        """
        best = top_ids(self.score_N, capacity)
        incoming, outgoing = (
            np.setdiff1d(one, other, assume_unique=True) for one, other in ((best, held), (held, best))
        )
        incoming = incoming[np.argsort(-self.score_N[incoming], kind="stable")][:most_moves]
        outgoing = outgoing[::-1]
        outgoing = outgoing[np.argsort(self.score_N[outgoing], kind="stable")]
        vacant = min(capacity - len(held), len(incoming))
        outgoing = outgoing[: len(incoming) - vacant]
        replaced = np.concatenate([np.zeros(vacant), self.score_N[outgoing]])
        gains = (self.score_N[incoming] - replaced) / (self.weight * self._gamma)  # in accesses of the last mini-batch
        num_moves = int(np.searchsorted(-gains, -_LEAST_GAIN, side="right"))  # gains descend
        return Swap(incoming[:num_moves], outgoing[: max(0, num_moves - vacant)], float(gains[:num_moves].sum()))
