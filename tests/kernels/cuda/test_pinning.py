"""What the launcher of a GPU pins, with the driver's calls counted in its place."""

from __future__ import annotations

import mmap
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.cuda import cupy_launcher, pinning
from kernels.cuda.cupy_launcher import CupyLauncher
from kernels.cuda.launch import PinnedMemoryError
from kernels.cuda.pinning import PinnedMemory
from kernels.cuda.topology import DeviceTopology
from kernels.topology import Topology


class _Device(np.ndarray):
    """Stands for an array on the device."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


class _Runtime:
    """The driver: it takes whole pages, none of them twice, and no more than its limit."""

    CUDARuntimeError = RuntimeError

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}
        self.limit = 2**60
        self.most = 2**60
        self.gap = 0

    def hostRegister(self, begin: int, size: int, flags: int) -> None:
        assert size > 0
        assert begin % mmap.PAGESIZE == size % mmap.PAGESIZE == 0
        if flags & 8:
            raise RuntimeError("operation not supported")
        if size > self.most:
            raise RuntimeError("out of memory")
        for other, end in self.registered.items():
            assert begin + size <= other or end <= begin, "the driver refuses what is registered"
        if sum(end - other for other, end in self.registered.items()) + size > self.limit:
            raise RuntimeError("out of memory")
        self.registered[begin] = begin + size

    def hostUnregister(self, begin: int) -> None:
        del self.registered[begin]

    def pointerGetAttributes(self, begin: int) -> Any:
        return SimpleNamespace(devicePointer=begin + 1000 + self.gap * len(self.registered))


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> CupyLauncher:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    made = CupyLauncher.__new__(CupyLauncher)
    made._prepare(SimpleNamespace(ndarray=_Device, cuda=SimpleNamespace(runtime=_Runtime())), 0)
    return made


def test_what_is_reached_twice_is_pinned_until_it_is_released_twice(launcher: CupyLauncher) -> None:
    registered, array = launcher.xp.cuda.runtime.registered, np.arange(10)
    for _ in range(2):
        assert launcher.reach(array) is array
    (begin,) = registered
    assert begin <= array.ctypes.data < begin + mmap.PAGESIZE
    assert launcher.address(array[2:]) == array.ctypes.data + 1000 + 16
    launcher.release(array)
    assert list(registered) == [begin]
    launcher.release(array)
    assert not registered
    with pytest.raises(ValueError, match="must be pinned"):
        launcher.address(array)


def test_large_arrays_are_copied_without_a_staging_buffer_of_their_size(
    launcher: CupyLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CuPy pins one for `asarray` and keeps it."""
    copied, staged = list[int](), list[int]()

    class Made(np.ndarray):
        def set(self, array: np.ndarray) -> None:
            copied.append(array.nbytes)
            self[...] = array

    def staging(array: np.ndarray) -> np.ndarray:
        staged.append(array.nbytes)
        return array

    launcher.xp.empty = lambda shape, dtype: np.empty(shape, dtype).view(Made)
    launcher.xp.asarray = staging
    monkeypatch.setattr(cupy_launcher, "_STAGED_BYTES", 80)
    for size in (10, 11):
        assert launcher.to_device(np.arange(2 * size)[::2]).tolist() == list(range(0, 2 * size, 2))
    assert (staged, copied) == ([80], [88])


def test_memory_is_never_taken_for_another_stream_than_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    current = SimpleNamespace(ptr=7)
    cupy = SimpleNamespace(
        cuda=SimpleNamespace(
            get_current_stream=lambda: current,
            PythonFunctionAllocator=lambda allocate, free: SimpleNamespace(malloc=allocate),
        )
    )
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", lambda size, device, stream: 4096)
    allocate = cupy_launcher._torch_allocator(cupy)
    assert (allocate(8, 0), allocate(0, 0)) == (4096, 0)
    current.ptr = 9
    with pytest.raises(RuntimeError, match="not PyTorch's"):
        allocate(8, 0)


def test_a_graph_without_edges_needs_nothing_pinned(launcher: CupyLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "to_device", lambda array: array.view(_Device))
    topology = Topology.in_memory(np.zeros(5, np.int64), np.empty(0, np.int32))
    placed = DeviceTopology.place(launcher, topology, launcher.reach(topology.indices))
    assert (placed.indices_address, placed.largest_degree) == (0, 0)
    launcher.release(topology.indices)
    assert not launcher.xp.cuda.runtime.registered


@given(st.lists(st.tuples(st.integers(0, 9 * mmap.PAGESIZE), st.integers(1, 3 * mmap.PAGESIZE)), max_size=6), st.data())
def test_arrays_that_share_pages(places: list[tuple[int, int]], data: st.DataObject) -> None:
    """Every page of what is held is pinned, once; nothing is once nothing is held."""
    runtime = _Runtime()
    memory, raw = PinnedMemory(runtime), np.empty(14 * mmap.PAGESIZE, np.uint8)
    arrays = [raw[begin : begin + size] for begin, size in set(places)]
    for order in (arrays, data.draw(st.permutations(arrays))):
        for position, array in enumerate(order):
            memory.hold(array) if order is arrays else memory.let_go(array)
            held = arrays[: position + 1] if order is arrays else order[position + 1 :]
            needed = {page for one in held for page in _pages(one)}
            pinned = {page for begin, end in runtime.registered.items() for page in range(begin, end, mmap.PAGESIZE)}
            assert needed <= pinned
            for one in held:
                assert memory.address(one.ctypes.data, one.nbytes) == one.ctypes.data + 1000
        if order is not arrays:
            assert not runtime.registered


def _pages(array: np.ndarray) -> range:
    begin = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    return range(begin, array.ctypes.data + array.nbytes, mmap.PAGESIZE)


def test_what_the_driver_refuses_leaves_nothing_pinned() -> None:
    runtime = _Runtime()
    memory, raw = PinnedMemory(runtime), np.empty(9 * mmap.PAGESIZE, np.uint8)
    start = -raw.ctypes.data % mmap.PAGESIZE
    memory.hold(raw[start + 2 * mmap.PAGESIZE : start + 3 * mmap.PAGESIZE])
    before = dict(runtime.registered)
    runtime.limit = 4 * mmap.PAGESIZE  # enough for the part in front of what is pinned, not for the one behind
    with pytest.raises(PinnedMemoryError, match="could not be pinned"):
        memory.hold(raw[start : start + 8 * mmap.PAGESIZE])
    assert runtime.registered == before


def test_memory_that_is_only_read_is_pinned_as_any_other() -> None:
    """Few devices know the flag for mappings that nobody may write to; most arrays that are only read need none."""
    runtime, array = _Runtime(), np.arange(10)
    array.flags.writeable = False
    PinnedMemory(runtime).hold(array)
    assert len(runtime.registered) == 1


def test_large_memory_is_pinned_in_parts_that_drivers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    page, runtime = mmap.PAGESIZE, _Runtime()
    monkeypatch.setattr(pinning, "_CHUNK_BYTES", 2 * page)
    runtime.most = 2 * page
    raw = np.empty(9 * page, np.uint8)
    start = -raw.ctypes.data % page
    memory, array = PinnedMemory(runtime), raw[start + 8 : start + 7 * page]
    memory.hold(array)
    assert [end - begin for begin, end in sorted(runtime.registered.items())] == [2 * page] * 3 + [page]
    assert memory.address(array.ctypes.data + page, 4 * page) == array.ctypes.data + page + 1000
    memory.let_go(array)
    assert not runtime.registered
    runtime.limit = 5 * page
    with pytest.raises(PinnedMemoryError, match="could not be pinned"):
        memory.hold(array)
    assert not runtime.registered
    runtime.limit, runtime.gap = 2**60, 10 * page
    memory.hold(array)
    with pytest.raises(PinnedMemoryError, match="do not adjoin"):
        memory.address(array.ctypes.data, array.nbytes)
