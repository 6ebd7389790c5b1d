"""The layer of the baseline that ignores the graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from kernels.mfg import Mfg
from kernels.nn.layers import Layer, NodeDegrees, glorot


class DenseLayer(Layer):
    """`out_v = W h_v + b`: the destinations' own rows and nothing else."""

    def __init__(self, in_dim: int, out_dim: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.in_dim, self.out_dim, self.projected_dim = in_dim, out_dim, in_dim
        self.transform_first = False
        self.weight = glorot(out_dim, in_dim, generator)
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def project(self, h_SF: Tensor) -> Tensor:
        """The rows as they are."""
        return h_SF

    def combine(self, mfg: Mfg, z_SP: Tensor, degrees_S: NodeDegrees | None = None) -> Tensor:
        """(num_dst, out_dim) output."""
        return functional.linear(z_SP[: mfg.num_dst], self.weight, self.bias)
