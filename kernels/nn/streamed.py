"""Layers whose source rows come in pieces: partial sums of a tile of destinations, and the output from them.

Equal to `Layer.combine` with all neighbors, but for the order of the sums.
"""

from __future__ import annotations

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
_NO_WEIGHT = np.empty(0, np.float32)


class Sums(Protocol):
    """Partial sums of a tile of destinations."""

    def add(
        self,
        slots: npt.NDArray[np.int64],
        targets: npt.NDArray[np.int32],
        first_slot: int,
        rows: F32Array,
        degrees: NodeDegrees | None,
    ) -> None:
        """Add edges whose sources lie in one piece.

        Parameters
        ----------
        slots, targets : (E,) int64, (E,) int32
            Source and destination of each edge; the source's row is `slots[e] - first_slot`.
        first_slot : int
        rows : (n, projected_dim) float32
            The piece.
        degrees : NodeDegrees or None
            Whole-graph degrees of the piece's nodes (GCN).
        """

    def finish(self) -> Tensor:
        """(D, out_dim) output of the layer, before what follows it."""


def sums_of(layer: Layer, own_DP: Tensor, degree_D: npt.NDArray[np.int64], degrees_D: NodeDegrees | None) -> Sums:
    """Begin the sums of a tile.

    Parameters
    ----------
    layer : Layer
    own_DP : (D, projected_dim) float32 tensor
        Projected rows of the destinations themselves.
    degree_D : (D,) int64
        Lengths of their lists.
    degrees_D : NodeDegrees or None
        Their degrees (GCN).
    """
    if isinstance(layer, SageLayer):
        return _SageSums(layer, own_DP, degree_D)
    if isinstance(layer, GcnLayer):
        assert degrees_D is not None, "checked where the inference was made"
        return _GcnSums(layer, own_DP, degrees_D)
    if isinstance(layer, GatLayer):
        return _GatSums(layer, own_DP)
    assert isinstance(layer, DenseLayer), f"no sums of {type(layer).__name__}"
    return _NoSums(layer, own_DP)


def sums_width(layer: Layer) -> int:
    """Floats of partial sums a destination."""
    if isinstance(layer, GatLayer):
        return layer.heads * (layer.head_dim + 3)
    return layer.out_dim if layer.transform_first else layer.in_dim


class _SageSums:
    def __init__(self, layer: SageLayer, own_DP: Tensor, degree_D: npt.NDArray[np.int64]) -> None:
        self._layer, self._own_DP = layer, own_DP
        self._width = sums_width(layer)
        self._sums = np.zeros((len(own_DP), self._width), np.float32)
        self._count_D = torch.from_numpy(np.maximum(degree_D, 1).astype(np.float32))

    def add(
        self, slots: npt.NDArray[np.int64], targets: npt.NDArray[np.int32], first_slot: int, rows: F32Array, _: object
    ) -> None:
        flat = self._sums.reshape(-1)
        add_rows(slots, targets, first_slot, rows.reshape(-1), rows.shape[1], self._width, _NO_WEIGHT, flat)

    def finish(self) -> Tensor:
        layer, mean_DW = self._layer, torch.from_numpy(self._sums).div_(self._count_D[:, None])
        if layer.transform_first:
            return mean_DW + (self._own_DP[:, layer.out_dim :] + layer.bias)
        weight = torch.cat([layer.weight_neighbor, layer.weight_self], dim=1)
        return functional.linear(torch.cat([mean_DW, self._own_DP], dim=1), weight, layer.bias)


class _GcnSums:
    def __init__(self, layer: GcnLayer, own_DP: Tensor, degrees_D: NodeDegrees) -> None:
        self._layer, self._own_DP, self._degrees_D = layer, own_DP, degrees_D
        self._sums = np.zeros(tuple(own_DP.shape), np.float32)

    def add(
        self,
        slots: npt.NDArray[np.int64],
        targets: npt.NDArray[np.int32],
        first_slot: int,
        rows: F32Array,
        degrees: NodeDegrees | None,
    ) -> None:
        assert degrees is not None
        weight = inverse_sqrt(degrees.out_degree).astype(np.float32)
        flat, width = self._sums.reshape(-1), rows.shape[1]
        add_rows(slots, targets, first_slot, rows.reshape(-1), width, width, weight, flat)

    def finish(self) -> Tensor:
        layer = self._layer
        in_D = torch.from_numpy(inverse_sqrt(self._degrees_D.in_degree).astype(np.float32))[:, None]
        out_D = torch.from_numpy(inverse_sqrt(self._degrees_D.out_degree).astype(np.float32))[:, None]
        mixed_DP = in_D * torch.from_numpy(self._sums) + (in_D * out_D) * self._own_DP
        return mixed_DP + layer.bias if layer.transform_first else functional.linear(mixed_DP, layer.weight, layer.bias)


class _GatSums:
    def __init__(self, layer: GatLayer, own_DP: Tensor) -> None:
        self._layer, num_dst = layer, len(own_DP)
        taken = layer.heads * layer.head_dim
        self._own_term = np.ascontiguousarray(own_DP[:, taken + layer.heads : taken + 2 * layer.heads].numpy())
        self._kept_DT = own_DP[:, taken + 2 * layer.heads :] if layer.residual else None
        self._greatest = np.full((num_dst, layer.heads), -np.inf, np.float32)
        self._total = np.zeros((num_dst, layer.heads), np.float32)
        self._sums = np.zeros((num_dst, taken), np.float32)

    def add(
        self, slots: npt.NDArray[np.int64], targets: npt.NDArray[np.int32], first_slot: int, rows: F32Array, _: object
    ) -> None:
        layer = self._layer
        width = layer.heads * (layer.head_dim + 2)
        used = rows if rows.shape[1] == width else np.ascontiguousarray(rows[:, :width])
        attend_rows_streamed(
            slots, targets, first_slot, used.reshape(-1), layer.heads, layer.head_dim, np.float32(NEGATIVE_SLOPE),
            self._own_term.reshape(-1), self._greatest.reshape(-1), self._total.reshape(-1), self._sums.reshape(-1),
        )  # fmt: skip

    def finish(self) -> Tensor:
        layer = self._layer
        total = torch.from_numpy(np.where(self._total > 0, self._total, 1).astype(np.float32))
        out = torch.from_numpy(self._sums).view(-1, layer.heads, layer.head_dim) / total[:, :, None]
        return layer.merged(out.reshape(len(out), -1), self._kept_DT)


class _NoSums:
    def __init__(self, layer: DenseLayer, own_DP: Tensor) -> None:
        self._layer, self._own_DP = layer, own_DP

    def add(self, *_: object) -> None:
        """Neighbors do not count."""

    def finish(self) -> Tensor:
        return self._layer.combine(edgeless_mfg(len(self._own_DP)), self._own_DP, None)
