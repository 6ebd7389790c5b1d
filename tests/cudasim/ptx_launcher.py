"""A launcher over the compiler's PTX: runs kernels by the interpreter and adds up what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch

from kernels.cuda.source import Kernel
from tests.cudasim.compiler import compile_cubin
from tests.cudasim.machine_code import read_machine_code
from tests.cudasim.ptx import Entry, parse
from tests.cudasim.ptx_grid import Counts, Grid

ARCH = 90


@cache
def _entry(kernel: Kernel) -> tuple[Entry, list[int]]:
    """A kernel, and the line of its PTX that each machine instruction was made of."""
    code = read_machine_code(compile_cubin(kernel.source, (kernel.expression,), ARCH))
    mangled = f"_Z{len(kernel.name)}{kernel.name}"  # kernels without templates are all there
    (entry,) = (entry for entry in parse(code.ptx) if entry.name.startswith(mangled))
    return entry, code.lines[entry.name]


class PtxLauncher:
    """Runs kernels as `SimLauncher` does; arrays that kernels reach by address are those whose address was asked."""

    xp = np
    torch_device = torch.device("cpu")

    def __init__(self) -> None:
        self.kernels: dict[Kernel, Counts] = {}
        """What each kernel came to."""
        self._lists: list[Any] = []

    def run(self, kernel: Kernel, grid: int, cta: int, arguments: Sequence[Any], shared_bytes: int) -> None:
        """Run one kernel and count."""
        given = [a for a in arguments if isinstance(a, np.ndarray)]
        values = [a.ctypes.data if isinstance(a, np.ndarray) else int(a) % 2**64 for a in arguments]
        entry, lines = _entry(kernel)
        running = Grid(entry, grid, cta, values, {"": given, "lists": self._lists})
        counts = running.run()
        counts.machine_instructions = sum(running.issued[line] for line in lines)
        self.kernels.setdefault(kernel, Counts()).add(counts)

    def total(self) -> Counts:
        """All kernels together."""
        total = Counts()
        for counts in self.kernels.values():
            total.add(counts)
        return total

    def address(self, array: Any) -> int:
        """Where the array lies; kernels may read it from now on."""
        if all(array is not known for known in self._lists):
            self._lists.append(array)
        return int(array.ctypes.data)

    def to_host(self, array: Any) -> Any:
        """A copy."""
        return array.copy()

    def to_device(self, array: Any) -> Any:
        """A copy, as contiguous as a device's."""
        return np.array(array, order="C")

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
