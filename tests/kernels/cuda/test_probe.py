"""What the doctor says of machines that we do not have: a driver that answers as theirs would."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from typing import Any

import pytest
import torch

from kernels.cuda.probe import probe
from tasks import doctor


class FakeDriver:
    """Answers as libcuda does, by writing through pointers."""

    def __init__(
        self, *, init: int = 0, devices: int = 1, version: int = 13000, capability: tuple[int, int] = (9, 0)
    ) -> None:
        self._init, self._devices, self._version, self._capability = init, devices, version, capability

    def cuInit(self, _flags: int) -> int:
        return self._init

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self._devices
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self._version
        return 0

    def cuDeviceGetName(self, name: Any, _size: int, _device: int) -> int:
        name.value = b"NVIDIA  H200"
        return 0

    def cuDeviceTotalMem_v2(self, total: Any, _device: int) -> int:
        total._obj.value = 139 << 30
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, _device: int) -> int:
        value._obj.value = self._capability[attribute - 75]
        return 0


def _machine(
    monkeypatch: pytest.MonkeyPatch,
    driver: FakeDriver | None,
    *,
    cupy: bool = True,
    built: str | None = "13.0",
    cuda: bool = True,
) -> None:
    def load(name: str, *_: Any) -> FakeDriver:
        assert name == "libcuda.so.1"
        if driver is None:
            raise OSError(name)
        return driver

    find = importlib.util.find_spec
    monkeypatch.setattr("kernels.cuda.probe.ctypes.CDLL", load)
    monkeypatch.setattr(
        "kernels.cuda.probe.importlib.util.find_spec", lambda n: cupy or None if n == "cupy" else find(n)
    )
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)


@pytest.mark.parametrize(
    ("driver", "packages", "sentence"),
    [
        (None, {}, "no NVIDIA driver.*install it for an NVIDIA GPU, or use backend: cpu"),
        (FakeDriver(init=100), {}, "the NVIDIA driver sees no device.*nvidia-smi"),
        (FakeDriver(init=803), {}, "does not match the kernel module"),
        (FakeDriver(init=4711), {}, "answers with error 4711"),
        (FakeDriver(devices=0), {}, "sees no device"),
        (FakeDriver(version=12040), {}, "supports CUDA 12.4, 13.0 is needed.*update the driver"),
        (FakeDriver(capability=(7, 5)), {}, "H200 has compute capability 7.5, 8.0 is needed"),
        (FakeDriver(), {"cupy": False}, r"CuPy is not installed: pip install 'garden-gnn\[cuda\]'"),
        (FakeDriver(), {"built": None, "cuda": False}, "PyTorch was built for the CPU: install PyTorch's CUDA build"),
        (FakeDriver(), {"cuda": False}, r"PyTorch \(built for CUDA 13.0\) cannot use the GPU: update the driver"),
    ],
)
def test_what_is_missing_is_said_and_what_to_do(
    driver: FakeDriver | None, packages: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _machine(monkeypatch, driver, **packages)
    found = probe()
    assert not found.is_usable
    assert re.search(sentence, found.sentence)
    (finding,) = doctor._backend()
    assert finding.found.startswith("cpu (Numba)")
    assert found.missing in finding.found


def test_a_gpu_that_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, FakeDriver())
    monkeypatch.setattr(doctor, "fault_of_pinning", lambda: "refused")
    monkeypatch.setattr(doctor, "fault_of", lambda _: "")
    assert probe().sentence == "NVIDIA H200, 139 GiB"
    assert probe().driver == (13, 0)
    backend, pinned = doctor._backend()
    assert backend.found.startswith("cuda: NVIDIA H200")
    assert pinned.status == "note"
    assert pinned.found == "host memory cannot be pinned: refused"
    monkeypatch.setattr(doctor, "fault_of_pinning", lambda: "")
    assert len(list(doctor._backend())) == 1


def test_a_gpu_that_is_wrong_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, FakeDriver())
    monkeypatch.setattr(doctor, "fault_of", lambda _: "it does not compute what the CPU does: gathering")
    (finding,) = doctor._backend()
    assert (finding.status, finding.found.split(":")[0]) == ("note", "cpu (Numba)")
    assert "gathering" in finding.found


def test_nothing_is_left_of_the_fake() -> None:
    assert ctypes.CDLL(None)
