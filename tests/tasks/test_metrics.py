"""Metrics equal scikit-learn's, ties, rare classes and unknown entries included, however predictions are cut."""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as oracle

from storage.blocks.io_stats import IoStats
from storage.errors import ChecksumMismatchError
from tasks.metrics import METRICS, Accuracy, MacroF1, Measure, Metric
from tasks.objective import ManyLabels, OneClass
from tasks.quality import Quality, QualityMeter
from tasks.roc_auc import RocAuc
from tasks.score_rows import ScoreFile, ScoreRows, ScoresInMemory, ScoresOnDisk
from tasks.scoring_memory import scoring_bytes

SETTINGS = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(2, 5))
Array = np.ndarray[Any, Any]
RANKED_AT_ONCE = 1 << 20


def drawn(seed: int, num_nodes: int, num_classes: int) -> tuple[Array, Array, Array]:
    """Coarse logits (so that ties occur), classes, and rows of labels."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(-3, 4, (num_nodes, num_classes)).astype(np.float32) / 2
    rows = (rng.random((num_nodes, num_classes)) < rng.random(num_classes)).astype(np.int8)
    return scores, rng.integers(0, num_classes, num_nodes), rows


def softmax(scores: Array) -> Array:
    exponent = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return exponent / exponent.sum(axis=1, keepdims=True)


def new_measure(name: Metric, rows: ScoreRows | None = None) -> Measure:
    if name == "roc_auc":
        return RocAuc(rows or ScoresInMemory(RANKED_AT_ONCE))
    return Accuracy() if name == "accuracy" else MacroF1()


def measured(name: Metric, scores: Array, targets: Array) -> float | None:
    measure = new_measure(name)
    measure.add(scores, targets)
    return measure.value()


@given(SETTINGS)
def test_one_class(settings: tuple[int, int, int]) -> None:
    scores, targets, _ = drawn(*settings)
    predicted = scores.argmax(axis=1)
    assert measured("accuracy", scores, targets) == pytest.approx(oracle.accuracy_score(targets, predicted))
    assert measured("macro_f1", scores, targets) == pytest.approx(oracle.f1_score(targets, predicted, average="macro"))
    occur = [c for c in range(scores.shape[1]) if 0 < np.count_nonzero(targets == c) < len(targets)]
    areas = [oracle.roc_auc_score(targets == c, softmax(scores)[:, c]) for c in occur]
    found = measured("roc_auc", scores, targets)
    assert found is None if not areas else found == pytest.approx(np.mean(areas), abs=1e-9)


def test_roc_auc_is_one_against_the_rest_of_all_classes() -> None:
    rng = np.random.default_rng(5)
    targets, scores = np.arange(60) % 3, rng.standard_normal((60, 3))
    expected = oracle.roc_auc_score(targets, softmax(scores), multi_class="ovr", average="macro")
    assert measured("roc_auc", scores, targets) == pytest.approx(expected)


@given(SETTINGS)
def test_many_labels(settings: tuple[int, int, int]) -> None:
    scores, _, rows = drawn(*settings)
    chosen = (scores > 0).astype(np.int8)
    assert measured("accuracy", scores, rows) == pytest.approx(1 - oracle.hamming_loss(rows, chosen))
    expected_f1 = oracle.f1_score(rows, chosen, average="macro", zero_division=0)
    assert measured("macro_f1", scores, rows) == pytest.approx(expected_f1)
    mixed = np.flatnonzero((rows.min(axis=0) == 0) & (rows.max(axis=0) == 1))
    found = measured("roc_auc", scores, rows)
    expected = oracle.roc_auc_score(rows[:, mixed], scores[:, mixed], average="macro") if len(mixed) else None
    assert found is None if expected is None else found == pytest.approx(expected)


def test_unknown_entries_count_nowhere() -> None:
    rng = np.random.default_rng(1)
    scores, rows = rng.standard_normal((50, 1)), rng.integers(0, 2, (50, 1)).astype(np.int8)
    hidden = rows.copy()
    hidden[::3] = -1
    known = hidden[:, 0] >= 0
    for name in METRICS:
        assert measured(name, scores, hidden) == measured(name, scores[known], rows[known])
        assert measured(name, scores, hidden) != measured(name, scores, rows)


@pytest.mark.parametrize("name", METRICS)
def test_nothing_has_no_score(name: Metric) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert new_measure(name).value() is None
        assert measured(name, np.empty((0, 3), np.float32), np.empty(0, np.int64)) is None
        assert name == "macro_f1" or measured(name, np.ones((2, 3)), np.full((2, 3), -1, np.int8)) is None
        assert (measured(name, np.ones((2, 1)), np.zeros(2, np.int64)) is None) == (name == "roc_auc"), "one class"


def cut(rng: np.random.Generator, num_nodes: int) -> Iterator[slice]:
    """Parts of nodes in order, some of them empty."""
    cuts = np.sort(rng.integers(0, num_nodes + 1, 4)).tolist()
    return (slice(a, b) for a, b in zip([0, *cuts], [*cuts, num_nodes], strict=True))


@given(SETTINGS, st.integers(1, 12), st.booleans(), st.booleans())
def test_parts_of_any_size_are_scored_as_the_whole(
    tmp_path_factory: pytest.TempPathFactory, settings: tuple[int, int, int], ranked: int, many: bool, on_disk: bool
) -> None:
    """Ranking few at a time, unknown labels among them, scores in memory and on disk."""
    scores, targets, rows = drawn(*settings)
    rng = np.random.default_rng(settings[0])
    rows[rng.random(rows.shape) < 0.2] = -1
    targets = rows if many else targets
    folder = tmp_path_factory.getbasetemp()
    for name in METRICS:
        kept = ScoresOnDisk(folder, len(scores), IoStats(), 8 * ranked) if on_disk else ScoresInMemory(8 * ranked)
        with closing(kept):
            measure = new_measure(name, kept)
            for part in cut(rng, len(scores)):
                measure.add(scores[part], targets[part])
            assert measure.value() == measured(name, scores, targets)


def judged(objective: OneClass | ManyLabels, logits: Array, nodes: Array, parts: list[slice]) -> Quality:
    with QualityMeter(objective, METRICS, lambda: ScoresInMemory(RANKED_AT_ONCE)) as meter:
        for part in parts:
            meter.add(torch.from_numpy(logits[part]), nodes[part])
        return meter.quality()


@given(SETTINGS, st.booleans())
def test_losses_of_parts_add_up(settings: tuple[int, int, int], many: bool) -> None:
    """Nodes in any order, some of them several times; the loss is torch's."""
    logits, targets, rows = drawn(*settings)
    rng = np.random.default_rng(settings[0])
    rows[rng.random(rows.shape) < 0.2] = -1
    nodes = rng.integers(0, len(targets), len(targets))
    objective = ManyLabels(rows, torch.ones(rows.shape[1])) if many else OneClass(targets, torch.ones(logits.shape[1]))
    found = judged(objective, logits, nodes, list(cut(rng, len(nodes))))
    whole = judged(objective, logits, nodes, [slice(0, len(nodes))])
    assert found.metrics == whole.metrics
    assert found.loss == pytest.approx(whole.loss, rel=1e-12)
    if many:
        known = torch.from_numpy(rows[nodes] >= 0)
        wide, labels = torch.from_numpy(logits).double()[known], torch.from_numpy(rows[nodes]).double()[known]
        entries = torch.nn.functional.binary_cross_entropy_with_logits(wide, labels, reduction="sum")
        assert found.loss == pytest.approx(float(entries) / max(1, int(known.sum())), rel=1e-6)
    else:
        expected = torch.nn.functional.cross_entropy(
            torch.from_numpy(logits).double(), torch.from_numpy(targets[nodes])
        )
        assert found.loss == pytest.approx(float(expected), rel=1e-6)


def test_losses_are_added_up_in_double_precision() -> None:
    """Single precision would stop growing at 2**24 losses, or lose digits long before."""
    labels, logits = np.zeros(1000, np.int64), np.zeros((1000, 2), np.float32)
    nodes = np.arange(1000)
    objective = OneClass(labels, None)
    with QualityMeter(objective, (), lambda: ScoresInMemory(1)) as meter:
        for _ in range(400):
            meter.add(torch.from_numpy(logits), nodes)
        assert meter.quality().loss == pytest.approx(float(np.float32(np.log(2))), rel=1e-12)


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("num_classes", [2, 20, 250])
@pytest.mark.parametrize("many", [False, True])
def test_scoring_takes_what_is_counted(tmp_path: Path, num_classes: int, many: bool) -> None:
    """However many nodes come at once: a table of them would take many times as much."""
    rng, num_nodes = np.random.default_rng(0), 4_000_000 // max(num_classes, 4)
    logits = rng.standard_normal((num_nodes, num_classes), np.float32)
    objective: OneClass | ManyLabels = OneClass(rng.integers(0, num_classes, num_nodes).astype(np.int16), None)
    if many:
        objective = ManyLabels(rng.integers(-1, 2, logits.shape).astype(np.int8), None)
    nodes, memory, stats = np.arange(num_nodes), 1 << 22, IoStats()
    pieces = ScoreFile(num_nodes, num_classes * 2 if many else num_classes + 1).memory_bytes

    def scored() -> None:
        with QualityMeter(objective, METRICS, lambda: ScoresOnDisk(tmp_path, num_nodes, stats, memory)) as meter:
            meter.add(torch.from_numpy(logits), nodes)
            assert meter.quality().metrics["roc_auc"] == pytest.approx(0.5, abs=0.01)

    counted = scoring_bytes(num_nodes, num_classes, many_labels=many)
    scored()  # code that is compiled takes more
    peak = peak_of(scored)
    assert peak < counted + pieces + memory + (1 << 18), "and what Python takes"
    assert counted == scoring_bytes(100 * num_nodes, num_classes, many_labels=many)
    assert list(tmp_path.iterdir()) == []


def test_scores_that_come_back_changed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, targets, _ = drawn(0, 40, 3)
    rows = ScoresOnDisk(tmp_path, len(scores), IoStats(), RANKED_AT_ONCE)
    with closing(rows):
        measure = new_measure("roc_auc", rows)
        measure.add(scores, targets)
        assert rows._file is not None
        rows._file.finish()
        rows._file._file._sums[0] += np.uint64(1)
        with pytest.raises(ChecksumMismatchError, match="came back changed"):
            measure.value()
