"""Guarded launches: what raw kernels do not check is checked here, for a GPU and for the host shim of tests.

A `Launcher` brings an array module (`xp`: CuPy or NumPy), compiles kernels and runs them. Everything above it is one
code for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import numpy as np
import torch

from kernels.cuda.source import Kernel, Parameter, cta_size, parameters

Array = Any
"""An array of the launcher's `xp`."""

StreamName = Literal["sample", "side", "gather", "update"]
"""Streams beside PyTorch's current one: sampling, the second of two kernels side by side, rows, the dynamic cache."""

_MAX_CTAS = 2**31 - 1


class PinnedMemoryError(MemoryError):
    """Host memory could not be pinned: this machine cannot do it now (exit code 3)."""

    exit_code = 3


class Launcher(Protocol):
    """Compiles and runs kernels on one device."""

    @property
    def xp(self) -> Any:
        """Array module of the device: `cupy`, or `numpy` for the host shim."""

    def run(self, kernel: Kernel, grid: int, cta: int, arguments: Sequence[Any], shared_bytes: int) -> None:
        """Run a kernel whose arguments are checked: arrays of `xp` and NumPy scalars of the declared dtypes."""

    def address(self, array: Array) -> int:
        """Address of an array as kernels see it; a host array must be reachable from the device."""

    def to_host(self, array: Array) -> Any:
        """Copy to the host; waits for the device."""

    def to_device(self, array: Any) -> Array:
        """Copy a NumPy array to the device."""


class DeviceLauncher(Launcher, Protocol):
    """A launcher that trains: streams, events and host memory within reach, beside launches."""

    torch_device: torch.device
    """PyTorch's name of the device."""

    def free_bytes(self) -> int:
        """Device memory that nobody holds."""

    def peak_bytes(self) -> int:
        """Most device memory that this process held at once; 0 where nobody counts."""

    def device_count(self) -> int:
        """Devices of this kind that this machine has."""

    def reach(self, array: Any) -> Any:
        """Bring a host array within reach of kernels; its address is known until it is released.

        Raises
        ------
        PinnedMemoryError
            If it cannot be.
        """

    def release(self, array: Any) -> None:
        """Give back what `reach` took for a host array, once nothing on the device reads it any more."""

    def stream(self) -> AbstractContextManager[None]:
        """Put the work of this thread on PyTorch's current stream."""

    def on(self, name: StreamName) -> AbstractContextManager[None]:
        """Put the work of this thread on a stream of its own."""

    def record(self) -> Any:
        """Event after all that this thread has put on its stream so far."""

    def wait(self, event: Any) -> None:
        """Let this thread's stream wait for an event."""

    def finish(self, event: Any) -> None:
        """Let this thread wait for an event."""


def launch(
    launcher: Launcher,
    kernel: Kernel,
    num_threads: int,
    arguments: Sequence[Any],
    *,
    shared_bytes: int = 0,
) -> None:
    """Run `num_threads` threads (none is legal) of a kernel.

    Parameters
    ----------
    launcher : Launcher
    kernel : Kernel
    num_threads : int
        Rounded up to whole CTAs of the size that the kernel is compiled for; kernels pass over threads beyond.
    arguments : sequence
        Arrays of the launcher's `xp`, and integers or floats.
    shared_bytes : int
        Dynamic shared memory a CTA.

    Raises
    ------
    ValueError
        If an argument has the wrong dtype, lies on the wrong device, is not contiguous or does not fit its type, or if
        there are too many threads.
    """
    declared = parameters(kernel)
    if len(arguments) != len(declared):
        raise ValueError(f"{kernel.name} takes {len(declared)} arguments (got {len(arguments)})")
    checked = [
        _checked(launcher, kernel, position, argument, parameter)
        for position, (argument, parameter) in enumerate(zip(arguments, declared, strict=True))
    ]
    cta = cta_size(kernel.source, kernel.name)
    grid = -(-num_threads // cta)
    if grid > _MAX_CTAS:
        raise ValueError(f"{kernel.name} cannot have {num_threads} threads: at most {_MAX_CTAS * cta}")
    if grid > 0:
        launcher.run(kernel, grid, cta, checked, shared_bytes)


def exclusive_sum(launcher: Launcher, counts: Array) -> Array:
    """Where each entry begins: (n + 1,) int64 exclusive sums of (n,) int64 counts, none being legal."""
    sums = launcher.xp.zeros(len(counts) + 1, np.int64)
    if len(counts):
        launcher.xp.cumsum(counts, out=sums[1:])
    return sums


def _checked(launcher: Launcher, kernel: Kernel, position: int, argument: Any, parameter: Parameter) -> Any:
    what = f"argument {position} of {kernel.name}"
    if not parameter.is_array:
        return _scalar(what, argument, parameter)
    if not isinstance(argument, launcher.xp.ndarray):
        raise ValueError(f"{what} must be an array of {launcher.xp.__name__} (got {type(argument).__name__})")
    if parameter.dtype is not None and argument.dtype != parameter.dtype:
        raise ValueError(f"{what} must be {parameter.dtype} (got {argument.dtype})")
    if not argument.flags.c_contiguous:
        raise ValueError(f"{what} must be contiguous")
    return argument


def _scalar(what: str, argument: Any, parameter: Parameter) -> Any:
    dtype = parameter.dtype
    assert dtype is not None
    if dtype.kind == "f":
        return dtype.type(argument)
    if not isinstance(argument, int | np.integer):
        raise ValueError(f"{what} must be an integer (got {argument!r})")
    value, limits = int(argument), np.iinfo(dtype)
    if not limits.min <= value <= limits.max:
        raise ValueError(f"{what} must fit {dtype} (got {value})")
    return dtype.type(value)
