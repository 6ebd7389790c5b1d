"""Metrics equal scikit-learn's, ties, rare classes and unknown entries included."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as oracle

from tasks.metrics import METRICS, accuracy, macro_f1, roc_auc

SETTINGS = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(2, 5))


def drawn(seed: int, num_nodes: int, num_classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coarse logits (so that ties occur), classes, and rows of labels."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(-3, 4, (num_nodes, num_classes)).astype(np.float32) / 2
    rows = (rng.random((num_nodes, num_classes)) < rng.random(num_classes)).astype(np.int8)
    return scores, rng.integers(0, num_classes, num_nodes), rows


def softmax(scores: np.ndarray) -> np.ndarray:
    exponent = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return exponent / exponent.sum(axis=1, keepdims=True)


@given(SETTINGS)
def test_one_class(settings: tuple[int, int, int]) -> None:
    scores, targets, _ = drawn(*settings)
    predicted = scores.argmax(axis=1)
    assert accuracy(scores, targets) == pytest.approx(oracle.accuracy_score(targets, predicted))
    assert macro_f1(scores, targets) == pytest.approx(oracle.f1_score(targets, predicted, average="macro"))
    occur = [c for c in range(scores.shape[1]) if 0 < np.count_nonzero(targets == c) < len(targets)]
    areas = [oracle.roc_auc_score(targets == c, softmax(scores)[:, c]) for c in occur]
    found = roc_auc(scores, targets)
    assert found is None if not areas else found == pytest.approx(np.mean(areas), abs=1e-9)


def test_roc_auc_is_one_against_the_rest_of_all_classes() -> None:
    rng = np.random.default_rng(5)
    targets, scores = np.arange(60) % 3, rng.standard_normal((60, 3))
    expected = oracle.roc_auc_score(targets, softmax(scores), multi_class="ovr", average="macro")
    assert roc_auc(scores, targets) == pytest.approx(expected)


@given(SETTINGS)
def test_many_labels(settings: tuple[int, int, int]) -> None:
    scores, _, rows = drawn(*settings)
    chosen = (scores > 0).astype(np.int8)
    assert accuracy(scores, rows) == pytest.approx(1 - oracle.hamming_loss(rows, chosen))
    assert macro_f1(scores, rows) == pytest.approx(oracle.f1_score(rows, chosen, average="macro", zero_division=0))
    mixed = np.flatnonzero((rows.min(axis=0) == 0) & (rows.max(axis=0) == 1))
    found = roc_auc(scores, rows)
    expected = oracle.roc_auc_score(rows[:, mixed], scores[:, mixed], average="macro") if len(mixed) else None
    assert found is None if expected is None else found == pytest.approx(expected)


def test_unknown_entries_count_nowhere() -> None:
    rng = np.random.default_rng(1)
    scores, rows = rng.standard_normal((50, 1)), rng.integers(0, 2, (50, 1)).astype(np.int8)
    hidden = rows.copy()
    hidden[::3] = -1
    known = hidden[:, 0] >= 0
    for metric in METRICS.values():
        assert metric(scores, hidden) == metric(scores[known], rows[known])
        assert metric(scores, hidden) != metric(scores, rows)


@pytest.mark.parametrize("name", METRICS)
def test_nothing_has_no_score(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert METRICS[name](np.empty((0, 3), np.float32), np.empty(0, np.int64)) is None
        assert name == "macro_f1" or METRICS[name](np.ones((2, 3)), np.full((2, 3), -1, np.int8)) is None


def test_roc_auc_makes_no_second_table() -> None:
    rng = np.random.default_rng(0)
    scores, targets = rng.standard_normal((4000, 250)).astype(np.float32), rng.integers(0, 250, 4000)
    tracemalloc.start()
    try:
        roc_auc(scores, targets)
        assert tracemalloc.get_traced_memory()[1] < scores.nbytes // 2
    finally:
        tracemalloc.stop()
