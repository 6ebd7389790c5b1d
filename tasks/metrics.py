"""Exact metrics of predictions in plain NumPy: accuracy, macro-F1 and ROC-AUC, for one class a node or for many labels.

Targets of a multi-label task are (n, C) rows of 0 and 1, -1 being unknown; unknown entries count nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Metric = Literal["accuracy", "macro_f1", "roc_auc"]

ScoreArray = npt.NDArray[Any]
_SOFTMAX_BYTES = 1 << 18
"""Of rows that are exponentiated at once."""
TargetArray = npt.NDArray[np.int64] | npt.NDArray[np.int8]


def accuracy(scores_nC: ScoreArray, targets: TargetArray) -> float | None:
    """Share of nodes whose class is right; with many labels, share of the known entries that are right.

    Parameters
    ----------
    scores_nC : (n, C) logits
    targets : (n,) classes, or (n, C) entries 0, 1 and -1

    Returns
    -------
    float or None
        None where there is nothing to compare with.
    """
    if targets.ndim == 1:
        return _share(scores_nC.argmax(axis=1) == targets)
    return _share((scores_nC > 0)[targets >= 0] == targets[targets >= 0])


def macro_f1(scores_nC: ScoreArray, targets: TargetArray) -> float | None:
    """Mean F1 over the classes that occur among targets or predictions; over all labels where a node has many.

    `F1 = 2 TP / (2 TP + FP + FN)`, and 0 for a label that is neither there nor predicted.

    Parameters
    ----------
    scores_nC : (n, C) logits
    targets : (n,) classes, or (n, C) entries 0, 1 and -1
    """
    if not targets.size:
        return None
    num_classes = scores_nC.shape[1]
    if targets.ndim == 1:
        predicted = scores_nC.argmax(axis=1)
        hits_C = np.bincount(targets[predicted == targets], minlength=num_classes)
        total_C = np.bincount(targets, minlength=num_classes) + np.bincount(predicted, minlength=num_classes)
        return float(np.mean(2 * hits_C[total_C > 0] / total_C[total_C > 0]))
    known, chosen, there = targets >= 0, scores_nC > 0, targets == 1
    hits_C = np.count_nonzero(chosen & there, axis=0)
    total_C = np.count_nonzero(there, axis=0) + np.count_nonzero(chosen & known, axis=0)
    return float(np.mean(2 * hits_C / np.maximum(total_C, 1)))


def roc_auc(scores_nC: ScoreArray, targets: TargetArray) -> float | None:
    """Mean area under the ROC curve, one against the rest, over the classes that some nodes have and others lack.

    The probability that a random positive scores above a random negative, ties counting one half (Hanley and McNeil
    1982). One class a node: scores are the softmax of the logits, since rows are compared with each other.

    Parameters
    ----------
    scores_nC : (n, C) logits
    targets : (n,) classes, or (n, C) entries 0, 1 and -1

    Returns
    -------
    float or None
        None where no class has both.
    """
    one_class = targets.ndim == 1
    scale_n = _softmax_scale(scores_nC) if one_class else None
    areas = []
    for column in range(scores_nC.shape[1]):
        there_n = targets == column if one_class else targets[:, column] == 1
        known_n = np.ones(len(targets), np.bool_) if one_class else targets[:, column] >= 0
        scores_n = scores_nC[known_n, column]
        area = _area(scores_n if scale_n is None else _softmax_of(scores_n, *scale_n), there_n[known_n])
        areas += [] if area is None else [area]
    return float(np.mean(areas)) if areas else None


METRICS: Mapping[Metric, Callable[[ScoreArray, TargetArray], float | None]] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "roc_auc": roc_auc,
}
"""All metrics by name; larger is better."""


def _share(right: npt.NDArray[np.bool_]) -> float | None:
    return float(right.mean()) if right.size else None


def _softmax_scale(logits_nC: ScoreArray) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Largest logit of each row, and the sum of the exponents of the differences to it: no second table is made."""
    num_nodes, num_classes = logits_nC.shape
    largest_n, sum_n = np.empty(num_nodes), np.empty(num_nodes)
    step = max(1, _SOFTMAX_BYTES // (8 * max(1, num_classes)))
    for first in range(0, num_nodes, step):
        part = slice(first, first + step)
        wide_nC = logits_nC[part].astype(np.float64)
        largest_n[part] = wide_nC.max(axis=1, initial=-np.inf)
        sum_n[part] = np.exp(wide_nC - largest_n[part, None]).sum(axis=1)
    return largest_n, sum_n


def _softmax_of(
    logits_n: ScoreArray, largest_n: npt.NDArray[np.float64], sum_n: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Softmax of one class."""
    probabilities: npt.NDArray[np.float64] = np.exp(logits_n.astype(np.float64) - largest_n) / sum_n
    return probabilities


def _area(scores_n: ScoreArray, there_n: npt.NDArray[np.bool_]) -> float | None:
    """Area under one curve from the sum of the positives' ranks, tied scores sharing their mean rank."""
    num_there, num_absent = int(there_n.sum()), int((~there_n).sum())
    if not num_there or not num_absent:
        return None
    _, inverse, counts = np.unique(scores_n, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    rank_sum = float(mean_rank[inverse][there_n].sum())
    return (rank_sum - num_there * (num_there + 1) / 2) / (num_there * num_absent)
