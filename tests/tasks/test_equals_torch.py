"""Training equals a plain loop over torch's own optimizer, schedulers, clipping and losses, option by option."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from kernels.nn.model import build_model
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from tasks.training_types import TrainOptions
from tests.tasks.training_graphs import NUM_CLASSES, OPTIONS, Data, community_data, with_many_labels

DATA = community_data()
MANY = with_many_labels(DATA)
STILL = replace(
    OPTIONS, fanouts=(-1, -1), dropout=0.0, input_dropout=0.0, batch_size=1000, epochs=8, learning_rate=0.05
)
"""One step an epoch, over all neighbors, nothing drawn."""
WEIGHTS = (1.0, 2.0, 0.5, 4.0)
Schedule = Callable[[torch.optim.Optimizer], Any]
CASES: dict[str, tuple[dict[str, Any], Schedule | None]] = {
    "plain": ({}, None),
    "gcn": ({"kind": "gcn"}, None),
    "gat": ({"kind": "gat", "heads": 4}, None),
    "layer norm": ({"norm": "layer"}, None),
    "weight decay": ({"weight_decay": 0.05}, None),
    "clip": ({"clip_norm": 0.05}, None),
    "step": (
        {"schedule": "step", "step_epochs": 3, "step_factor": 0.2},
        lambda optimizer: lr_scheduler.StepLR(optimizer, 3, 0.2),
    ),
    "cosine": ({"schedule": "cosine"}, lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, STILL.epochs)),
    "warm-up": ({"warmup_steps": 4}, lambda optimizer: lr_scheduler.LinearLR(optimizer, 1 / 5, 1.0, 4)),
    "warm-up, cosine": (
        {"warmup_steps": 3, "schedule": "cosine"},
        lambda optimizer: lr_scheduler.SequentialLR(
            optimizer,
            [
                lr_scheduler.LinearLR(optimizer, 1 / 4, 1.0, 3),
                lr_scheduler.CosineAnnealingLR(optimizer, STILL.epochs - 3),
            ],
            [3],
        ),
    ),
    "class weights": ({"class_weights": WEIGHTS}, None),
    "many labels": ({"metric": "macro_f1"}, None),
    "label weights": ({"class_weights": WEIGHTS, "metric": "macro_f1"}, None),
}


def torchs(data: Data, options: TrainOptions, schedule: Schedule | None) -> list[float]:
    """Losses before each step of a plain loop."""
    model = build_model(options.model_spec(data.rows.shape[1], NUM_CLASSES), seed=options.seed)
    nodes = data.splits.labelled(data.labels).train
    sampler = NeighborSampler(data.topology, options.fanouts, seed=0, purpose=Purpose.TRAIN)
    sample = sampler.sample([nodes], epoch=0, first_batch=0).samples[0]
    x, degrees = torch.from_numpy(data.rows[sample.input_nodes]), data.degrees.take(sample.input_nodes)
    loss_of = criterion(torch.from_numpy(data.labels[nodes]), options)
    biases = [p for name, p in model.named_parameters() if "bias" in name or "norms" in name]
    others = [p for p in model.parameters() if all(p is not bias for bias in biases)]
    groups: list[dict[str, Any]] = [{"params": others, "weight_decay": options.weight_decay}, {"params": biases}]
    optimizer, losses = torch.optim.Adam(groups, lr=options.learning_rate), []
    scheduler = None if schedule is None else schedule(optimizer)
    for _ in range(options.epochs):
        optimizer.zero_grad()
        loss = loss_of(model(sample.hops, x, degrees))
        loss.backward()
        if options.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), options.clip_norm)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(float(loss.detach()))
    return losses


def criterion(labels: Tensor, options: TrainOptions) -> Callable[[Tensor], Tensor]:
    weights = torch.tensor(options.class_weights) if options.class_weights != "none" else None
    if labels.ndim == 1:
        return lambda logits: nn.CrossEntropyLoss(weights)(logits, labels)
    known = labels >= 0
    spread = None if weights is None else weights.expand(labels.shape)[known]
    return lambda logits: nn.BCEWithLogitsLoss(pos_weight=spread)(logits[known], labels[known].float())


# The scheduler of torch that is made of others steps them in a way that torch itself warns of.
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_a_plain_loop(case: str) -> None:
    changes, schedule = CASES[case]
    data, options = MANY if "label" in case else DATA, replace(STILL, **changes)
    expected = torchs(data, options, schedule)
    assert [report.loss for report in data.train(options).history] == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("plain", "many labels")])
def test_without_the_option_the_losses_are_others(case: str) -> None:
    """The comparison above can fail."""
    changes, schedule = CASES[case]
    data = MANY if "label" in case else DATA
    plain = replace(STILL, metric="macro_f1") if data is MANY else STILL
    expected = torchs(data, replace(STILL, **changes), schedule)
    found = np.array([report.loss for report in data.train(plain).history])
    assert np.abs(found / expected - 1).max() > 2e-3
