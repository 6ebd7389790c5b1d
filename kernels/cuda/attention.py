"""Attention over sampled neighbors and elementwise dropout on the device, as autograd functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.cpu.dropout import LANE_RANGE
from kernels.cuda.aggregate import transpose
from kernels.cuda.current import from_torch, to_torch
from kernels.cuda.launch import DeviceLauncher, launch
from kernels.cuda.source import Kernel
from kernels.mfg import Mfg

_WARP = 32


class DeviceAttend(torch.autograd.Function):
    """`kernels.nn.attention.attend` on the device: a warp a destination, in the backward pass a warp a source."""

    @staticmethod
    def forward(
        ctx: Any,
        z_SP: Tensor,
        launcher: DeviceLauncher,
        mfg: Mfg,
        sizes: tuple[int, int, float],
        dropped: tuple[int, int],
    ) -> Tensor:
        """Sum the values of each destination's sources; `sizes`: heads, values a head, slope; `dropped`: key, limit."""
        z_SP = z_SP.contiguous()
        heads, dim, slope = sizes
        out_DT = z_SP.new_empty(mfg.num_dst, heads * dim)
        with launcher.stream():
            alpha = launcher.xp.empty(mfg.num_edges * heads, np.float32)
            arguments = (
                mfg.num_dst, mfg.indptr, mfg.indices, from_torch(launcher, z_SP), heads, dim, slope,
                *_dropout(dropped), alpha, from_torch(launcher, out_DT),
            )  # fmt: skip
            launch(launcher, Kernel("attention", "attend_rows"), mfg.num_dst * _WARP, arguments)
        ctx.save_for_backward(z_SP)
        ctx.launcher, ctx.mfg, ctx.sizes, ctx.dropped, ctx.alpha = launcher, mfg, sizes, dropped, alpha
        return out_DT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_DT: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Gradients of the scores, edge by edge, then of the rows, source by source."""
        (z_SP,), launcher = ctx.saved_tensors, ctx.launcher
        with launcher.stream():
            z_grad_SP = _source_gradients(ctx, launcher, z_SP, grad_DT.contiguous())
        return z_grad_SP, None, None, None, None


def _source_gradients(ctx: Any, launcher: DeviceLauncher, z_SP: Tensor, grad_DT: Tensor) -> Tensor:
    xp, mfg, (heads, dim, slope) = launcher.xp, ctx.mfg, ctx.sizes
    z, grad = from_torch(launcher, z_SP), from_torch(launcher, grad_DT)
    score_grad, own_grad = xp.empty_like(ctx.alpha), xp.empty(mfg.num_dst * heads, np.float32)
    drop = _dropout(ctx.dropped)
    scores = (
        mfg.num_dst, mfg.indptr, mfg.indices, z, heads, dim, slope, *drop, ctx.alpha, grad, score_grad, own_grad,
    )  # fmt: skip
    launch(launcher, Kernel("attention", "score_gradients"), mfg.num_dst * _WARP, scores)
    indptr, targets, edges = transpose(launcher, mfg.indptr, mfg.indices, mfg.num_src)
    z_grad_SP = torch.empty_like(z_SP)
    sources = (
        mfg.num_src, indptr, targets, edges, heads, dim, *drop, ctx.alpha, grad, score_grad, mfg.num_dst,
        own_grad, from_torch(launcher, z_grad_SP),
    )  # fmt: skip
    launch(launcher, Kernel("attention", "source_gradients"), mfg.num_src * _WARP, sources)
    return z_grad_SP


class DeviceDropout(torch.autograd.Function):
    """`kernels.nn.dropout.dropout` on the device: the mask is hashed anew in the backward pass."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, launcher: DeviceLauncher, threshold: int, key: int) -> Tensor:
        """Zero the dropped elements and scale the others."""
        ctx.launcher, ctx.threshold, ctx.key = launcher, threshold, key
        return _drop(launcher, h, threshold, key)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Do to the gradient what was done to the elements."""
        return _drop(ctx.launcher, grad, ctx.threshold, ctx.key), None, None, None


def _drop(launcher: DeviceLauncher, h: Tensor, threshold: int, key: int) -> Tensor:
    with launcher.stream():
        x = from_torch(launcher, h.contiguous()).reshape(-1)
        out = launcher.xp.empty_like(x)
        arguments = (key, threshold, _keep(threshold), x.size, x, out)
        launch(launcher, Kernel("dropout", "drop_elements"), -(-x.size // 4), arguments)
        return to_torch(out).view(h.shape)


def _dropout(dropped: tuple[int, int]) -> tuple[int, int, float]:
    key, threshold = dropped
    return key, threshold, _keep(threshold)


def _keep(threshold: int) -> float:
    return LANE_RANGE / (LANE_RANGE - threshold)
