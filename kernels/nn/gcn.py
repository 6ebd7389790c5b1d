"""The graph convolution of Kipf and Welling (ICLR 2017) over sampled neighbors, normalised by whole-graph degrees."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from kernels.cuda.current import to_torch
from kernels.mfg import Mfg
from kernels.nn.layers import DegreeArray, Layer, NodeDegrees, Rows, aggregate_rows, as_float, glorot
from kernels.nn.project import project_rows

FactorArray = npt.NDArray[np.float64]
Norm = Literal["graph", "mfg"]


class GcnLayer(Layer):
    """`out_v = W (i_v (o_v h_v + (d_v / c_v) * sum over the sampled neighbors u of o_u h_u)) + b`.

    `o_u = 1 / sqrt(out_degree_u + 1)` and `i_v = 1 / sqrt(in_degree_v + 1)` count the self connection, `d_v` is the
    in-degree and `c_v` the number of sampled edges. With all neighbors it is the symmetrically normalised adjacency
    with self connections; with sampled ones it is an unbiased estimate of it.

    Parameters
    ----------
    in_dim, out_dim : int
    norm : "graph" or "mfg"
        Normalise as above, or by the degrees of the sampled hop itself and without self connections, as DGL's
        `GraphConv(norm="both")` does on a block.
    """

    def __init__(self, in_dim: int, out_dim: int, *, generator: torch.Generator, norm: Norm = "graph") -> None:
        super().__init__()
        self.in_dim, self.out_dim, self.norm = in_dim, out_dim, norm
        self.transform_first = in_dim > out_dim
        self.projected_dim = min(in_dim, out_dim)
        self.weight = glorot(out_dim, in_dim, generator)
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def project(self, h_SF: Tensor) -> Tensor:
        """(num_rows, out_dim) transformed rows, or the rows as they are."""
        return project_rows(h_SF, self.weight) if self.transform_first else as_float(h_SF)

    def combine(self, mfg: Mfg, z_SP: Tensor, degrees_S: NodeDegrees | None) -> Tensor:
        """(num_dst, out_dim) output from `project`'s rows."""
        return self._combined(mfg, z_SP, degrees_S, self.transform_first)

    def forward(
        self,
        mfg: Mfg,
        h_SF: Rows,
        degrees_S: NodeDegrees | None = None,
        *,
        dropout_key: np.uint64 | None = None,
    ) -> Tensor:
        """(num_dst, out_dim) output."""
        projects_first = self.projects_first(mfg, h_SF)
        rows = project_rows(h_SF, self.weight) if projects_first else h_SF
        return self._combined(mfg, rows, degrees_S, projects_first)

    def _combined(self, mfg: Mfg, rows: Rows, degrees_S: NodeDegrees | None, is_projected: bool) -> Tensor:
        factors = mfg_factors(mfg) if self.norm == "mfg" else graph_factors(mfg, degrees_S)
        weight_S, scale_D, own_D = (None if f is None else to_torch(f) for f in factors)
        mixed_DP = aggregate_rows(mfg, rows, weight_S=weight_S, scale_D=scale_D, own_D=own_D)
        return mixed_DP + self.bias if is_projected else functional.linear(mixed_DP, self.weight, self.bias)


def graph_factors(mfg: Mfg, degrees_S: NodeDegrees | None) -> tuple[FactorArray, FactorArray, FactorArray]:
    """Weights of sources, scales of sums and factors of own rows, from whole-graph degrees and self connections.

    Raises
    ------
    ValueError
        If the degrees are missing.
    """
    if degrees_S is None or len(degrees_S.in_degree) < mfg.num_src:
        raise ValueError(f"a GCN layer needs the whole-graph degrees of its {mfg.num_src} sources")
    num_dst = mfg.num_dst
    out_S = inverse_sqrt(degrees_S.out_degree[: mfg.num_src])
    in_D = inverse_sqrt(degrees_S.in_degree[:num_dst])
    return out_S, in_D * expansion(mfg, degrees_S.in_degree[:num_dst]), in_D * out_S[:num_dst]


def mfg_factors(mfg: Mfg) -> tuple[FactorArray, FactorArray, None]:
    """The same from the hop's own degrees, at least one, without self connections: DGL's `norm="both"` on a block."""
    out_degree_S = np.bincount(mfg.indices, minlength=mfg.num_src)
    return 1 / np.sqrt(np.maximum(out_degree_S, 1)), 1 / np.sqrt(np.maximum(np.diff(mfg.indptr), 1)), None


def inverse_sqrt(degree: DegreeArray) -> FactorArray:
    """`1 / sqrt(degree + 1)`: finite for a node without edges."""
    inverse: FactorArray = 1.0 / np.sqrt(degree + 1.0)
    return inverse


def expansion(mfg: Mfg, in_degree_D: DegreeArray) -> FactorArray:
    """In-degree over sampled edges: exactly one where all neighbors were taken, and one where there are none."""
    sampled_D = np.diff(mfg.indptr)
    factor_D: FactorArray = np.where(sampled_D > 0, in_degree_D / np.maximum(sampled_D, 1), 1.0)
    return factor_D
