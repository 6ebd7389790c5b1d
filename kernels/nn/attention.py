"""Attention over sampled neighbors as an autograd function: scores, softmax and weighted sum fused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.cpu.aggregate import transpose
from kernels.cpu.attention import attend_rows, score_gradients, source_gradients
from kernels.cpu.row_ranges import run_ranges, split_by_edges, worthwhile_parts
from kernels.cuda.attention import DeviceAttend
from kernels.cuda.current import launcher_for
from kernels.mfg import Mfg
from kernels.nn.dropout import threshold_of

F32Array = npt.NDArray[np.float32]

_NO_KEY = np.uint64(0)


@dataclass(frozen=True, slots=True)
class Attention:
    """What an attention aggregate is asked."""

    heads: int
    """Scores an edge."""
    dim: int
    """Values a head."""
    negative_slope: float = 0.2
    """Of the leaky ReLU on the scores."""
    dropout: float = 0.0
    """Share of attention weights to drop; the others are scaled so that the expectation stays."""
    key: np.uint64 | None = None
    """Turns dropout on: a `kernels.rng.stream_key`, of which the mask is a pure function."""

    @property
    def width(self) -> int:
        """Columns of a projected row: values, source terms, destination terms."""
        return self.heads * (self.dim + 2)


def attend(mfg: Mfg, z_SP: Tensor, attention: Attention) -> Tensor:
    """Sum the rows of each destination's sources, weighted by attention (Veličković et al., ICLR 2018).

    `out[d, h] = sum over the edges (s -> d) of a[e, h] * value[s, h]` with `a` the softmax over the edges of d of
    `leaky_relu(source term[s, h] + destination term[d, h])`; a destination without edges gets zeros. The bits of both
    passes are the same for any number of threads. Beside its result it keeps the `a` of all edges.

    Parameters
    ----------
    mfg : Mfg
    z_SP : (num_src, heads * (dim + 2)) float32 tensor, where the hop lies
        Values of each head, one source term a head, one destination term a head.
    attention : Attention

    Returns
    -------
    (num_dst, heads * dim) float32 tensor

    Raises
    ------
    ValueError
        If a shape, dtype or device does not fit.
    """
    if z_SP.shape != (mfg.num_src, attention.width):
        wanted = f"{mfg.num_src} rows, one a source, of {attention.width}"
        raise ValueError(f"z_SP must have {wanted} (got shape {tuple(z_SP.shape)})")
    launcher = launcher_for(z_SP)
    if launcher is not None and z_SP.dtype == torch.float32:
        sizes, (key, threshold) = (attention.heads, attention.dim, attention.negative_slope), _dropped(attention)
        attended: Tensor = DeviceAttend.apply(  # type: ignore[no-untyped-call]
            z_SP, launcher, mfg, sizes, (int(key), threshold)
        )
        return attended
    if z_SP.dtype != torch.float32 or z_SP.device.type != "cpu":
        raise ValueError(f"z_SP must be float32 on the CPU (got {z_SP.dtype} on {z_SP.device})")
    # Read as unsigned, a negative position is too large as well.
    if mfg.num_edges and int(mfg.indices.view(np.uint32).max()) >= mfg.num_src:
        raise ValueError(f"the hop names a source outside [0, {mfg.num_src})")
    out: Tensor = _Attend.apply(z_SP, mfg, attention)  # type: ignore[no-untyped-call]
    return out


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z_SP: Tensor, mfg: Mfg, attention: Attention) -> Tensor:
        z_SP = z_SP.contiguous()
        alpha = np.empty(mfg.num_edges * attention.heads, np.float32)
        out_DT = z_SP.new_empty(mfg.num_dst, attention.heads * attention.dim)
        body = partial(
            attend_rows, mfg.indptr, mfg.indices, _flat(z_SP), attention.heads, attention.dim,
            np.float32(attention.negative_slope), *_dropped(attention), alpha, _flat(out_DT),
        )  # fmt: skip
        _run(body, mfg.indptr, attention)
        ctx.save_for_backward(z_SP)
        ctx.mfg, ctx.attention, ctx.alpha = mfg, attention, alpha
        return out_DT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_DT: Tensor) -> tuple[Tensor, None, None]:
        (z_SP,), mfg, asked, alpha = ctx.saved_tensors, ctx.mfg, ctx.attention, ctx.alpha
        grad, score_grad = _flat(grad_DT.contiguous()), np.empty_like(alpha)
        own_grad = np.empty(mfg.num_dst * asked.heads, np.float32)
        scores = partial(
            score_gradients, mfg.indptr, mfg.indices, _flat(z_SP), asked.heads, asked.dim,
            np.float32(asked.negative_slope), *_dropped(asked), alpha, grad, score_grad, own_grad,
        )  # fmt: skip
        _run(scores, mfg.indptr, asked)
        indptr, targets, edges = transpose(mfg.indptr, mfg.indices, mfg.num_src, True)
        z_grad_SP = torch.empty_like(z_SP)
        sources = partial(
            source_gradients, indptr, targets, edges, asked.heads, asked.dim,
            *_dropped(asked), alpha, grad, score_grad, own_grad, _flat(z_grad_SP),
        )  # fmt: skip
        _run(sources, indptr, asked)
        return z_grad_SP, None, None


def _flat(x: Tensor) -> F32Array:
    flat: F32Array = x.detach().view(-1).numpy()
    return flat


def _dropped(attention: Attention) -> tuple[np.uint64, int]:
    if attention.key is None:
        return _NO_KEY, 0
    return attention.key, threshold_of(attention.dropout)


def _run(body: Any, indptr: npt.NDArray[np.int64], attention: Attention) -> None:
    work = (int(indptr[-1]) + len(indptr)) * attention.width
    run_ranges(body, split_by_edges(indptr, worthwhile_parts(work, torch.get_num_threads())))
