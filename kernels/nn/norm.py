"""Normalisation between layers; running statistics are applied by whoever steps, so that workers agree on them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Norm = Literal["none", "batch", "layer"]

_MOMENTUM = 0.1


class BatchNorm(nn.Module):
    """Batch normalisation (Ioffe and Szegedy, ICML 2015) whose running statistics wait for `apply`.

    In training, rows are normalised by the mean and variance of their mini-batch, which are left in `observed`; in
    evaluation, and for a mini-batch of fewer than two rows, by the running statistics.

    Parameters
    ----------
    width : int
        Columns of the rows.
    """

    running_mean: Tensor
    running_var: Tensor
    observed: Tensor
    """(2, width) mean and unbiased variance of the last mini-batch in training, NaN where it had none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.register_buffer("observed", torch.full((2, width), torch.nan), persistent=False)

    def forward(self, h_nF: Tensor) -> Tensor:
        """(n, width) normalised rows."""
        if self.training and len(h_nF) > 1:
            with torch.no_grad():
                var, mean = torch.var_mean(h_nF, dim=0)
                self.observed = torch.stack([mean, var])
            return functional.batch_norm(h_nF, None, None, self.weight, self.bias, training=True)
        self.observed = h_nF.new_full(self.observed.shape, torch.nan)
        return functional.batch_norm(h_nF, self.running_mean, self.running_var, self.weight, self.bias)

    def apply_observed(self, observed_2F: Tensor) -> None:
        """Move the running statistics towards those of one mini-batch; NaN leaves them as they are."""
        # Not decided on the host, which would wait for a GPU.
        is_none = torch.isnan(observed_2F).any()
        for running, observed in zip((self.running_mean, self.running_var), observed_2F, strict=True):
            running.copy_(torch.where(is_none, running, running.lerp(observed, _MOMENTUM)))


def build_norm(kind: Norm, width: int) -> nn.Module:
    """Make one normalisation of rows of a width; `none` passes them on.

    Returns
    -------
    nn.Module
        Without random initial weights.
    """
    if kind == "batch":
        return BatchNorm(width)
    return nn.LayerNorm(width) if kind == "layer" else nn.Identity()
