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
    scores_nC = _softmax(scores_nC) if one_class else scores_nC
    areas = []
    for column in range(scores_nC.shape[1]):
        there_n = targets == column if one_class else targets[:, column] == 1
        known_n = np.ones(len(targets), np.bool_) if one_class else targets[:, column] >= 0
        area = _area(scores_nC[known_n, column], there_n[known_n])
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


def _softmax(logits_nC: ScoreArray) -> npt.NDArray[np.float64]:
    shifted = logits_nC.astype(np.float64) - logits_nC.max(axis=1, keepdims=True, initial=-np.inf)
    exponent = np.exp(shifted)
    probabilities: npt.NDArray[np.float64] = exponent / exponent.sum(axis=1, keepdims=True)
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
