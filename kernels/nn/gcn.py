"""The graph convolution of Kipf and Welling (ICLR 2017) over sampled neighbors, normalised by whole-graph degrees."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from kernels.mfg import Mfg
from kernels.nn.aggregate import aggregate
from kernels.nn.layers import DegreeArray, Layer, NodeDegrees, as_float, glorot
from kernels.nn.multi_hot import linear_rows

FactorArray = npt.NDArray[np.float64]


class GcnLayer(Layer):
    """`out_v = W (i_v (o_v h_v + (d_v / c_v) * sum over the sampled neighbors u of o_u h_u)) + b`.

    `o_u = 1 / sqrt(out_degree_u + 1)` and `i_v = 1 / sqrt(in_degree_v + 1)` count the self connection, `d_v` is the
    in-degree and `c_v` the number of sampled edges. With all neighbors it is the symmetrically normalised adjacency
    with self connections; with sampled ones it is an unbiased estimate of it.
    """

    def __init__(self, in_dim: int, out_dim: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.in_dim, self.out_dim = in_dim, out_dim
        self.transform_first = in_dim > out_dim
        self.projected_dim = min(in_dim, out_dim)
        self.weight = glorot(out_dim, in_dim, generator)
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def project(self, h_SF: Tensor) -> Tensor:
        """(num_rows, out_dim) transformed rows, or the rows as they are."""
        return linear_rows(h_SF, self.weight) if self.transform_first else as_float(h_SF)

    def combine(self, mfg: Mfg, z_SP: Tensor, degrees_S: NodeDegrees | None) -> Tensor:
        """(num_dst, out_dim) output from `project`'s rows."""
        if degrees_S is None or len(degrees_S.in_degree) < mfg.num_src:
            raise ValueError(f"a GCN layer needs the whole-graph degrees of its {mfg.num_src} sources")
        num_dst = mfg.num_dst
        out_S = inverse_sqrt(degrees_S.out_degree[: mfg.num_src])
        in_D = inverse_sqrt(degrees_S.in_degree[:num_dst])
        scale_D = in_D * expansion(mfg, degrees_S.in_degree[:num_dst])
        neighbors_DP = aggregate(mfg, z_SP, weight_S=torch.from_numpy(out_S), scale_D=torch.from_numpy(scale_D))
        own_D1 = torch.from_numpy(in_D * out_S[:num_dst]).to(z_SP.dtype).unsqueeze(1)
        mixed_DP = torch.addcmul(neighbors_DP, z_SP[:num_dst], own_D1)
        return mixed_DP + self.bias if self.transform_first else functional.linear(mixed_DP, self.weight, self.bias)


def inverse_sqrt(degree: DegreeArray) -> FactorArray:
    """`1 / sqrt(degree + 1)`: finite for a node without edges."""
    inverse: FactorArray = 1.0 / np.sqrt(degree + 1.0)
    return inverse


def expansion(mfg: Mfg, in_degree_D: DegreeArray) -> FactorArray:
    """In-degree over sampled edges: exactly one where all neighbors were taken, and one where there are none."""
    sampled_D = np.diff(mfg.indptr)
    factor_D: FactorArray = np.where(sampled_D > 0, in_degree_D / np.maximum(sampled_D, 1), 1.0)
    return factor_D
