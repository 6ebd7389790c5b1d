"""The optimizer and its learning rate: a pure function of the step, so that a resumed run needs no scheduler state."""

from __future__ import annotations

import math

import torch

from kernels.nn.model import GnnModel
from tasks.training_types import TrainOptions


def build_optimizer(model: GnnModel, options: TrainOptions) -> torch.optim.Adam:
    """Adam, with weight decay on the matrices."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": options.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.Adam(groups, lr=options.learning_rate)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def learning_rate(options: TrainOptions, step: int, steps_per_epoch: int) -> float:
    """Rate of a step, counted from 0 over all epochs.

    Warm-up rises in equal steps to the full rate, which the step after it has; `cosine` then falls along half a cosine
    towards 0 after the last epoch (Loshchilov and Hutter, ICLR 2017); `step` multiplies by `step_factor` every
    `step_epochs` epochs.
    """
    if step < options.warmup_steps:
        return options.learning_rate * (step + 1) / (options.warmup_steps + 1)
    if options.schedule == "cosine":
        left = max(1, options.epochs * steps_per_epoch - options.warmup_steps)
        return options.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - options.warmup_steps) / left))
    if options.schedule == "step":
        return options.learning_rate * float(options.step_factor ** (step // steps_per_epoch // options.step_epochs))
    return options.learning_rate
