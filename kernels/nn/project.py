"""Projecting feature rows straight from the tiers, a cache-sized piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from kernels.cuda.device_rows import DeviceRows
from kernels.nn.multi_hot import linear_rows
from kernels.tiered_rows import TieredRows

_PIECE_ROWS, _PIECE_FLOATS = 2048, 1 << 18  # a MiB stays in a core's second-level cache between gather and product


def piece_rows(width: int) -> int:
    """Rows of a piece that are gathered at once."""
    return max(1, min(_PIECE_ROWS, _PIECE_FLOATS // max(1, width)))


def project_rows(rows_SF: Tensor | TieredRows | DeviceRows, weight_OF: Tensor) -> Tensor:
    """`rows @ weight.T` of rows in memory or in the tiers.

    From the tiers, the rows are gathered piece by piece, in the backward pass once more, and never stand together in
    memory; rows of zeros and ones, a quarter of the size at most, are gathered at once and added up sparsely. On a GPU
    rows are gathered at once: it has no cache that pieces would stay in.

    Parameters
    ----------
    rows_SF : (num_rows, F) tensor of any numeric dtype, or rows in the tiers
    weight_OF : (out_dim, F) float32 tensor

    Returns
    -------
    (num_rows, out_dim) float32 tensor
    """
    if isinstance(rows_SF, Tensor):
        return linear_rows(rows_SF, weight_OF)
    if isinstance(rows_SF, DeviceRows) or rows_SF.dtype.kind not in "f":
        return linear_rows(rows_SF.tensor(), weight_OF)
    out: Tensor = _Project.apply(weight_OF, rows_SF)  # type: ignore[no-untyped-call]
    return out


def _pieces(rows: TieredRows, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    step = piece_rows(rows.width)
    for begin in range(0, len(rows), step):
        piece = slice(begin, begin + step)
        yield piece, torch.from_numpy(rows.gather(piece.start, piece.stop)).to(dtype)


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_OF: Tensor, rows: TieredRows) -> Tensor:
        ctx.rows = rows
        out_SO = weight_OF.new_empty(len(rows), len(weight_OF))
        for piece, x in _pieces(rows, weight_OF.dtype):
            out_SO[piece] = functional.linear(x, weight_OF)
        return out_SO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_SO: Tensor) -> tuple[Tensor, None]:
        grad_OF = grad_SO.new_zeros(grad_SO.shape[1], ctx.rows.width)
        for piece, x in _pieces(ctx.rows, grad_SO.dtype):
            grad_OF.addmm_(grad_SO[piece].T, x)
        return grad_OF, None
