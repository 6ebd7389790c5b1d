"""What the layers share: their contract, degrees of the whole graph, and initial matrices from a generator given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from kernels.mfg import IdArray, Mfg

DegreeArray = npt.NDArray[np.int32] | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NodeDegrees:
    """Degrees in the whole graph, of all nodes or of some."""

    in_degree: DegreeArray
    """(n,) length of each node's adjacency list."""
    out_degree: DegreeArray
    """(n,) how many adjacency lists name each node, multi-edges counted."""

    def take(self, ids: IdArray) -> NodeDegrees:
        """Degrees of some nodes, in the order of `ids`."""
        return NodeDegrees(self.in_degree[ids], self.out_degree[ids])


class Layer(nn.Module):
    """One layer over one hop, in two steps: `project` rows one by one, then `combine` each destination's neighbors.

    Exact inference runs the two apart, so that each row is projected once for all destinations that need it.
    """

    in_dim: int
    out_dim: int
    projected_dim: int
    """Width of the rows that `project` returns."""
    transform_first: bool
    """Whether `project` multiplies by the weights: true where that makes the rows to be aggregated narrower."""

    def project(self, h_SF: Tensor) -> Tensor:
        """Turn (num_rows, in_dim) rows of any numeric dtype into the float rows that `combine` reads."""
        raise NotImplementedError

    def combine(self, mfg: Mfg, z_SP: Tensor, degrees_S: NodeDegrees | None) -> Tensor:
        """(num_dst, out_dim) output from the projected rows of the sources."""
        raise NotImplementedError

    def forward(self, mfg: Mfg, h_SF: Tensor, degrees_S: NodeDegrees | None = None) -> Tensor:
        """(num_dst, out_dim) output.

        Parameters
        ----------
        mfg : Mfg
        h_SF : (num_src, in_dim) tensor of any numeric dtype
        degrees_S : NodeDegrees, optional
            Whole-graph degrees of the sources; only GCN reads them.
        """
        return self.combine(mfg, self.project(h_SF), degrees_S)


def as_float(h: Tensor) -> Tensor:
    """Float32 rows (float64 stays)."""
    return h if h.dtype in (torch.float32, torch.float64) else h.to(torch.float32)


def glorot(out_dim: int, in_dim: int, generator: torch.Generator) -> nn.Parameter:
    """(out_dim, in_dim) matrix, uniform with Glorot's variance (Glorot and Bengio, AISTATS 2010)."""
    weight = torch.empty(out_dim, in_dim)
    nn.init.xavier_uniform_(weight, generator=generator)
    return nn.Parameter(weight)
