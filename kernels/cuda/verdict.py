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

from kernels.cuda.probe import Probe

_logger = logging.getLogger(__name__)
_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 300.0
_PACKAGES = ("torch", "cupy-cuda13x", "cupy", "numpy")


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
    fault = _examined()
    if not fault:
        with contextlib.suppress(OSError):  # a home that cannot be written to: checked each time
            _remember(path, found)
    return fault


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


def _examined() -> str:
    """Run the check in a process of its own."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))),
    }
    command = [sys.executable, "-m", "kernels.cuda.selfcheck"]
    try:
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"a mini-batch on it had not ended after {_TIMEOUT_S:g} s"
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"code {done.returncode}"]
        return f"a mini-batch on it failed ({said[-1]})"
    differs = json.loads(done.stdout.splitlines()[-1])["differs"]
    return f"it does not compute what the CPU does: {', '.join(differs)}" if differs else ""


def _remember(path: Path, found: Probe) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(_identity(found))
    Path(file.name).replace(path)
