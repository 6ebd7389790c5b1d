"""Layers whose source rows come in pieces: partial sums of a tile of destinations, and the output from them.

Equal to `Layer.combine` with all neighbors, but for the order of the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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


class StripSums(Sums, Protocol):
    """Partial sums of some units, whose source rows are strips; `begin` takes strips too."""

    def left(self) -> F32Array:
        """(num_dst, units * waiting): what `finish_strips` needs of all edges."""


def strip_sums_of(layer: Layer, num_dst: int, units: int) -> StripSums:
    """Begin the sums of so many units of a tile."""
    if isinstance(layer, GatLayer):
        return _HeadSums(layer, num_dst, units)
    assert isinstance(layer, SageLayer | GcnLayer), f"{type(layer).__name__} has no units"
    return _ColumnSums(layer, num_dst, units)


def finish_strips(
    layer: Layer, left_DW: F32Array, own_DP: Tensor, degree_D: I64Array, degrees_D: NodeDegrees | None
) -> Tensor:
    """`Sums.finish` of some destinations, from what is left of all units; own rows are in the order of strips."""
    if isinstance(layer, GatLayer):
        return _finish_heads(layer, left_DW, own_DP)
    assert isinstance(layer, SageLayer | GcnLayer), f"{type(layer).__name__} has no units"
    return _finish_columns(layer, left_DW, own_DP, degree_D, degrees_D)


def sums_of(layer: Layer, num_dst: int) -> Sums:
    """Begin the sums of a tile of `num_dst` destinations."""
    if isinstance(layer, SageLayer | GcnLayer):
        return _ColumnSums(layer, num_dst, sums_width(layer))
    if isinstance(layer, GatLayer):
        return _HeadSums(layer, num_dst, layer.heads)
    assert isinstance(layer, DenseLayer), f"no sums of {type(layer).__name__}"
    return _NoSums(layer)


@dataclass(frozen=True, slots=True)
class Units:
    """Parts of a layer's sums that may be added up one after the other: columns (GraphSAGE, GCN) or heads (GAT)."""

    count: int
    """How many there are."""
    source: int = 1
    """Values of a source row that one takes."""
    sums: int = 1
    """Floats of partial sums a destination."""
    waiting: int = 1
    """Floats a destination that are left of them when all edges were added."""


def units_of(layer: Layer) -> Units | None:
    """The units of a layer; None where it has no sums."""
    if isinstance(layer, GatLayer):
        return Units(layer.heads, layer.head_dim + 2, layer.head_dim + 3, layer.head_dim)
    return Units(sums_width(layer)) if isinstance(layer, SageLayer | GcnLayer) else None


def in_strips(layer: Layer, projected_SP: Tensor, strip_units: int) -> Tensor:
    """Put the columns of projected rows in the order of strips of so many units, what the node itself keeps last.

    Parameters
    ----------
    layer : Layer
    projected_SP : (n, projected_dim) tensor
    strip_units : int
    """
    if not isinstance(layer, GatLayer):
        return projected_SP
    heads, taken = np.arange(layer.heads), layer.heads * layer.head_dim
    columns = list[I64Array]()
    for first in range(0, layer.heads, strip_units):
        some = heads[first : first + strip_units]
        values = (some[:, None] * layer.head_dim + np.arange(layer.head_dim)).reshape(-1)
        columns += [values, taken + some, taken + layer.heads + some]
    order = np.concatenate([*columns, np.arange(taken + 2 * layer.heads, projected_SP.shape[1])])
    return projected_SP[:, torch.from_numpy(order)]


def begins_with_own_rows(layer: Layer) -> bool:
    """Whether the sums of a layer need the destinations' own rows before any edge, and so read them twice."""
    return isinstance(layer, GatLayer)


def sums_width(layer: Layer) -> int:
    """Floats of partial sums a destination."""
    if isinstance(layer, GatLayer):
        return layer.heads * (layer.head_dim + 3)
    return layer.out_dim if layer.transform_first else layer.in_dim


class _ColumnSums:
    """GraphSAGE or GCN: the first columns of the rows that come."""

    def __init__(self, layer: SageLayer | GcnLayer, num_dst: int, width: int) -> None:
        self._layer, self._width = layer, width
        self._sums_DW = np.zeros((num_dst, width), np.float32)

    def begin(self, first: int, own_DP: Tensor) -> None:
        """Own rows count at the end alone."""

    def add(self, slots: U16Array, targets: I32Array, rows: F32Array, degrees: NodeDegrees | None) -> None:
        weight = _NO_WEIGHT
        if isinstance(self._layer, GcnLayer):
            assert degrees is not None, "checked where the inference was made"
            weight = inverse_sqrt(degrees.out_degree).astype(np.float32)
        add_rows(slots, targets, rows.reshape(-1), rows.shape[1], self._width, weight, self._sums_DW.reshape(-1))

    def finish(self, first: int, own_DP: Tensor, degree_D: I64Array, degrees_D: NodeDegrees | None) -> Tensor:
        return _finish_columns(self._layer, self._sums_DW[first : first + len(own_DP)], own_DP, degree_D, degrees_D)

    def left(self) -> F32Array:
        return self._sums_DW


def _finish_columns(
    layer: SageLayer | GcnLayer, sums_DW: F32Array, own_DP: Tensor, degree_D: I64Array, degrees_D: NodeDegrees | None
) -> Tensor:
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


class _HeadSums:
    """GAT: the first heads of the rows that come, which begin with their values, source and destination terms."""

    def __init__(self, layer: GatLayer, num_dst: int, heads: int) -> None:
        self._layer, self._heads, self._taken = layer, heads, heads * layer.head_dim
        self._own_term = np.zeros((num_dst, heads), np.float32)
        self._greatest = np.full((num_dst, heads), -np.inf, np.float32)
        self._total = np.zeros((num_dst, heads), np.float32)
        self._sums = np.zeros((num_dst, self._taken), np.float32)

    def begin(self, first: int, own_DP: Tensor) -> None:
        """Keep the destinations' terms of the scores."""
        terms = slice(self._taken + self._heads, self._taken + 2 * self._heads)
        self._own_term[first : first + len(own_DP)] = own_DP[:, terms].numpy()

    def add(self, slots: U16Array, targets: I32Array, rows: F32Array, _: object) -> None:
        width = self._taken + 2 * self._heads
        used = rows if rows.shape[1] == width else np.ascontiguousarray(rows[:, :width])
        attend_rows_streamed(
            slots, targets, used.reshape(-1), self._heads, self._layer.head_dim, np.float32(NEGATIVE_SLOPE),
            self._own_term.reshape(-1), self._greatest.reshape(-1), self._total.reshape(-1), self._sums.reshape(-1),
        )  # fmt: skip

    def finish(self, first: int, own_DP: Tensor, degree_D: I64Array, _: object) -> Tensor:
        return _finish_heads(self._layer, self._means(slice(first, first + len(own_DP))), own_DP)

    def left(self) -> F32Array:
        return self._means(slice(None))

    def _means(self, part: slice) -> F32Array:
        """Sums by heads over the sums of their weights, in place: each destination is asked for once."""
        sums = self._sums[part]
        heads = sums.reshape(len(sums), self._heads, self._layer.head_dim)
        heads /= np.where(self._total[part] > 0, self._total[part], np.float32(1))[:, :, None]
        return sums


def _finish_heads(layer: GatLayer, means_DT: F32Array, own_DP: Tensor) -> Tensor:
    kept = own_DP[:, layer.heads * (layer.head_dim + 2) :] if layer.residual else None
    return layer.merged(torch.from_numpy(means_DT), kept)


class _NoSums:
    def __init__(self, layer: DenseLayer) -> None:
        self._layer = layer

    def begin(self, *_: object) -> None:
        """Neighbors do not count."""

    def add(self, *_: object) -> None:
        """Neighbors do not count."""

    def finish(self, first: int, own_DP: Tensor, degree_D: I64Array, _: object) -> Tensor:
        return self._layer.combine(edgeless_mfg(len(own_DP)), own_DP, None)
