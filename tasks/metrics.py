"""Exact metrics of predictions that come some at a time: accuracy and macro-F1, by counts; `tasks.roc_auc` is by ranks.

Targets are (n,) classes, or, where a node has many labels, (n, C) rows of 0 and 1, -1 being unknown; unknown entries
count nowhere.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

Metric = Literal["accuracy", "macro_f1", "roc_auc"]
METRICS: tuple[Metric, ...] = get_args(Metric)
"""All of them; larger is better."""

ScoreArray = npt.NDArray[Any]
TargetArray = npt.NDArray[np.int64] | npt.NDArray[np.int8]
CountArray = npt.NDArray[np.int64]


class Measure(Protocol):
    """A metric while predictions come; however they are cut, it is the same."""

    def add(self, scores_nC: ScoreArray, targets: TargetArray) -> None:
        """Count some nodes: (n, C) logits, which may be kept and must not change, and their targets."""

    def value(self) -> float | None:
        """The metric of all of them; None where it is undefined."""


class Accuracy:
    """Share of nodes whose class is right; with many labels, share of the known entries that are right."""

    def __init__(self) -> None:
        self._num_right = self._num_all = 0

    def add(self, scores_nC: ScoreArray, targets: TargetArray) -> None:
        """As `Measure.add`."""
        if targets.ndim == 1:
            self._num_right += int(np.count_nonzero(scores_nC.argmax(axis=1) == targets))
            self._num_all += len(targets)
            return
        known = targets >= 0
        self._num_right += int(np.count_nonzero(((scores_nC > 0) == targets) & known))
        self._num_all += int(np.count_nonzero(known))

    def value(self) -> float | None:
        """As `Measure.value`; None where there is nothing to compare with."""
        return self._num_right / self._num_all if self._num_all else None


class MacroF1:
    """Mean F1 over the classes that occur among targets or predictions; over all labels where a node has many.

    `F1 = 2 TP / (2 TP + FP + FN)`, and 0 for a label that is neither there nor predicted.
    """

    def __init__(self) -> None:
        self._hits_C: CountArray = np.zeros(0, np.int64)
        self._total_C: CountArray = np.zeros(0, np.int64)
        self._all_labels = False

    def add(self, scores_nC: ScoreArray, targets: TargetArray) -> None:
        """As `Measure.add`."""
        if not targets.size:
            return
        num_classes = scores_nC.shape[1]
        if not len(self._hits_C):
            self._hits_C, self._total_C = np.zeros(num_classes, np.int64), np.zeros(num_classes, np.int64)
        if targets.ndim == 1:
            predicted = scores_nC.argmax(axis=1)
            self._hits_C += np.bincount(targets[predicted == targets], minlength=num_classes)
            self._total_C += np.bincount(targets, minlength=num_classes)
            self._total_C += np.bincount(predicted, minlength=num_classes)
            return
        self._all_labels = True
        chosen, there = scores_nC > 0, targets == 1
        self._hits_C += np.count_nonzero(chosen & there, axis=0)
        self._total_C += np.count_nonzero(there, axis=0)
        self._total_C += np.count_nonzero(chosen & (targets >= 0), axis=0)

    def value(self) -> float | None:
        """As `Measure.value`; None where there are no nodes."""
        if not len(self._hits_C):
            return None
        counted = np.ones_like(self._total_C, np.bool_) if self._all_labels else self._total_C > 0
        return float(np.mean(2 * self._hits_C[counted] / np.maximum(self._total_C[counted], 1)))
