"""The host shim as a `Launcher`: the face that CuPy's modules have, over kernels built by g++."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels.cuda.source import Kernel, parameters
from tests.cudasim.build import build, load
from tests.cudasim.instances import INSTANCES
from tests.cudasim.poison import POISONED
from tests.cudasim.tracer import Trace, read_trace

_lock = threading.Lock()


class SimError(RuntimeError):
    """A kernel did what no kernel may: a deadlock, a divergent collective, a launch that no device takes."""


class Schedule(IntEnum):
    """Which thread goes next."""

    ASCENDING = 0
    DESCENDING = 1
    RANDOM = 2


class SimLauncher:
    """Runs kernels on the CPU in a schedule of choice; arrays are NumPy's, and poisoned where they are not written."""

    xp: Any = POISONED
    torch_device = torch.device("cpu")

    def __init__(
        self,
        schedule: Schedule = Schedule.ASCENDING,
        *,
        seed: int = 1,
        traced: bool = False,
        texts: dict[str, str] | None = None,
    ) -> None:
        """`texts` stand in for the sources of their names: toys, and sources with planted mistakes."""
        self.schedule, self.seed, self.traced = schedule, seed, traced
        self._texts = texts or {}
        self._libraries: dict[tuple[str, tuple[str, ...]], tuple[Path, ctypes.CDLL]] = {}
        self._reached: list[Any] = []

    def run(self, kernel: Kernel, grid: int, cta: int, arguments: Sequence[Any], shared_bytes: int) -> None:
        """Run one kernel; raises SimError where a device would hang, fail or misbehave."""
        expressions = INSTANCES.get(kernel.source, ())
        if self.traced or kernel.expression not in expressions:  # traced builds are slow, and few kernels are traced
            expressions = (kernel.expression,)
        library = self._library(kernel.source, expressions)
        entry = expressions.index(kernel.expression)
        if kernel.source not in self._texts:
            _check_sizes(library, entry, kernel)
        slots = (ctypes.c_uint64 * (3 * len(arguments) + 1))()  # pointers, then what they point to
        pointers = (ctypes.c_void_p * (len(arguments) + 1)).from_buffer(slots)
        for i, argument in enumerate(arguments):
            raw = argument.ctypes.data.to_bytes(8, "little") if isinstance(argument, np.ndarray) else argument.tobytes()
            address = ctypes.addressof(slots) + 8 * (len(arguments) + 2 * i)
            ctypes.memmove(address, raw, len(raw))
            pointers[i] = address
        given = [argument for argument in arguments if isinstance(argument, np.ndarray)]
        self._launch(library, entry, pointers, grid, cta, shared_bytes, (slots, given))

    def trace(self) -> Trace:
        """What was touched since the last call; of a launcher that traces."""
        traces = [read_trace(library, path) for path, library in self._libraries.values()]
        sites = tuple(site for trace in traces for site in trace.sites)
        return Trace(sites, tuple(finding for trace in traces for finding in trace.findings))

    def address(self, array: Any) -> int:
        """Where the array lies; a trace lets kernels touch it from now on."""
        if self.traced:
            self._reached.append(array)
        return int(array.ctypes.data)

    def to_host(self, array: Any) -> Any:
        """A copy."""
        return array.copy()

    def to_device(self, array: Any) -> Any:
        """A copy, as contiguous as a device's."""
        return np.array(array, order="C")

    def free_bytes(self) -> int:
        """As much as a large GPU has."""
        return 80 << 30

    def peak_bytes(self) -> int:
        """Nobody counts."""
        return 0

    def device_count(self) -> int:
        """One."""
        return 1

    def reach(self, array: Any) -> Any:
        """All memory is within reach."""
        return array

    def release(self, array: Any) -> None:
        """All memory stays within reach."""

    def stream(self) -> AbstractContextManager[None]:
        """Everything runs in the order of its calls."""
        return nullcontext()

    def on(self, name: str) -> AbstractContextManager[None]:
        """Everything runs in the order of its calls."""
        return nullcontext()

    def record(self) -> None:
        """What was called has ended."""

    def wait(self, event: None) -> None:
        """Nothing to wait for."""

    def finish(self, event: None) -> None:
        """Nothing to wait for."""

    def _launch(
        self, library: ctypes.CDLL, entry: int, pointers: Any, grid: int, cta: int, shared_bytes: int, held: Any
    ) -> None:
        shape, (slots, given) = ctypes.c_uint * 3, held
        with _lock:  # a launch has the engine's globals to itself
            if self.traced:
                library.sim_trace_arguments(ctypes.byref(slots), ctypes.c_size_t(ctypes.sizeof(slots)))
                for array in (*given, *self._reached):
                    library.sim_trace_buffer(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))
            library.sim_schedule(int(self.schedule), ctypes.c_uint64(self.seed))
            call = ctypes.cast(getattr(library, f"sim_call_{entry}"), ctypes.c_void_p)
            sizes = shape(grid, 1, 1), shape(cta, 1, 1)
            failed = library.sim_launch(call, pointers, *sizes, ctypes.c_size_t(shared_bytes))
            if failed:
                raise SimError(library.sim_error().decode())

    def _library(self, source: str, expressions: tuple[str, ...]) -> ctypes.CDLL:
        if (source, expressions) not in self._libraries:
            path = build(source, expressions, traced=self.traced, text=self._texts.get(source))
            self._libraries[source, expressions] = (path, load(path))
        return self._libraries[source, expressions][1]


def _check_sizes(library: ctypes.CDLL, entry: int, kernel: Kernel) -> None:
    """Compare what Python reads in the declaration with what the compiler made of it."""
    size_of = getattr(library, f"sim_size_{entry}")
    expected = [8 if p.is_array or p.dtype is None else p.dtype.itemsize for p in parameters(kernel)]
    found = [size_of(i) for i in range(len(expected) + 1)]
    assert found == [*expected, -1], f"{kernel.expression}: {found} is not {expected}"
