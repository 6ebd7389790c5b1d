"""Neighbor aggregation as an autograd function: gather and segment reduce fused in one pass over the edges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.cpu.aggregate import sum_rows, transpose
from kernels.cpu.row_ranges import run_ranges, split_by_edges, worthwhile_parts
from kernels.cuda.aggregate import DeviceAggregate, Factors, device_factors, sum_device_rows
from kernels.cuda.current import launcher_for
from kernels.cuda.device_rows import DeviceRows
from kernels.mfg import Mfg
from kernels.tiered_rows import TIER_DTYPES, TieredRows

Reduce = Literal["sum", "mean"]


def aggregate(
    mfg: Mfg,
    h_SF: Tensor,
    *,
    weight_S: Tensor | None = None,
    scale_D: Tensor | None = None,
    reduce: Reduce = "sum",
    own_D: Tensor | None = None,
    beside: bool = False,
) -> Tensor:
    """Sum or average the rows of each destination's sources.

    `out[d] = scale[d] * reduce over the edges (s -> d) of weight[s] * h[s] + own[d] * h[d]`; a destination without
    edges has an empty sum. Gradients flow to `h_SF` only. The bits of both passes are the same for any number of
    threads (`torch.get_num_threads()` are used). Cost: num_edges * F multiply-adds each way, no array of the size of
    the edges but the transposed indices of the backward pass.

    Parameters
    ----------
    mfg : Mfg
    h_SF : (num_src, F) float32 or float64 tensor
        On the CPU, or on the GPU where the hop lies.
    weight_S : (num_src,) tensor, optional
        Weight of each source; ones by default.
    scale_D : (num_dst,) tensor, optional
        Factor of each sum; ones by default.
    reduce : "sum" or "mean"
        `mean` divides by the number of sampled edges, multi-edges counted.
    own_D : (num_dst,) tensor, optional
        Factor of the destination's own row; zeros by default.
    beside : bool
        Put the own row, as it is, to the right of the sum instead of adding it.

    Returns
    -------
    (num_dst, F) tensor of the dtype of `h_SF`, or (num_dst, 2 F) with `beside`

    Raises
    ------
    ValueError
        If a shape, dtype or device does not fit.
    """
    if h_SF.ndim != 2 or h_SF.shape[0] != mfg.num_src:
        raise ValueError(f"h_SF must be a matrix of {mfg.num_src} rows, one a source (got shape {tuple(h_SF.shape)})")
    launcher = launcher_for(h_SF)
    if launcher is not None:
        _check_asked(mfg, weight_S, scale_D, reduce, own_D, beside)
        on_device = device_factors(launcher, mfg, h_SF.dtype, weight_S, scale_D, reduce, own_D, beside)
        summed: Tensor = DeviceAggregate.apply(h_SF, launcher, mfg, on_device, beside)  # type: ignore[no-untyped-call]
        return summed
    if h_SF.dtype not in (torch.float32, torch.float64) or h_SF.device.type != "cpu":
        raise ValueError(f"h_SF must be float32 or float64 on the CPU (got {h_SF.dtype} on {h_SF.device})")
    factors = _factors(mfg, h_SF.dtype, weight_S, scale_D, reduce, own_D, beside)
    out: Tensor = _Aggregate.apply(h_SF, mfg, factors, beside)  # type: ignore[no-untyped-call]
    return out


def aggregate_tiers(
    mfg: Mfg,
    rows: TieredRows | DeviceRows,
    *,
    weight_S: Tensor | None = None,
    scale_D: Tensor | None = None,
    reduce: Reduce = "sum",
    own_D: Tensor | None = None,
    beside: bool = False,
) -> Tensor:
    """As `aggregate` of the gathered rows as float32, to the bit, reading each row where it lies.

    No gradient flows: features are not learned. Cost: one read of a row an edge, and no copy of any row.

    Parameters
    ----------
    mfg : Mfg
    rows : TieredRows or DeviceRows
        (num_src, F) rows of float32, float16 or uint8.
    weight_S, scale_D, reduce, own_D, beside
        As for `aggregate`.

    Returns
    -------
    (num_dst, F) float32 tensor, or (num_dst, 2 F) with `beside`

    Raises
    ------
    ValueError
        If a shape or dtype does not fit, or a row lies outside its tier.
    """
    if len(rows) != mfg.num_src:
        raise ValueError(f"rows must be {mfg.num_src}, one a source (got {len(rows)})")
    if rows.dtype not in TIER_DTYPES:
        raise ValueError(f"rows must be {', '.join(map(str, TIER_DTYPES))} (got {rows.dtype})")
    if isinstance(rows, DeviceRows):
        _check_asked(mfg, weight_S, scale_D, reduce, own_D, beside)
        return sum_device_rows(rows, mfg, weight_S, scale_D, reduce, own_D, beside)
    factors = _factors(mfg, torch.float32, weight_S, scale_D, reduce, own_D, beside)
    stored = np.empty(0, np.uint16 if rows.dtype == np.float16 else rows.dtype)
    # Without sources there are no addresses, which would read as one matrix; there are no rows to read then either.
    source = _Source(np.uint64(0), 0, rows.address_n, stored, rows.width)
    return _sum(mfg.indptr, mfg.indices, source, factors, _Own(0, rows.width if beside else 0), beside)


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows to read: in one matrix, or one by one at their addresses."""

    base: np.uint64
    stride: int
    address_S: npt.NDArray[np.uint64]
    stored: npt.NDArray[Any]
    width: int


class _Own(NamedTuple):
    """Columns from which and to which a destination's own row goes."""

    begin: int
    to: int


def _factors(
    mfg: Mfg,
    dtype: torch.dtype,
    weight_S: Tensor | None,
    scale_D: Tensor | None,
    reduce: str,
    own_D: Tensor | None,
    beside: bool,
) -> Factors:
    """Check the hop and the factors, and fold the mean into the scales."""
    # Read as unsigned, a negative position is too large as well.
    if mfg.num_edges and int(mfg.indices.view(np.uint32).max()) >= mfg.num_src:
        raise ValueError(f"the hop names a source outside [0, {mfg.num_src})")
    _check_asked(mfg, weight_S, scale_D, reduce, own_D, beside)
    if reduce == "mean":
        mean_D = torch.from_numpy(1.0 / np.maximum(np.diff(mfg.indptr), 1)).to(dtype)
        scale_D = mean_D if scale_D is None else mean_D * scale_D
    if beside:
        own_D = torch.ones(mfg.num_dst)
    return Factors(*(_plain(values, dtype) for values in (weight_S, scale_D, own_D)))


def _check_asked(
    mfg: Mfg, weight_S: Tensor | None, scale_D: Tensor | None, reduce: str, own_D: Tensor | None, beside: bool
) -> None:
    if reduce not in ("sum", "mean"):
        raise ValueError(f"reduce must be 'sum' or 'mean' (got {reduce!r})")
    lengths = (("weight_S", weight_S, mfg.num_src), ("scale_D", scale_D, mfg.num_dst), ("own_D", own_D, mfg.num_dst))
    for name, values, length in lengths:
        if values is not None and values.shape != (length,):
            raise ValueError(f"{name} must have shape ({length},) (got {tuple(values.shape)})")
    if beside and own_D is not None:
        raise ValueError("own_D goes with an own row that is added, not with one that stands beside")


def _plain(values: Tensor | None, dtype: torch.dtype) -> npt.NDArray[Any]:
    if values is None:
        return np.empty(0, np.float32 if dtype == torch.float32 else np.float64)
    plain: npt.NDArray[Any] = values.detach().to(dtype).contiguous().numpy()
    return plain


def _sum(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    source: _Source,
    factors: Factors,
    own: _Own,
    beside: bool,
) -> Tensor:
    dtype = torch.float32 if factors.weight_S.dtype == np.float32 else torch.float64
    out_DF = torch.empty(len(indptr) - 1, source.width * (2 if beside else 1), dtype=dtype)
    body = partial(
        sum_rows, indptr, indices, source.base, source.stride, source.address_S, source.stored,
        factors.weight_S, factors.scale_D, factors.own_D, own.begin, own.to,
        out_DF.view(-1).numpy(), out_DF.shape[1], source.width,
    )  # fmt: skip
    work = (len(indices) + len(out_DF)) * source.width
    run_ranges(body, split_by_edges(indptr, worthwhile_parts(work, torch.get_num_threads())))
    return out_DF


class _Aggregate(torch.autograd.Function):
    """Both passes are one kernel: backward runs it over the transposed MFG with weights and scales exchanged."""

    @staticmethod
    def forward(ctx: Any, h_SF: Tensor, mfg: Mfg, factors: Factors, beside: bool) -> Tensor:
        ctx.mfg, ctx.factors, ctx.beside, ctx.width = mfg, factors, beside, h_SF.shape[1]
        rows = _rows_of(h_SF)
        own = _Own(0, h_SF.shape[1] if beside else 0)
        return _sum(mfg.indptr, mfg.indices, _in_matrix(rows, ctx.width), factors, own, beside)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_DF: Tensor) -> tuple[Tensor, None, None, None]:
        factors: Factors = ctx.factors
        indptr, indices, _ = transpose(ctx.mfg.indptr, ctx.mfg.indices, ctx.mfg.num_src, False)
        exchanged = Factors(factors.scale_D, factors.weight_S, factors.own_D)
        own = _Own(ctx.width if ctx.beside else 0, 0)
        rows = _rows_of(grad_DF)
        return _sum(indptr, indices, _in_matrix(rows, ctx.width), exchanged, own, False), None, None, None


def _rows_of(h: Tensor) -> npt.NDArray[Any]:
    """The matrix itself where each row is contiguous, else a copy; the caller keeps it alive."""
    plain = h.detach()
    rows: npt.NDArray[Any] = (plain if plain.stride(1) == 1 or plain.shape[1] <= 1 else plain.contiguous()).numpy()
    return rows


def _in_matrix(rows: npt.NDArray[Any], width: int) -> _Source:
    stored = np.empty(0, rows.dtype)
    return _Source(np.uint64(rows.ctypes.data), rows.strides[0], np.empty(0, np.uint64), stored, width)
