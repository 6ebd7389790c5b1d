"""Segment sums over a message-flow graph on the device, as an autograd function; the bits are those of the CPU body."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.cuda.current import from_torch, to_torch
from kernels.cuda.device_rows import DeviceRows
from kernels.cuda.gather import count_accesses
from kernels.cuda.launch import Array, DeviceLauncher, Launcher, exclusive_sum, launch
from kernels.cuda.source import Kernel
from kernels.mfg import Mfg

_STORED = {"float32": "float", "float64": "double", "float16": "half_bits", "uint8": "u8"}
_WIDE = 16
"""Rows wider than this are summed by a whole warp."""


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows to read: in one matrix, or one by one at their addresses."""

    base: int
    """Address of the first row."""
    stride: int
    """Bytes from row to row."""
    address_S: Array
    """(num_src,) uint64 address of each row; empty for one matrix."""
    stored: str
    """C++ type of an element."""
    width: int
    """Elements of a row."""
    kept: Any
    """What must live as long as the rows are read."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Weights, scales and own factors in the output's dtype, where the rows lie; empty where they are absent."""

    weight_S: Array
    scale_D: Array
    own_D: Array


def sum_rows(
    launcher: Launcher,
    indptr: Array,
    indices: Array,
    rows: RowSource,
    factors: Factors,
    *,
    own_from: int = 0,
    own_to: int = 0,
    out_width: int | None = None,
) -> Array:
    """`out[d] = scale[d] * sum over the edges (s -> d) of weight[s] * h[s]`, own rows added.

    Parameters
    ----------
    launcher : Launcher
    indptr, indices : (num_dst + 1,) int64, (num_edges,) int32 on the device
    rows : RowSource
    factors : Factors
    own_from, own_to : int
        `out[d, own_to + j] += own[d] * h[d, own_from + j]`.
    out_width : int, optional
        At least the width of the rows, which it is by default; columns beyond are zero but for the own row.

    Returns
    -------
    (num_dst, out_width) array in the dtype of the factors
    """
    num_dst, dtype = len(indptr) - 1, factors.weight_S.dtype
    width = rows.width if out_width is None else out_width
    out = launcher.xp.empty((num_dst, width), dtype)
    lanes = 32 if width > _WIDE else 8
    arguments = (
        num_dst, indptr, indices, rows.base, rows.stride, rows.address_S, int(len(rows.address_S) > 0),
        factors.weight_S, int(len(factors.weight_S) > 0), factors.scale_D, int(len(factors.scale_D) > 0),
        factors.own_D, len(factors.own_D), own_from, own_to, width, rows.width, out,
    )  # fmt: skip
    template = ("float" if dtype == np.float32 else "double", rows.stored, str(lanes))
    launch(launcher, Kernel("aggregate", "sum_rows", template), num_dst * lanes, arguments)
    return out


def transpose(launcher: Launcher, indptr: Array, indices: Array, num_src: int) -> tuple[Array, Array, Array]:
    """Destinations of each source, ascending, and the positions of their edges: a stable sort of the edges by source.

    Returns
    -------
    (num_src + 1,) int64, (num_edges,) int32, (num_edges,) int32
    """
    xp, num_edges = launcher.xp, len(indices)
    row_E, targets, edges = (xp.empty(num_edges, np.int32) for _ in range(3))
    launch(launcher, Kernel("plan", "expand_rows"), num_edges, (indptr, len(indptr) - 1, num_edges, row_E))
    order = xp.argsort(indices, kind="stable")
    launch(launcher, Kernel("aggregate", "permute_edges"), num_edges, (num_edges, order, row_E, targets, edges))
    counts = xp.zeros(num_src, np.int64)
    count_accesses(launcher, counts, indices)
    return exclusive_sum(launcher, counts), targets, edges


def rows_at(address_S: Array, dtype: np.dtype[Any], width: int, kept: Any) -> RowSource:
    """Rows that lie in tiers, at addresses that the device reaches."""
    return RowSource(0, 0, address_S, _STORED[str(dtype)], width, kept)


def rows_in(launcher: Launcher, h_SF: Tensor) -> RowSource:
    """Rows of a matrix on the device."""
    rows = h_SF.detach().contiguous()
    array = from_torch(launcher, rows)
    stored = _STORED[str(array.dtype)]
    address = launcher.address(array) if array.size else 0
    return RowSource(address, array.strides[0], launcher.xp.empty(0, np.uint64), stored, rows.shape[1], rows)


def device_factors(
    launcher: Launcher,
    mfg: Mfg,
    dtype: torch.dtype,
    weight_S: Tensor | None,
    scale_D: Tensor | None,
    reduce: str,
    own_D: Tensor | None,
    beside: bool,
) -> Factors:
    """Bring the factors to the device in one dtype, and fold the mean into the scales."""
    xp, wanted = launcher.xp, np.float32 if dtype == torch.float32 else np.float64

    def plain(values: Tensor | None) -> Array:
        if values is None:
            return xp.empty(0, wanted)
        return xp.ascontiguousarray(from_torch(launcher, values.contiguous()).astype(wanted))

    scales = plain(scale_D)
    if reduce == "mean":
        mean_D = (1.0 / xp.maximum(xp.diff(mfg.indptr), 1)).astype(wanted)
        scales = mean_D * scales if len(scales) else mean_D
    own = xp.ones(mfg.num_dst, wanted) if beside else plain(own_D)
    return Factors(plain(weight_S), scales, own)


def sum_device_rows(
    rows: DeviceRows,
    mfg: Mfg,
    weight_S: Tensor | None,
    scale_D: Tensor | None,
    reduce: str,
    own_D: Tensor | None,
    beside: bool,
) -> Tensor:
    """`kernels.nn.aggregate_tiers` on the device: one launch reads the rows of all tiers where they lie."""
    launcher = rows.launcher
    with launcher.stream():
        factors = device_factors(launcher, mfg, torch.float32, weight_S, scale_D, reduce, own_D, beside)
        own_to, out_width = (rows.width, 2 * rows.width) if beside else (0, rows.width)
        if not len(rows):
            return to_torch(launcher.xp.zeros((mfg.num_dst, out_width), np.float32))
        at = rows_at(rows.address_n, rows.dtype, rows.width, rows.table)
        out = sum_rows(launcher, mfg.indptr, mfg.indices, at, factors, own_to=own_to, out_width=out_width)
        return to_torch(out)


class DeviceAggregate(torch.autograd.Function):
    """`kernels.nn.aggregate` on the device; backward sums over the transposed hop, weights and scales exchanged."""

    @staticmethod
    def forward(ctx: Any, h_SF: Tensor, launcher: DeviceLauncher, mfg: Mfg, factors: Factors, beside: bool) -> Tensor:
        """Sum the rows of each destination's sources."""
        ctx.launcher, ctx.mfg, ctx.factors, ctx.beside, ctx.width = launcher, mfg, factors, beside, h_SF.shape[1]
        width = h_SF.shape[1]
        own_to, out_width = (width, 2 * width) if beside else (0, width)
        with launcher.stream():
            rows = rows_in(launcher, h_SF)
            out = sum_rows(launcher, mfg.indptr, mfg.indices, rows, factors, own_to=own_to, out_width=out_width)
            return to_torch(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_DF: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Sum the gradients of each source's destinations."""
        launcher, factors = ctx.launcher, ctx.factors
        exchanged = Factors(factors.scale_D, factors.weight_S, factors.own_D)
        with launcher.stream():
            indptr, targets, _ = transpose(launcher, ctx.mfg.indptr, ctx.mfg.indices, ctx.mfg.num_src)
            rows = replace(rows_in(launcher, grad_DF), width=ctx.width)
            own_from = ctx.width if ctx.beside else 0
            grad_SF = to_torch(sum_rows(launcher, indptr, targets, rows, exchanged, own_from=own_from))
        return grad_SF, None, None, None, None
