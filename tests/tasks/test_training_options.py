"""Every option of training: it does what it says, and runs still repeat and resume bit by bit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.nn.model import ModelSpec, build_model
from storage.errors import InputError
from tasks.objective import build_objective
from tasks.optimizer import build_optimizer, learning_rate
from tasks.training_reports import EpochReport, TrainResult
from tasks.training_types import TrainOptions
from tests.tasks.test_trainer import assert_same_run
from tests.tasks.training_graphs import NUM_CLASSES, OPTIONS, Data, community_data, with_many_labels

DATA = community_data()
MANY = with_many_labels(DATA)
VARIANTS: dict[str, dict[str, Any]] = {
    "batch": {"norm": "batch"},
    "layer": {"norm": "layer"},
    "clip": {"clip_norm": 0.1},
    "cosine": {"schedule": "cosine", "warmup_steps": 3},
    "step": {"schedule": "step", "step_epochs": 2, "step_factor": 0.5},
    "bfloat16": {"precision": "bfloat16", "norm": "layer", "input_dropout": 0.0},
    "balanced": {"class_weights": "balanced"},
    "weights": {"class_weights": (1.0, 2.0, 0.5, 4.0)},
    "accumulate": {"accumulate": 3, "norm": "batch"},
    "macro_f1": {"metric": "macro_f1"},
    "roc_auc": {"metric": "roc_auc", "validation": "sampled"},
    "many labels": {"metric": "roc_auc", "class_weights": "balanced"},
}


def data_of(variant: str) -> Data:
    return MANY if variant == "many labels" else DATA


@pytest.fixture(scope="module")
def plain() -> TrainResult:
    return DATA.train(OPTIONS)


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_runs_repeat_and_resume_bit_by_bit(tmp_path: Path, variant: str, kind: Any) -> None:
    data, options = data_of(variant), replace(OPTIONS, kind=kind, **VARIANTS[variant])
    reference = data.train(replace(options, threads=1, superbatch=1))
    saved = replace(options, threads=3, superbatch=5, in_flight_bytes=1, checkpoint_path=tmp_path / "checkpoint.pt")

    def interrupt(report: EpochReport) -> None:
        if report.epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.train(saved, on_epoch=interrupt)
    resumed = data.train(saved)
    assert resumed.resumed_epochs == 2
    assert_same_run(resumed, reference)
    assert resumed.test_metrics == reference.test_metrics


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in ("macro_f1", "roc_auc", "many labels")])
def test_options_change_the_run(plain: TrainResult, variant: str) -> None:
    other = DATA.train(replace(OPTIONS, **VARIANTS[variant]))
    assert any(a.loss != b.loss for a, b in zip(other.history, plain.history, strict=True))
    assert other.history[-1].loss < 1.5 * plain.history[0].loss  # it still learns


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_bfloat16_goes_with_every_network(kind: Any, norm: Any) -> None:
    options = replace(OPTIONS, kind=kind, norm=norm, precision="bfloat16", input_dropout=0.0, epochs=6)
    history = DATA.train(options).history
    assert history[-1].loss < 0.8 * history[0].loss


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_normalised_networks_learn(norm: Any) -> None:
    result = DATA.train(replace(OPTIONS, norm=norm, epochs=10))
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.85


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_bfloat16_follows_float32(kind: Any) -> None:
    """It keeps 8 bits, so one product is right to 0.4 %: the losses of some epochs stay within 3 %."""
    a, b = (DATA.train(replace(OPTIONS, kind=kind, epochs=6, precision=p)) for p in ("float32", "bfloat16"))
    losses = np.array([[report.loss for report in result.history] for result in (a, b)])
    assert np.abs(losses[1] / losses[0] - 1).max() < 0.03
    assert (losses[0] != losses[1]).all()


def test_bfloat16_scores_like_float32() -> None:
    a, b = (DATA.train(replace(OPTIONS, epochs=10, precision=p)) for p in ("float32", "bfloat16"))
    assert a.test_accuracy is not None
    assert b.test_accuracy is not None
    assert abs(a.test_accuracy - b.test_accuracy) < 0.08
    assert all(tensor.dtype == torch.float32 for tensor in b.state_dict.values())


def norms_of_steps(options: TrainOptions, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Norm of the whole gradient that each step of a run takes."""
    norms, step = [], torch.optim.Adam.step

    def watched(self: torch.optim.Adam) -> None:
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        norms.append(math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients)))
        step(self)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", watched)
        DATA.train(options)
    return norms


@pytest.mark.parametrize("accumulate", [1, 3])
def test_clipping_bounds_each_step(accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is clipped is the sum of what was accumulated, once, and not its parts."""
    options = replace(OPTIONS, accumulate=accumulate)
    free = norms_of_steps(options, monkeypatch)
    clipped = norms_of_steps(replace(options, clip_norm=0.1), monkeypatch)
    assert len(clipped) == len(free)
    assert min(free[:5]) > 0.2
    assert max(clipped) < 0.1 + 1e-6
    assert clipped[:5] == pytest.approx([0.1] * 5, rel=1e-4)


class TestLearningRate:
    def test_constant(self) -> None:
        assert [learning_rate(OPTIONS, step, 10) for step in (0, 5, 39)] == [OPTIONS.learning_rate] * 3

    def test_warm_up_rises_evenly(self) -> None:
        options = replace(OPTIONS, learning_rate=1.0, warmup_steps=4)
        assert [learning_rate(options, step, 10) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])

    def test_cosine_is_torchs(self) -> None:
        options = replace(OPTIONS, learning_rate=0.3, schedule="cosine", epochs=4)
        model = build_model(ModelSpec("mlp", 5, 8, 3, 2), seed=0)
        optimizer = build_optimizer(model, options)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4 * 10)
        for step in range(40):
            assert learning_rate(options, step, 10) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-9)
            optimizer.step()
            scheduler.step()
        assert learning_rate(options, 40, 10) == pytest.approx(0.0, abs=1e-12)

    def test_step_falls_by_epochs(self) -> None:
        options = replace(OPTIONS, learning_rate=1.0, schedule="step", step_epochs=2, step_factor=0.5)
        rates = [learning_rate(options, epoch * 7 + 3, 7) for epoch in range(5)]
        assert rates == pytest.approx([1.0, 1.0, 0.5, 0.5, 0.25])

    def test_reports_tell_it(self) -> None:
        history = DATA.train(replace(OPTIONS, schedule="step", step_epochs=1, step_factor=0.5)).history
        assert [report.learning_rate for report in history] == pytest.approx([0.02, 0.01, 0.005, 0.0025])


class TestObjective:
    nodes = np.arange(40)
    logits = torch.randn(40, NUM_CLASSES, generator=torch.Generator().manual_seed(0))

    def test_weighted_mean_is_torchs(self) -> None:
        labels = np.arange(40) % NUM_CLASSES
        weights = (1.0, 2.0, 0.5, 4.0)
        objective = build_objective(labels, self.nodes, NUM_CLASSES, weights)
        found = objective.loss_sum(self.logits, self.nodes) / objective.weight(self.nodes)
        expected = torch.nn.functional.cross_entropy(self.logits, torch.from_numpy(labels), torch.tensor(weights))
        torch.testing.assert_close(found, expected)

    def test_balanced_classes_count_alike(self) -> None:
        labels = np.repeat(np.arange(NUM_CLASSES), [4, 6, 10, 20])
        objective = build_objective(labels, self.nodes, NUM_CLASSES, "balanced")
        shares = [objective.weight(self.nodes[labels == c]) for c in range(NUM_CLASSES)]
        assert shares == pytest.approx([10.0] * NUM_CLASSES)

    def test_unknown_labels_take_no_part(self) -> None:
        labels = np.random.default_rng(0).integers(0, 2, (40, NUM_CLASSES)).astype(np.int8)
        hidden = labels.copy()
        hidden[::2, 1] = -1
        objective = build_objective(hidden, self.nodes, NUM_CLASSES)
        known = torch.from_numpy(hidden >= 0)
        expected = torch.nn.functional.binary_cross_entropy_with_logits(
            self.logits[known], torch.from_numpy(labels)[known].float()
        )
        found = objective.loss_sum(self.logits, self.nodes) / objective.weight(self.nodes)
        torch.testing.assert_close(found, expected)
        loss_sum, num_losses = objective.losses(self.logits, objective.targets(self.nodes))
        assert num_losses == int(known.sum())
        assert loss_sum / num_losses == pytest.approx(float(expected))

    def test_balanced_labels_weigh_presence(self) -> None:
        labels = np.zeros((40, 1), np.int8)
        labels[:10] = 1
        objective = build_objective(labels, self.nodes, 1, "balanced")
        present = objective.loss_sum(torch.zeros(10, 1), self.nodes[:10])
        absent = objective.loss_sum(torch.zeros(30, 1), self.nodes[10:])
        torch.testing.assert_close(present, absent)

    def test_there_is_one_weight_a_class(self) -> None:
        with pytest.raises(InputError, match="class_weights must hold 4 numbers"):
            DATA.train(replace(OPTIONS, class_weights=(1.0, 2.0)))


def test_many_labels_are_learned() -> None:
    result = MANY.train(replace(OPTIONS, epochs=20, metric="macro_f1"))
    assert set(result.test_metrics) == {"accuracy", "macro_f1", "roc_auc"}
    assert result.test_metrics["roc_auc"] is not None
    assert result.test_metrics["roc_auc"] > 0.9
    assert result.test_accuracy == result.test_metrics["accuracy"]


def test_the_metric_chooses_the_epoch() -> None:
    result = DATA.train(replace(OPTIONS, epochs=12, learning_rate=0.05, metric="macro_f1"))
    key = [(r.valid_metric, -(r.valid_loss or 0.0)) for r in result.history]
    assert key[result.best_epoch] == max(key)
    assert result.valid_metric == result.history[result.best_epoch].valid_metric
    assert any(report.valid_metric != report.valid_accuracy for report in result.history)


@pytest.mark.parametrize("metric", ["macro_f1", "roc_auc"])
def test_the_metric_ends_training(metric: Any) -> None:
    """Patience runs out by the metric chosen, where it would not yet by accuracy."""
    options = replace(OPTIONS, epochs=40, patience=2, learning_rate=0.05, seed=5, compute_threads=1)
    result, by_accuracy = DATA.train(replace(options, metric=metric)), DATA.train(options)
    key = [(r.valid_metric, -(r.valid_loss or 0.0)) for r in result.history]
    assert result.best_epoch == key.index(max(key)) == len(key) - 1 - 2
    assert len(key) != len(by_accuracy.history)


def test_accumulation_equals_one_large_batch() -> None:
    """Without dropout and sampling, the gradient of a step does not depend on how its nodes are split."""
    still = replace(OPTIONS, fanouts=(-1, -1), dropout=0.0, input_dropout=0.0, class_weights="balanced")
    whole = DATA.train(replace(still, batch_size=48))
    split = DATA.train(replace(still, batch_size=16, accumulate=3))
    for a, b in zip(whole.history, split.history, strict=True):
        assert a.loss == pytest.approx(b.loss, abs=1e-5)
    apart = DATA.train(replace(still, batch_size=16))
    assert abs(apart.history[-1].loss - whole.history[-1].loss) > 1e-3


def test_undefined_metric_is_an_input_error() -> None:
    one = np.flatnonzero(DATA.labels == 0)[:5]
    single = replace(DATA, splits=replace(DATA.splits, valid=one))
    with pytest.raises(InputError, match="'roc_auc' is undefined on the validation nodes"):
        single.train(replace(OPTIONS, metric="roc_auc"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "f1"}, "metric must be 'accuracy' or 'macro_f1' or 'roc_auc'"),
        ({"schedule": "linear"}, "schedule must be"),
        ({"precision": "float16"}, "precision must be"),
        ({"accumulate": 0}, "accumulate must be >= 1"),
        ({"warmup_steps": -1}, "warmup_steps must be >= 0"),
        ({"step_factor": 0.0}, "step_factor"),
        ({"clip_norm": 0.0}, "clip_norm must be > 0"),
        ({"class_weights": (1.0, 0.0)}, "class_weights must be"),
        ({"in_flight_bytes": 0}, "in_flight_bytes must be >= 1"),
    ],
)
def test_options_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(OPTIONS, **change)


def test_more_workers_than_processes_are_refused() -> None:
    with pytest.raises(InputError, match="workers is 2, but 1 processes train together"):
        DATA.train(replace(OPTIONS, workers=2))
