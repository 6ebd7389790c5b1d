"""Neighbor aggregation as an autograd function: gather and segment reduce fused in one pass over the edges."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.cpu.aggregate import sum_rows, transpose
from kernels.cpu.row_ranges import run_ranges, split_by_edges, worthwhile_parts
from kernels.mfg import Mfg


def aggregate(
    mfg: Mfg,
    h_SF: Tensor,
    *,
    weight_S: Tensor | None = None,
    scale_D: Tensor | None = None,
    reduce: Literal["sum", "mean"] = "sum",
) -> Tensor:
    """Sum or average the rows of each destination's sources.

    `out[d] = scale[d] * reduce over the edges (s -> d) of weight[s] * h[s]`; a destination without edges gets zeros.
    Gradients flow to `h_SF` only. The bits of both passes are the same for any number of threads
    (`torch.get_num_threads()` are used). Cost: num_edges * F multiply-adds each way, no array of the size of the edges
    but the transposed indices of the backward pass.

    Parameters
    ----------
    mfg : Mfg
    h_SF : (num_src, F) float32 or float64 tensor on the CPU
    weight_S : (num_src,) tensor, optional
        Weight of each source; ones by default.
    scale_D : (num_dst,) tensor, optional
        Factor of each output row; ones by default.
    reduce : "sum" or "mean"
        `mean` divides by the number of sampled edges, multi-edges counted.

    Returns
    -------
    (num_dst, F) tensor of the dtype of `h_SF`

    Raises
    ------
    ValueError
        If a shape, dtype or device does not fit.
    """
    _guard(mfg, h_SF, weight_S, scale_D, reduce)
    if reduce == "mean":
        mean_D = torch.from_numpy(1.0 / np.maximum(np.diff(mfg.indptr), 1)).to(h_SF.dtype)
        scale_D = mean_D if scale_D is None else mean_D * scale_D
    out: Tensor = _Aggregate.apply(h_SF, mfg, _plain(weight_S, h_SF), _plain(scale_D, h_SF))  # type: ignore[no-untyped-call]
    return out


def _guard(mfg: Mfg, h_SF: Tensor, weight_S: Tensor | None, scale_D: Tensor | None, reduce: str) -> None:
    if reduce not in ("sum", "mean"):
        raise ValueError(f"reduce must be 'sum' or 'mean' (got {reduce!r})")
    if h_SF.ndim != 2 or h_SF.shape[0] != mfg.num_src:
        raise ValueError(f"h_SF must be a matrix of {mfg.num_src} rows, one a source (got shape {tuple(h_SF.shape)})")
    if h_SF.dtype not in (torch.float32, torch.float64) or h_SF.device.type != "cpu":
        raise ValueError(f"h_SF must be float32 or float64 on the CPU (got {h_SF.dtype} on {h_SF.device})")
    # Read as unsigned, a negative position is too large as well.
    if mfg.num_edges and int(mfg.indices.view(np.uint32).max()) >= mfg.num_src:
        raise ValueError(f"the hop names a source outside [0, {mfg.num_src})")
    for name, values, length in (("weight_S", weight_S, mfg.num_src), ("scale_D", scale_D, mfg.num_dst)):
        if values is not None and values.shape != (length,):
            raise ValueError(f"{name} must have shape ({length},) (got {tuple(values.shape)})")


def _plain(values: Tensor | None, like: Tensor) -> npt.NDArray[Any]:
    if values is None:
        return np.empty(0, np.float32 if like.dtype == torch.float32 else np.float64)
    return values.detach().to(like.dtype).contiguous().numpy()


def _sum(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    h_SF: Tensor,
    weight_S: npt.NDArray[Any],
    scale_D: npt.NDArray[Any],
) -> Tensor:
    width = h_SF.shape[1]
    out_DF = h_SF.new_empty((len(indptr) - 1, width))
    h = h_SF.detach().contiguous().view(-1).numpy()
    body = partial(sum_rows, indptr, indices, h, weight_S, scale_D, out_DF.view(-1).numpy(), width)
    work = (len(indices) + len(out_DF)) * width
    run_ranges(body, split_by_edges(indptr, worthwhile_parts(work, torch.get_num_threads())))
    return out_DF


class _Aggregate(torch.autograd.Function):
    """Both passes are one kernel: backward runs it over the transposed MFG with weights and scales exchanged."""

    @staticmethod
    def forward(ctx: Any, h_SF: Tensor, mfg: Mfg, weight_S: npt.NDArray[Any], scale_D: npt.NDArray[Any]) -> Tensor:
        ctx.mfg, ctx.weight_S, ctx.scale_D = mfg, weight_S, scale_D
        return _sum(mfg.indptr, mfg.indices, h_SF, weight_S, scale_D)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_DF: Tensor) -> tuple[Tensor, None, None, None]:
        indptr, indices = transpose(ctx.mfg.indptr, ctx.mfg.indices, ctx.mfg.num_src)
        return _sum(indptr, indices, grad_DF, ctx.scale_D, ctx.weight_S), None, None, None
