"""The layer of the baseline that ignores the graph."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from kernels.mfg import Mfg
from kernels.nn.layers import Layer, NodeDegrees, Rows, glorot, head_rows
from kernels.nn.project import project_rows


class DenseLayer(Layer):
    """`out_v = W h_v + b`: the destinations' own rows and nothing else."""

    def __init__(self, in_dim: int, out_dim: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.in_dim, self.out_dim, self.projected_dim = in_dim, out_dim, out_dim
        self.transform_first = True
        self.weight = glorot(out_dim, in_dim, generator)
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def project(self, h_SF: Tensor) -> Tensor:
        """(num_rows, out_dim) transformed rows."""
        return project_rows(h_SF, self.weight)

    def combine(self, mfg: Mfg, z_SP: Tensor, degrees_S: NodeDegrees | None = None) -> Tensor:
        """(num_dst, out_dim) output."""
        return z_SP[: mfg.num_dst] + self.bias

    def forward(
        self,
        mfg: Mfg,
        h_SF: Rows,
        degrees_S: NodeDegrees | None = None,
        *,
        dropout_key: np.uint64 | None = None,
    ) -> Tensor:
        """(num_dst, out_dim) output."""
        return project_rows(head_rows(h_SF, mfg.num_dst), self.weight) + self.bias
