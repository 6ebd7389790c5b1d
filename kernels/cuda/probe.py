"""Looks for a device that the CUDA kernels can use, without making a context on any, and says what is missing."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from dataclasses import dataclass

LEAST_DRIVER = (13, 0)
"""CUDA version that CuPy's build for CUDA 13 needs of the driver."""
LEAST_CAPABILITY = (8, 0)
"""Least compute capability that the kernels are compiled for in tests (sm_80)."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Names the GPUs that a process sees, in the order of their numbers."""

_COUNT_NAMES = {100: "sees no device", 3: "could not be initialised", 803: "does not match the kernel module"}
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU."""

    name: str
    """What its driver calls it."""
    capability: tuple[int, int]
    """Compute capability."""
    memory_bytes: int
    """All of its memory."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether this machine can use the CUDA backend."""

    devices: tuple[Device, ...]
    """GPUs that the driver sees."""
    missing: str
    """What keeps the backend from working; empty where nothing does."""
    advice: str
    """What to do about it."""
    driver: tuple[int, int] = (0, 0)
    """CUDA version that the driver supports."""

    @property
    def is_usable(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing

    @property
    def sentence(self) -> str:
        """What the doctor says."""
        if self.missing:
            return f"{self.missing}: {self.advice}"
        device = self.devices[0]
        return f"{device.name}, {device.memory_bytes / 2**30:.0f} GiB"


def probe() -> Probe:
    """Ask the driver for its devices, then look for the packages, in the order in which one would set them up."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Probe((), "no NVIDIA driver (libcuda.so.1)", "install it for an NVIDIA GPU, or use backend: cpu")
    code = driver.cuInit(0)
    if code:
        reason = _COUNT_NAMES.get(code, f"answers with error {code}")
        return Probe((), f"the NVIDIA driver {reason}", "see that `nvidia-smi` lists a GPU, or use backend: cpu")
    devices = _devices(driver)
    missing, advice = _first_obstacle(driver, devices)
    return Probe(devices, missing, advice, _driver_version(driver))


def visible_device(rank: int) -> str:
    """What `CUDA_VISIBLE_DEVICES` names for a process that is to see the one GPU that is number `rank` here.

    A process that sees others puts a context on the first of them, half a GiB, whatever it computes on.
    """
    named = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    return named[rank] if rank < len(named) else str(rank)


def _first_obstacle(driver: ctypes.CDLL, devices: tuple[Device, ...]) -> tuple[str, str]:
    if not devices:
        return "the NVIDIA driver sees no device", "see that `nvidia-smi` lists a GPU, or use backend: cpu"
    version = _driver_version(driver)
    if version < LEAST_DRIVER:
        have, need = ".".join(map(str, version)), ".".join(map(str, LEAST_DRIVER))
        return f"the NVIDIA driver supports CUDA {have}, {need} is needed", "update the driver (580 or newer)"
    if devices[0].capability < LEAST_CAPABILITY:
        have = ".".join(map(str, devices[0].capability))
        return f"{devices[0].name} has compute capability {have}, 8.0 is needed", "use a newer GPU, or backend: cpu"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed", "pip install 'garden-gnn[cuda]'"
    import torch

    if torch.version.cuda is None:
        return "this PyTorch was built for the CPU", "install PyTorch's CUDA build"
    if not torch.cuda.is_available():
        advice = "update the driver, or install a PyTorch build for a CUDA version that it supports"
        return f"PyTorch (built for CUDA {torch.version.cuda}) cannot use the GPU", advice
    return "", ""


def _driver_version(driver: ctypes.CDLL) -> tuple[int, int]:
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000, version.value % 1000 // 10


def _devices(driver: ctypes.CDLL) -> tuple[Device, ...]:
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(_device(driver, index) for index in range(count.value))


def _device(driver: ctypes.CDLL, index: int) -> Device:
    name, total = ctypes.create_string_buffer(100), ctypes.c_size_t()
    major, minor = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetName(name, len(name), index)
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), index)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, index)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, index)
    plain = re.sub(r"\s+", " ", name.value.decode(errors="replace")).strip()
    return Device(plain, (major.value, minor.value), total.value)
