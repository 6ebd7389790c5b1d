"""Layers whose source rows come in pieces: partial sums of a tile of destinations, and the output from them.

Equal to `Layer.combine` with all neighbors, but for the order of the sums.
"""

from __future__ import annotations

from typing import Protocol, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.streamed import add_rows, attend_rows_streamed
from kernels.nn.gat import NEGATIVE_SLOPE, GatLayer
from kernels.nn.gcn import GcnLayer, inverse_sqrt
from kernels.nn.layers import Layer, NodeDegrees
from kernels.nn.mlp import DenseLayer
from kernels.nn.model import edgeless_mfg
from kernels.nn.sage import SageLayer

F32Array = npt.NDArray[np.float32]
I32Array = npt.NDArray[np.int32]
I64Array = npt.NDArray[np.int64]
U16Array = npt.NDArray[np.uint16]
_NO_WEIGHT = np.empty(0, np.float32)


class Sums(Protocol):
    """Partial sums of a tile of destinations; their own rows are handed in some at a time."""

    def begin(self, first: int, own_DP: Tensor) -> None:
        """Note what the sums need of the (D, projected_dim) rows of destinations from `first` on, before any edge.

        Called only for layers of which `begins_with_own_rows` holds.
        """

    def add(self, slots: U16Array, targets: I32Array, rows: F32Array, degrees: NodeDegrees | None) -> None:
        """Add edges whose sources lie in one window of rows.

        Parameters
        ----------
        slots, targets : (E,) uint16, (E,) int32
            Row of each edge's source, and its destination in the tile.
        rows : (n, projected_dim) float32
            The window.
        degrees : NodeDegrees or None
            Whole-graph degrees of the window's nodes (GCN).
        """

    def finish(self, first: int, own_DP: Tensor, degree_D: I64Array, degrees_D: NodeDegrees | None) -> Tensor:
        """Output of the layer for some destinations, before what follows it.

        Parameters
        ----------
        first : int
            First of the destinations, as the tile counts them.
        own_DP : (D, projected_dim) float32 tensor
            Their projected rows.
        degree_D : (D,) int64
            Lengths of their lists.
        degrees_D : NodeDegrees or None
            Their degrees (GCN).

        Returns
        -------
        (D, out_dim) tensor
        """


def sums_of(layer: Layer, num_dst: int) -> Sums:
    """Begin the sums of a tile of `num_dst` destinations."""
    if isinstance(layer, SageLayer | GcnLayer):
        return ColumnSums(layer, num_dst)
    if isinstance(layer, GatLayer):
        return _GatSums(layer, num_dst)
    assert isinstance(layer, DenseLayer), f"no sums of {type(layer).__name__}"
    return _NoSums(layer)


def adds_columns_apart(layer: Layer) -> TypeGuard[SageLayer | GcnLayer]:
    """Whether `ColumnSums` may add up the columns of a layer some at a time."""
    return isinstance(layer, SageLayer | GcnLayer)


def begins_with_own_rows(layer: Layer) -> bool:
    """Whether the sums of a layer need the destinations' own rows before any edge, and so read them twice."""
    return isinstance(layer, GatLayer)


def sums_width(layer: Layer) -> int:
    """Floats of partial sums a destination."""
    if isinstance(layer, GatLayer):
        return layer.heads * (layer.head_dim + 3)
    return layer.out_dim if layer.transform_first else layer.in_dim


class ColumnSums:
    """Sums of GraphSAGE or GCN, each column of which is added up for itself.

    Parameters
    ----------
    layer : SageLayer or GcnLayer
    num_dst : int
    width : int, optional
        Columns to add up, the first of the rows that come; all of the layer's without it.
    """

    def __init__(self, layer: SageLayer | GcnLayer, num_dst: int, width: int | None = None) -> None:
        self._layer = layer
        self.sums_DW = np.zeros((num_dst, sums_width(layer) if width is None else width), np.float32)
        """(num_dst, width) sums so far."""

    def begin(self, first: int, own_DP: Tensor) -> None:
        """Own rows count at the end alone."""

    def add(self, slots: U16Array, targets: I32Array, rows: F32Array, degrees: NodeDegrees | None) -> None:
        """As `Sums.add`."""
        weight = _NO_WEIGHT
        if isinstance(self._layer, GcnLayer):
            assert degrees is not None, "checked where the inference was made"
            weight = inverse_sqrt(degrees.out_degree).astype(np.float32)
        width = self.sums_DW.shape[1]
        add_rows(slots, targets, rows.reshape(-1), rows.shape[1], width, weight, self.sums_DW.reshape(-1))

    def finish(self, first: int, own_DP: Tensor, degree_D: I64Array, degrees_D: NodeDegrees | None) -> Tensor:
        """As `Sums.finish`."""
        return finish_columns(self._layer, self.sums_DW[first : first + len(own_DP)], own_DP, degree_D, degrees_D)


def finish_columns(
    layer: SageLayer | GcnLayer, sums_DW: F32Array, own_DP: Tensor, degree_D: I64Array, degrees_D: NodeDegrees | None
) -> Tensor:
    """`Sums.finish` of some destinations, from the sums of all their columns."""
    sums = torch.from_numpy(sums_DW)
    if isinstance(layer, SageLayer):
        return _finish_sage(layer, sums, own_DP, degree_D)
    assert degrees_D is not None, "checked where the inference was made"
    in_D = torch.from_numpy(inverse_sqrt(degrees_D.in_degree).astype(np.float32))[:, None]
    out_D = torch.from_numpy(inverse_sqrt(degrees_D.out_degree).astype(np.float32))[:, None]
    mixed_DP = in_D * sums + (in_D * out_D) * own_DP
    return mixed_DP + layer.bias if layer.transform_first else functional.linear(mixed_DP, layer.weight, layer.bias)


def _finish_sage(layer: SageLayer, sums_DW: Tensor, own_DP: Tensor, degree_D: I64Array) -> Tensor:
    mean_DW = sums_DW / torch.from_numpy(np.maximum(degree_D, 1).astype(np.float32))[:, None]
    if layer.transform_first:
        return mean_DW + (own_DP[:, layer.out_dim :] + layer.bias)
    weight = torch.cat([layer.weight_neighbor, layer.weight_self], dim=1)
    return functional.linear(torch.cat([mean_DW, own_DP], dim=1), weight, layer.bias)


class _GatSums:
    def __init__(self, layer: GatLayer, num_dst: int) -> None:
        self._layer, self._taken = layer, layer.heads * layer.head_dim
        self._own_term = np.zeros((num_dst, layer.heads), np.float32)
        self._greatest = np.full((num_dst, layer.heads), -np.inf, np.float32)
        self._total = np.zeros((num_dst, layer.heads), np.float32)
        self._sums = np.zeros((num_dst, self._taken), np.float32)

    def begin(self, first: int, own_DP: Tensor) -> None:
        """Keep the destinations' terms of the scores."""
        heads = self._layer.heads
        self._own_term[first : first + len(own_DP)] = own_DP[:, self._taken + heads : self._taken + 2 * heads].numpy()

    def add(self, slots: U16Array, targets: I32Array, rows: F32Array, _: object) -> None:
        layer = self._layer
        width = layer.heads * (layer.head_dim + 2)
        used = rows if rows.shape[1] == width else np.ascontiguousarray(rows[:, :width])
        attend_rows_streamed(
            slots, targets, used.reshape(-1), layer.heads, layer.head_dim, np.float32(NEGATIVE_SLOPE),
            self._own_term.reshape(-1), self._greatest.reshape(-1), self._total.reshape(-1), self._sums.reshape(-1),
        )  # fmt: skip

    def finish(self, first: int, own_DP: Tensor, degree_D: I64Array, _: object) -> Tensor:
        layer, part = self._layer, slice(first, first + len(own_DP))
        total = torch.from_numpy(np.where(self._total[part] > 0, self._total[part], 1).astype(np.float32))
        out = torch.from_numpy(self._sums[part]).view(-1, layer.heads, layer.head_dim) / total[:, :, None]
        kept = own_DP[:, self._taken + 2 * layer.heads :] if layer.residual else None
        return layer.merged(out.reshape(len(out), -1), kept)


class _NoSums:
    def __init__(self, layer: DenseLayer) -> None:
        self._layer = layer

    def begin(self, *_: object) -> None:
        """Neighbors do not count."""

    def add(self, *_: object) -> None:
        """Neighbors do not count."""

    def finish(self, first: int, own_DP: Tensor, degree_D: I64Array, _: object) -> Tensor:
        return self._layer.combine(edgeless_mfg(len(own_DP)), own_DP, None)
