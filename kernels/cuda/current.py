"""Which launcher serves a tensor: none on the CPU, one a GPU, or the one that is put in the place of either."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernels.cuda.cupy_launcher import CupyLauncher
from kernels.cuda.launch import DeviceLauncher, Launcher

_in_place: DeviceLauncher | None = None


@cache
def cuda_launcher(device: int) -> CupyLauncher:
    """Launcher of a GPU, made once."""
    return CupyLauncher(device)


def launcher_for(tensor: Tensor) -> Launcher | None:
    """Launcher that computes on a tensor; None stands for the CPU bodies.

    One in place serves the tensors of its own kind of device alone: a GPU's is never given what lies on the CPU.
    """
    if _in_place is not None and _in_place.torch_device.type == tensor.device.type:
        return _in_place
    return cuda_launcher(tensor.device.index or 0) if tensor.device.type == "cuda" else None


def device_launcher(rank: int) -> DeviceLauncher:
    """Launcher of the process of a rank, which takes the GPU of that number, counted around."""
    return _in_place if _in_place is not None else cuda_launcher(rank % max(1, torch.cuda.device_count()))


@contextmanager
def launching_through(launcher: DeviceLauncher) -> Iterator[None]:
    """Let one launcher serve the tensors of its device, in all threads: PyTorch's backward pass has its own."""
    global _in_place
    before, _in_place = _in_place, launcher
    try:
        yield
    finally:
        _in_place = before


def to_torch(array: Any) -> Tensor:
    """Tensor over the memory of a NumPy or CuPy array."""
    return torch.as_tensor(array) if hasattr(array, "ctypes") else torch.utils.dlpack.from_dlpack(array)


def from_torch(launcher: Launcher, tensor: Tensor) -> Any:
    """Array of the launcher's kind over the memory of a contiguous tensor."""
    plain = tensor.detach()
    return plain.numpy() if launcher.xp.__name__ == "numpy" else launcher.xp.from_dlpack(plain)
