"""Dropout as an autograd function whose mask depends on a key alone, so that a resumed run drops the same elements."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.cpu.dropout import LANE_RANGE, LANES, drop_elements
from kernels.cpu.row_ranges import run_ranges, split_evenly, worthwhile_parts
from kernels.cuda.attention import DeviceDropout
from kernels.cuda.current import launcher_for


def dropout(h: Tensor, probability: float, key: np.uint64) -> Tensor:
    """Zero each element with a probability and scale the others so that the expectation stays.

    The mask is a pure function of the key, the shape and the probability (Srivastava et al., JMLR 2014; the mask is
    hashed anew in the backward pass instead of kept).

    Parameters
    ----------
    h : float32 tensor, any shape
    probability : float
        In [0, 1); rounded to a multiple of 2**-16.
    key : np.uint64
        A `kernels.rng.stream_key`.

    Returns
    -------
    Tensor of the shape of `h`; `h` itself where nothing is dropped.

    Raises
    ------
    ValueError
        If the probability, dtype or device does not fit.
    """
    threshold = threshold_of(probability)
    launcher = launcher_for(h)
    if h.dtype != torch.float32 or (launcher is None and h.device.type != "cpu"):
        raise ValueError(f"dropout takes float32 on the CPU or a GPU (got {h.dtype} on {h.device})")
    if threshold == 0:
        return h
    if launcher is not None:
        dropped: Tensor = DeviceDropout.apply(h, launcher, threshold, int(key))  # type: ignore[no-untyped-call]
        return dropped
    out: Tensor = _Dropout.apply(h, threshold, key)  # type: ignore[no-untyped-call]
    return out


def threshold_of(probability: float) -> int:
    """A dropout probability in units of 2**-16.

    Raises
    ------
    ValueError
        If it does not lie in [0, 1).
    """
    if not 0 <= probability < 1:
        raise ValueError(f"the dropout probability must lie in [0, 1) (got {probability})")
    return min(round(probability * LANE_RANGE), LANE_RANGE - 1)


def _drop(h: Tensor, threshold: int, key: np.uint64) -> Tensor:
    x = h.detach().contiguous().view(-1)
    out = torch.empty_like(x)
    scale = np.float32(LANE_RANGE / (LANE_RANGE - threshold))
    body = partial(drop_elements, key, threshold, scale, x.numpy(), out.numpy())
    draws = -(-x.numel() // LANES)
    run_ranges(body, split_evenly(draws, worthwhile_parts(x.numel(), torch.get_num_threads())))
    return out.view(h.shape)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, threshold: int, key: np.uint64) -> Tensor:
        ctx.threshold, ctx.key = threshold, key
        return _drop(h, threshold, key)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _drop(grad, ctx.threshold, ctx.key), None, None
