"""Whether this machine's GPU was seen to compute what the CPU computes: asked once, then remembered."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kernels.cuda.probe import VISIBLE, Probe, visible_device

_logger = logging.getLogger(__name__)
_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 300.0
_PACKAGES = ("torch", "cupy-cuda13x", "cupy-cuda12x", "cupy", "numpy")


def fault_of(found: Probe) -> str:
    """What the GPU gets wrong, in a sentence; empty where it agrees with the CPU.

    The first time it takes up to a minute, most of it compilation. That a GPU agrees is remembered below
    `XDG_CACHE_HOME` (or `~/.cache`) for its name, driver, PyTorch, CuPy and these sources; that it does not is looked
    into again each time.

    Parameters
    ----------
    found : Probe
        A usable one.
    """
    path = _memory_of(found)
    if path.exists():
        return ""
    _logger.info("checking the GPU against the CPU, once for this driver and these libraries")
    fault = _fault_of_devices(len(found.devices))
    if not fault:
        with contextlib.suppress(OSError):  # a home that cannot be written to: checked each time
            _remember(path, found)
    return fault


def fault_of_pinning() -> str:
    """What keeps host memory from being pinned; empty where nothing does. Asked of the driver, in a process."""
    return _examined(visible_device(0), "--pinning")


def _fault_of_devices(count: int) -> str:
    """What the first GPU that does not agree gets wrong: workers take the others."""
    for rank in range(count):
        fault = _examined(visible_device(rank))
        if fault:
            return f"GPU {rank}: {fault} (CUDA_VISIBLE_DEVICES leaves it out)" if rank else fault
    return ""


def _memory_of(found: Probe) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "garden" / f"gpu-agrees-{hashlib.sha256(_identity(found).encode()).hexdigest()[:20]}.json"


def _identity(found: Probe) -> str:
    """Everything that the outcome may depend on."""
    digest = hashlib.sha256()
    for path in sorted([*_ROOT.glob("kernels/**/*.py"), *_ROOT.glob("kernels/cuda/src/*")]):
        digest.update(path.read_bytes())
    versions = {name: _version(name) for name in _PACKAGES}
    devices = [[device.name, device.capability] for device in found.devices]
    return json.dumps([devices, found.driver, versions, digest.hexdigest()])


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _examined(device: str, *options: str) -> str:
    """Run the check in a process of its own, which sees one GPU and takes no module from the caller's directory."""
    environment = os.environ | {
        VISIBLE: device,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))),
    }
    command = [sys.executable, "-P", "-m", "kernels.cuda.selfcheck", *options]
    try:
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"its check had not ended after {_TIMEOUT_S:g} s"
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"code {done.returncode}"]
        return f"its check failed ({said[-1]})"
    fault: str = json.loads(done.stdout.splitlines()[-1])["fault"]
    return fault


def _remember(path: Path, found: Probe) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(_identity(found))
    Path(file.name).replace(path)
