"""GraphSAGE with the mean aggregator (Hamilton, Ying and Leskovec, NeurIPS 2017)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from kernels.mfg import Mfg
from kernels.nn.aggregate import aggregate
from kernels.nn.layers import Layer, NodeDegrees, Rows, aggregate_rows, as_float, glorot, head_rows
from kernels.nn.project import project_rows


class SageLayer(Layer):
    """`out_v = W_self h_v + W_neighbor mean of h over the sampled neighbors + b`; the mean over nothing is zero."""

    def __init__(self, in_dim: int, out_dim: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.in_dim, self.out_dim = in_dim, out_dim
        self.transform_first = in_dim > out_dim
        self.projected_dim = 2 * out_dim if self.transform_first else in_dim
        self.weight_self = glorot(out_dim, in_dim, generator)
        self.weight_neighbor = glorot(out_dim, in_dim, generator)
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def project(self, h_SF: Tensor) -> Tensor:
        """(num_rows, 2 * out_dim): what neighbors take, beside what the node itself keeps."""
        if not self.transform_first:
            return as_float(h_SF)
        return project_rows(h_SF, torch.cat([self.weight_neighbor, self.weight_self]))

    def combine(self, mfg: Mfg, z_SP: Tensor, degrees_S: NodeDegrees | None = None) -> Tensor:
        """(num_dst, out_dim) output from `project`'s rows."""
        if not self.transform_first:
            return self._mixed(mfg, z_SP)
        given_SO, kept_DO = z_SP[:, : self.out_dim], z_SP[: mfg.num_dst, self.out_dim :]
        return aggregate(mfg, given_SO, reduce="mean") + (kept_DO + self.bias)

    def forward(
        self,
        mfg: Mfg,
        h_SF: Rows,
        degrees_S: NodeDegrees | None = None,
        *,
        dropout_key: np.uint64 | None = None,
    ) -> Tensor:
        """(num_dst, out_dim) output; projects for themselves only the destinations, unlike `combine(project(h))`."""
        if not self.projects_first(mfg, h_SF):
            return self._mixed(mfg, h_SF)
        given_SO = project_rows(h_SF, self.weight_neighbor)
        own_DO = project_rows(head_rows(h_SF, mfg.num_dst), self.weight_self)
        return aggregate(mfg, given_SO, reduce="mean") + (own_DO + self.bias)

    def _mixed(self, mfg: Mfg, h_SF: Rows) -> Tensor:
        """Neighbors' mean and own row side by side, so that one product serves both."""
        mixed_DM = aggregate_rows(mfg, h_SF, reduce="mean", beside=True)
        return functional.linear(mixed_DM, torch.cat([self.weight_neighbor, self.weight_self], dim=1), self.bias)
