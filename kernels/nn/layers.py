"""What the layers share: their contract, degrees of the whole graph, and initial matrices from a generator given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from kernels.cuda.device_rows import DeviceRows
from kernels.mfg import IdArray, Mfg
from kernels.nn.aggregate import Reduce, aggregate, aggregate_tiers
from kernels.tiered_rows import TieredRows

DegreeArray = npt.NDArray[np.int32] | npt.NDArray[np.int64]

Rows = Tensor | TieredRows | DeviceRows
"""Rows in memory, or where they lie in the tiers, of this machine or of a GPU (features, which no gradient reaches)."""

# Least nanoseconds on one core: a multiply-add of a matrix product, and an element of a row that an edge reads.
PRODUCT_NS, READ_NS = 0.025, 0.2


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
    bias: nn.Parameter
    """Added to each output row."""
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

    def forward(
        self,
        mfg: Mfg,
        h_SF: Rows,
        degrees_S: NodeDegrees | None = None,
        *,
        dropout_key: np.uint64 | None = None,
    ) -> Tensor:
        """(num_dst, out_dim) output.

        Parameters
        ----------
        mfg : Mfg
        h_SF : (num_src, in_dim) tensor of any numeric dtype, or TieredRows
        degrees_S : NodeDegrees, optional
            Whole-graph degrees of the sources; only GCN reads them.
        dropout_key : np.uint64, optional
            Turns dropout inside the layer on; only GAT has any.
        """
        raise NotImplementedError

    def projects_first(self, mfg: Mfg, h_SF: Rows) -> bool:
        """Whether `forward` projects before it aggregates: what costs less.

        The width decides where gradients flow back to the rows. Where none do, as from features, aggregating first
        saves the whole backward pass over the edges and the projection of all rows but the destinations', against a
        wider read.
        """
        if isinstance(h_SF, Tensor) and (h_SF.requires_grad or h_SF.dtype == torch.uint8):
            return self.transform_first
        if not isinstance(h_SF, Tensor) and h_SF.dtype == np.uint8:
            return self.transform_first
        product_ns = 2 * self.in_dim * self.out_dim * PRODUCT_NS
        projected = mfg.num_src * product_ns + 2 * mfg.num_edges * self.out_dim * READ_NS
        return projected < mfg.num_dst * product_ns + mfg.num_edges * self.in_dim * READ_NS


def aggregate_rows(
    mfg: Mfg,
    h_SF: Rows,
    *,
    weight_S: Tensor | None = None,
    scale_D: Tensor | None = None,
    reduce: Reduce = "sum",
    own_D: Tensor | None = None,
    beside: bool = False,
) -> Tensor:
    """`aggregate`, or `aggregate_tiers` where the rows lie in the tiers."""
    if isinstance(h_SF, Tensor):
        h_SF = as_float(h_SF)
        return aggregate(mfg, h_SF, weight_S=weight_S, scale_D=scale_D, reduce=reduce, own_D=own_D, beside=beside)
    return aggregate_tiers(mfg, h_SF, weight_S=weight_S, scale_D=scale_D, reduce=reduce, own_D=own_D, beside=beside)


def head_rows(h_SF: Rows, num_rows: int) -> Rows:
    """The first rows."""
    return h_SF[:num_rows] if isinstance(h_SF, Tensor) else h_SF.head(num_rows)


def in_memory(h: Rows) -> Tensor:
    """Float rows in memory, gathered where they lie in the tiers."""
    return as_float(h if isinstance(h, Tensor) else h.tensor())


def as_float(h: Tensor) -> Tensor:
    """Float32 rows (float64 stays)."""
    return h if h.dtype in (torch.float32, torch.float64) else h.to(torch.float32)


def glorot(out_dim: int, in_dim: int, generator: torch.Generator) -> nn.Parameter:
    """(out_dim, in_dim) matrix, uniform with Glorot's variance (Glorot and Bengio, AISTATS 2010)."""
    weight = torch.empty(out_dim, in_dim)
    nn.init.xavier_uniform_(weight, generator=generator)
    return nn.Parameter(weight)
