"""The area under the ROC curve, exact, of scores that memory need not hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.metrics import CountArray, ScoreArray, TargetArray
from tasks.score_rows import ScoreRows

_SCORE_BYTES = 8


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive ones, in the order in which they came, of the scores that are fewer in a column."""

    column: int
    first: int
    last: int


class RocAuc:
    """Mean area under the ROC curve, one against the rest, over the classes that some nodes have and others lack.

    The probability that a random positive scores above a random negative, ties counting one half (Hanley and McNeil
    1982). One class a node: scores are the softmax of the logits, since rows are compared with each other.

    Of each column, the positives or the negatives, whichever are fewer, are sorted in memory, in parts where they do
    not fit, and all others are looked up among them as they pass by: 8 bytes of memory for each of the fewer, or a
    pass more over the scores for each time that they exceed it.

    Parameters
    ----------
    rows : ScoreRows
        Where the scores wait; whoever made it closes it.
    """

    def __init__(self, rows: ScoreRows) -> None:
        self._rows = rows
        self._there_C: CountArray = np.zeros(0, np.int64)
        self._known_C: CountArray = np.zeros(0, np.int64)

    def add(self, scores_nC: ScoreArray, targets: TargetArray) -> None:
        """As `Measure.add`."""
        num_classes = scores_nC.shape[1]
        if not len(self._there_C):
            self._there_C, self._known_C = np.zeros(num_classes, np.int64), np.zeros(num_classes, np.int64)
        if targets.ndim == 1:
            self._there_C += np.bincount(targets, minlength=num_classes)
            self._known_C += len(targets)
        else:
            self._there_C += np.count_nonzero(targets == 1, axis=0)
            self._known_C += np.count_nonzero(targets >= 0, axis=0)
        self._rows.append(scores_nC, targets)

    def value(self) -> float | None:
        """As `Measure.value`; None where no class has both positives and negatives."""
        absent_C = self._known_C - self._there_C
        few_C = np.minimum(self._there_C, absent_C)
        few_below = [0] * len(few_C)
        for parts in _parts(few_C, max(1, self._rows.memory_bytes // _SCORE_BYTES)):
            for column, count in self._few_below(parts).items():
                few_below[column] += count
        areas = []
        for column in np.flatnonzero(few_C).tolist():
            pairs = int(self._there_C[column]) * int(absent_C[column])
            below = few_below[column] / (2 * pairs)
            areas.append(1 - below if self._few_are_there(column) else below)
        return float(np.mean(areas)) if areas else None

    def _few_are_there(self, column: int) -> bool:
        """Whether the positives are the fewer ones."""
        return 2 * int(self._there_C[column]) <= int(self._known_C[column])

    def _few_below(self, parts: list[_Part]) -> dict[int, int]:
        """Twice the pairs of a column in which one of the fewer scores below one of the others; a tie counts once."""
        few, counts = self._sorted(parts), dict.fromkeys([part.column for part in parts], 0)
        for values_nC, targets in self._pieces():
            for part, sorted_n in zip(parts, few, strict=True):
                _, others_n = self._parted(values_nC, targets, part.column)
                others_n.sort()  # neighbors are looked up in the same place
                counts[part.column] += int(np.searchsorted(sorted_n, others_n, "left").sum())
                counts[part.column] += int(np.searchsorted(sorted_n, others_n, "right").sum())
        return counts

    def _sorted(self, parts: list[_Part]) -> list[ScoreArray]:
        """The scores of each part, ascending."""
        found = [np.empty(part.last - part.first) for part in parts]
        seen = dict.fromkeys([part.column for part in parts], 0)
        for values_nC, targets in self._pieces():
            for part, out in zip(parts, found, strict=True):
                few_n, _ = self._parted(values_nC, targets, part.column)
                at = seen[part.column]
                low, high = max(part.first, at), min(part.last, at + len(few_n))
                if low < high:
                    out[low - part.first : high - part.first] = few_n[low - at : high - at]
                seen[part.column] += len(few_n)
        for out in found:
            out.sort()
        return found

    def _pieces(self) -> Iterator[tuple[ScoreArray, TargetArray]]:
        """What is ranked, some nodes at a time."""
        for scores_nC, targets in self._rows.read():
            yield _softmax(scores_nC) if targets.ndim == 1 else scores_nC, targets

    def _parted(self, values_nC: ScoreArray, targets: TargetArray, column: int) -> tuple[ScoreArray, ScoreArray]:
        """A column's values: of those which are fewer among all nodes, and of the others."""
        there_n = targets == column if targets.ndim == 1 else targets[:, column] == 1
        absent_n = ~there_n if targets.ndim == 1 else targets[:, column] == 0
        there_n, absent_n = values_nC[there_n, column], values_nC[absent_n, column]
        return (there_n, absent_n) if self._few_are_there(column) else (absent_n, there_n)


def passes_over(num_scores: int, memory_bytes: int) -> int:
    """How often the rows pass by, if so many scores are sorted, those of all columns together."""
    return 2 * max(1, -(-num_scores // max(1, memory_bytes // _SCORE_BYTES))) if num_scores else 0


def _parts(few_C: CountArray, capacity: int) -> Iterator[list[_Part]]:
    """Cut the fewer scores of all columns into as few lists as hold `capacity` each; a column is in a list once."""
    parts, room = list[_Part](), capacity
    for column in np.flatnonzero(few_C).tolist():
        first, count = 0, int(few_C[column])
        while first < count:
            last = min(count, first + room)
            parts.append(_Part(column, first, last))
            room -= last - first
            first = last
            if not room:
                yield parts
                parts, room = [], capacity
    if parts:
        yield parts


def _softmax(logits_nC: ScoreArray) -> npt.NDArray[np.float64]:
    """Probabilities, computed in place of one wide copy."""
    wide_nC: npt.NDArray[np.float64] = logits_nC.astype(np.float64)
    wide_nC -= wide_nC.max(axis=1, initial=-np.inf, keepdims=True)
    np.exp(wide_nC, out=wide_nC)
    wide_nC /= wide_nC.sum(axis=1, keepdims=True)
    return wide_nC
