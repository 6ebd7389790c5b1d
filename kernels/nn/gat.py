"""Graph attention (Veličković et al., ICLR 2018) over sampled neighbors, with the conventions of DGL's GATConv."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from kernels.mfg import Mfg
from kernels.nn.attention import Attention, attend
from kernels.nn.layers import Layer, NodeDegrees, Rows, glorot, head_rows
from kernels.nn.project import project_rows

Merge = Literal["concat", "mean"]

NEGATIVE_SLOPE = 0.2


class GatLayer(Layer):
    """`out_v = merge over heads h of sum over the sampled neighbors u of a_uvh W_h x_u + b_h`.

    `a_uvh` is the softmax over the edges into v of `leaky_relu(l_h . W_h x_u + r_h . W_h x_v)`. A node attends to
    itself only where the graph holds a self loop; one without edges gets its bias (and residual) alone.

    Parameters
    ----------
    in_dim, out_dim : int
    heads : int
    merge : "concat" or "mean"
        Heads of `out_dim / heads` values side by side (hidden layers), or the mean of heads of `out_dim` values.
    residual : bool
        Add the node's own row, through a matrix where the widths differ, before heads are merged.
    dropout : float
        Of attention weights, where `forward` is given a key.

    Raises
    ------
    ValueError
        If the heads do not divide the width.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        generator: torch.Generator,
        heads: int = 8,
        merge: Merge = "concat",
        residual: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if merge == "concat" and out_dim % heads:
            raise ValueError(f"heads must divide the width of the layer (got {heads} heads, width {out_dim})")
        self.in_dim, self.out_dim, self.heads, self.merge = in_dim, out_dim, heads, merge
        self.head_dim = out_dim // heads if merge == "concat" else out_dim
        self.dropout = dropout
        taken = heads * self.head_dim
        self.transform_first = True
        self.weight = glorot(taken, in_dim, generator)
        self.attention_source = glorot(heads, self.head_dim, generator)
        self.attention_own = glorot(heads, self.head_dim, generator)
        self.bias = nn.Parameter(torch.zeros(taken))
        self.residual = residual
        self.weight_residual = glorot(taken, in_dim, generator) if residual and in_dim != taken else None
        self.projected_dim = heads * (self.head_dim + 2) + (taken if residual else 0)

    def project(self, h_SF: Tensor) -> Tensor:
        """(num_rows, projected_dim): values and score terms of each head, beside what the node itself keeps."""
        z_SP = project_rows(h_SF, self._matrix())
        return torch.cat([z_SP, self._own(h_SF)], dim=1) if self.residual else z_SP

    def combine(self, mfg: Mfg, z_SP: Tensor, degrees_S: NodeDegrees | None = None) -> Tensor:
        """(num_dst, out_dim) output from `project`'s rows."""
        width = self.heads * (self.head_dim + 2)
        own_DT = z_SP[: mfg.num_dst, width:] if self.residual else None
        return self.merged(attend(mfg, z_SP[:, :width], self._asked(None)), own_DT)

    def forward(
        self,
        mfg: Mfg,
        h_SF: Rows,
        degrees_S: NodeDegrees | None = None,
        *,
        dropout_key: np.uint64 | None = None,
    ) -> Tensor:
        """(num_dst, out_dim) output; keeps only the destinations' own rows, and drops attention by the key."""
        out_DT = attend(mfg, project_rows(h_SF, self._matrix()), self._asked(dropout_key))
        return self.merged(out_DT, self._own(head_rows(h_SF, mfg.num_dst)) if self.residual else None)

    def _matrix(self) -> Tensor:
        """The weights, and below them what gives the score terms from the input: one product for all of them."""
        weight_HOF = self.weight.view(self.heads, self.head_dim, self.in_dim)
        terms = (torch.einsum("ho,hof->hf", a, weight_HOF) for a in (self.attention_source, self.attention_own))
        return torch.cat([self.weight, *terms])

    def _own(self, h_DF: Rows) -> Tensor:
        if self.weight_residual is not None:
            return project_rows(h_DF, self.weight_residual)
        rows = h_DF if isinstance(h_DF, Tensor) else h_DF.tensor()
        return rows.to(self.weight.dtype)

    def _asked(self, key: np.uint64 | None) -> Attention:
        return Attention(self.heads, self.head_dim, NEGATIVE_SLOPE, self.dropout, key)

    def merged(self, out_DT: Tensor, own_DT: Tensor | None) -> Tensor:
        """Output from the heads' sums and, with `residual`, the destinations' own rows."""
        out_DT = out_DT + self.bias if own_DT is None else out_DT + own_DT + self.bias
        return out_DT if self.merge == "concat" else out_DT.view(-1, self.heads, self.head_dim).mean(dim=1)
