"""What the launcher of a GPU pins, with the driver's calls counted in its place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kernels.cuda.cupy_launcher import CupyLauncher
from kernels.cuda.topology import DeviceTopology
from kernels.topology import Topology


class _Device(np.ndarray):
    """Stands for an array on the device."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


class _Runtime:
    CUDARuntimeError = RuntimeError

    def __init__(self) -> None:
        self.registered: list[int] = []

    def hostRegister(self, begin: int, size: int, flags: int) -> None:
        assert size > 0
        assert begin not in self.registered, "the driver refuses what is registered"
        self.registered.append(begin)

    def hostUnregister(self, begin: int) -> None:
        self.registered.remove(begin)

    def pointerGetAttributes(self, begin: int) -> Any:
        return SimpleNamespace(devicePointer=begin + 1000)


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
    assert registered == [array.ctypes.data]
    assert launcher.address(array[2:]) == array.ctypes.data + 1000 + 16
    launcher.release(array)
    assert registered == [array.ctypes.data]
    launcher.release(array)
    assert registered == []
    with pytest.raises(ValueError, match="must be pinned"):
        launcher.address(array)


def test_a_graph_without_edges_needs_nothing_pinned(launcher: CupyLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "to_device", lambda array: array.view(_Device))
    topology = Topology.in_memory(np.zeros(5, np.int64), np.empty(0, np.int32))
    placed = DeviceTopology.place(launcher, topology, launcher.reach(topology.indices))
    assert (placed.indices_address, placed.largest_degree) == (0, 0)
    launcher.release(topology.indices)
    assert launcher.xp.cuda.runtime.registered == []
