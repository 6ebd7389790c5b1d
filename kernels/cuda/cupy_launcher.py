"""The launcher of a GPU: CuPy compiles by NVRTC; memory and streams are PyTorch's; host memory is pinned."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch

from kernels.cuda.launch import StreamName
from kernels.cuda.pinning import PinnedMemory
from kernels.cuda.source import Kernel, source_text

# Without contraction the sums have the bits of the CPU's, but that CuPy adds -ftz=true: subnormal numbers count as 0.
# All of these kernels wait for memory, not for arithmetic.
COMPILE_OPTIONS = ("-std=c++17", "--fmad=false")
_STAGED_BYTES = 64 << 20
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class CupyLauncher:
    """Compiles kernels once a device, and runs them on PyTorch's current stream.

    Parameters
    ----------
    device : int
        Number of the GPU.
    """

    def __init__(self, device: int = 0) -> None:
        import cupy

        if not any(name in os.environ for name in _ALLOCATOR):
            # Each stream has a pool; what one of them gave back another can take only if blocks are made of pages.
            torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
        self._prepare(cupy, device)
        cupy.cuda.set_allocator(_torch_allocator(cupy))

    def _prepare(self, xp: Any, device: int) -> None:
        self.xp, self.device = xp, device
        self.torch_device = torch.device("cuda", device)
        names = get_args(StreamName)
        self._streams = {name: torch.cuda.Stream(device) for name in names}  # type: ignore[no-untyped-call]
        self._functions: dict[Kernel, Any] = {}
        self._lock = threading.Lock()
        self._pinned = PinnedMemory(xp.cuda.runtime)

    def run(self, kernel: Kernel, grid: int, cta: int, arguments: Sequence[Any], shared_bytes: int) -> None:
        """Launch on the current stream; does not wait."""
        self._function(kernel)((grid,), (cta,), tuple(arguments), shared_mem=shared_bytes)

    def address(self, array: Any) -> int:
        """Address of a device array, or of a host array that `reach` has pinned; 0 of an empty one."""
        if isinstance(array, self.xp.ndarray):
            return int(array.data.ptr)
        if array.nbytes == 0:  # nothing of it is ever read, and nothing of it can be pinned
            return 0
        address = self._pinned.address(int(array.ctypes.data), int(array.nbytes))
        if address is None:
            raise ValueError("a host array must be pinned before kernels read it")
        return address

    def to_host(self, array: Any) -> Any:
        """Copy to the host; waits for the current stream."""
        return self.xp.asnumpy(array)  # synchronize!

    def to_device(self, array: Any) -> Any:
        """Copy a NumPy array to the device, in the order of the current stream."""
        plain = np.ascontiguousarray(array)
        if plain.nbytes <= _STAGED_BYTES:
            return self.xp.asarray(plain)
        # CuPy's `asarray` pins a buffer as large as the array, rounded up to a power of two, and keeps it.
        copied = self.xp.empty(plain.shape, plain.dtype)
        copied.set(plain)
        return copied

    def free_bytes(self) -> int:
        """Memory that nobody holds, PyTorch's unused blocks included."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return int(free + torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device))

    def peak_bytes(self) -> int:
        """Most memory that this process held at once, CuPy's arrays and PyTorch's tensors together."""
        return int(torch.cuda.max_memory_allocated(self.device))

    def device_count(self) -> int:
        """GPUs that PyTorch sees."""
        return int(torch.cuda.device_count())

    def reach(self, array: Any) -> Any:
        """Pin a host array, so that kernels read it through UVA until it is released; an empty one needs nothing.

        Raises
        ------
        PinnedMemoryError
            If the driver refuses: memory is short, or the system pins none (WSL 2, some containers).
        """
        if array.nbytes:
            self._pinned.hold(array)
        return array

    def release(self, array: Any) -> None:
        """Unpin a host array as often reached as released, after everything that reads it has ended."""
        if self._pinned.holds(array):
            torch.cuda.synchronize(self.device)  # synchronize!
            self._pinned.let_go(array)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Put CuPy's work of this thread on PyTorch's current stream of the device."""
        current = _Handle(torch.cuda.current_stream(self.device).cuda_stream)
        # PyTorch's way back to another device makes no context there, unlike CuPy's.
        with torch.cuda.device(self.device), self.xp.cuda.Stream.from_external(current):
            yield

    @contextmanager
    def on(self, name: StreamName) -> Iterator[None]:
        """Put this thread's work, PyTorch's and CuPy's, on a stream of its own."""
        with torch.cuda.stream(self._streams[name]), self.stream():
            yield

    def record(self) -> Any:
        """Event on PyTorch's current stream; whoever waits for it leaves its core to others."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        return torch.cuda.current_stream(self.device).record_event(event)

    def wait(self, event: Any) -> None:
        """Order PyTorch's current stream after an event."""
        torch.cuda.current_stream(self.device).wait_event(event)

    def finish(self, event: Any) -> None:
        """Wait for an event."""
        event.synchronize()  # synchronize!

    def _function(self, kernel: Kernel) -> Any:
        with self._lock:
            if kernel not in self._functions:
                module = self.xp.RawModule(
                    code=source_text(kernel.source), options=COMPILE_OPTIONS, name_expressions=(kernel.expression,)
                )
                self._functions[kernel] = module.get_function(kernel.expression)
            return self._functions[kernel]


@dataclass(frozen=True, slots=True)
class _Handle:
    """A stream by the CUDA stream protocol, which not every PyTorch's streams follow."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of the protocol, and the driver's handle."""
        return 0, self.address


def _torch_allocator(cupy: Any) -> Any:
    """CuPy's memory from PyTorch's caching allocator: one pool, one budget, on whatever stream is current."""

    def allocate(size: int, device_id: int) -> int:
        if size == 0:
            return 0
        stream = torch.cuda.current_stream(device_id).cuda_stream
        if cupy.cuda.get_current_stream().ptr != stream:  # it would be given to others before its use has ended
            raise RuntimeError("CuPy's stream is not PyTorch's: work on arrays belongs within `stream()` or `on()`")
        return int(torch.cuda.caching_allocator_alloc(size, device_id, stream))

    def free(address: int, _device_id: int) -> None:
        if address:
            torch.cuda.caching_allocator_delete(address)  # type: ignore[no-untyped-call]

    return cupy.cuda.PythonFunctionAllocator(allocate, free).malloc
