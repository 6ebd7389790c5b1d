"""Looks at this machine: what a run would use, what is missing, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import kernels
from kernels.cuda.probe import probe
from kernels.cuda.verdict import fault_of, fault_of_pinning
from storage.blocks.probe import probe_direct_io
from tasks.budgets import available_memory, format_bytes

Status = Literal["ok", "note", "fail"]
_PACKAGES = ("numpy", "numba", "h5py", "torch", "polars", "scipy", "prefect", "mlflow", "pydantic")
_OPTIONAL = {"cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"), "dgl": ("dgl",)}
_LITTLE_MEMORY = 4 << 30
_LITTLE_DISK = 10 << 30


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's."""

    topic: str
    """What was looked at."""
    status: Status
    """`fail` keeps runs from working, `note` is worth knowing."""
    found: str
    """What was found."""
    advice: str = ""
    """What to do; empty where there is nothing to do."""


def examine(state_dir: Path, ports: dict[str, int], io_seconds: float = 1.0) -> list[Finding]:
    """Look at everything, in the order of what a first run needs.

    Parameters
    ----------
    state_dir
        Where runs would write.
    ports
        Ports of the servers of `garden up`, by option.
    io_seconds
        How long to measure reading.
    """
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python,
        _packages,
        _cores_and_memory,
        lambda: _disk(state_dir, io_seconds),
        _kernel_cache,
        _backend,
        lambda: _ports(ports),
    )
    return [finding for check in checks for finding in check()]


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    fits = (3, 11) <= sys.version_info[:2] < (3, 13)
    advice = "" if fits else "use Python 3.11 or 3.12: make a virtual environment with one of them"
    yield Finding("python", "ok" if fits else "fail", f"{version} at {sys.executable}", advice)


def _packages() -> Iterator[Finding]:
    versions = {name: _version(name) for name in _PACKAGES}
    missing = [name for name, version in versions.items() if version is None]
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    advice = f"install {', '.join(missing)}: `make run`, or pip install -c constraints.txt -e ." if missing else ""
    yield Finding("packages", "fail" if missing else "ok", found, advice)
    for module, names in _OPTIONAL.items():
        version = next(filter(None, map(_version, names)), None)
        extra = "cuda" if module == "cupy" else module
        advice = "" if version else f"only if you want it: pip install -e '.[{extra}]'"
        yield Finding(f"optional: {module}", "ok" if version else "note", version or "not installed", advice)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cores_and_memory() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    advice = "" if cores > 1 else "sampling and training share one core: give it two or more"
    yield Finding("cores", "ok" if cores > 1 else "note", f"{cores} for this process", advice)
    free = available_memory()
    advice = "" if free >= _LITTLE_MEMORY else "set host_budget, or free some: stages check what they need beforehand"
    yield Finding("memory", "ok" if not advice else "note", f"{format_bytes(free)} free", advice)


def _disk(state_dir: Path, io_seconds: float) -> Iterator[Finding]:
    folder = next(path for path in (state_dir.absolute(), *state_dir.absolute().parents) if path.exists())
    if not folder.is_dir():
        yield Finding("disk", "fail", f"{folder} is a file", "set state_dir to a directory")
        return
    free = shutil.disk_usage(folder).free
    advice = "" if free >= _LITTLE_DISK else "set state_dir to a larger disk, or run `garden gc`"
    yield Finding("disk", "ok" if not advice else "note", f"{format_bytes(free)} free at {folder}", advice)
    try:
        io = probe_direct_io(folder, io_seconds)
    except OSError as error:
        reason = f"{folder} cannot be written to ({error.strerror})"
        yield Finding("direct I/O", "fail", reason, "set state_dir to a directory that you may write to")
        return
    rate = f"{io.bytes_per_s / 1e6:,.0f} MB/s, reading 1 MiB at a time"
    advice = "" if io.supported else "reads go through the page cache: set state_dir to a local disk (ext4, xfs)"
    how = "works" if io.supported else "is refused"
    yield Finding("direct I/O", "ok" if io.supported else "note", f"{how} at {folder}: {rate}", advice)


def _kernel_cache() -> Iterator[Finding]:
    named = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(named) if named else Path(next(iter(kernels.__path__))) / "cpu"
    compiled = len(list(folder.rglob("*.nbi"))) if folder.is_dir() else 0
    base = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    if not os.access(base, os.W_OK):
        advice = "set NUMBA_CACHE_DIR to a directory that you may write to: kernels compile anew in each process"
        yield Finding("kernel cache", "note", f"{base} cannot be written to", advice)
        return
    advice = "" if compiled else "the first run compiles them, which takes half a minute"
    yield Finding("kernel cache", "ok" if compiled else "note", f"{compiled} compiled kernels in {folder}", advice)


def _backend() -> Iterator[Finding]:
    found = probe()
    if not found.devices:
        yield Finding("backend", "ok", f"cpu (Numba); no GPU to use: {found.sentence}")
        return
    names = ", ".join(device.name for device in found.devices)
    if not found.is_usable:
        yield Finding("backend", "note", f"cpu (Numba): found {names}, but {found.missing}", found.advice)
        return
    fault = fault_of(found)
    if fault:
        advice = (
            "runs train on the CPU: pip install --upgrade 'garden-gnn[cuda]' (CuPy, its compiler and its headers) and "
            "update the driver; if that does not help, report this line"
        )
        yield Finding("backend", "note", f"cpu (Numba): found {names}, but {fault}", advice)
        return
    memory = format_bytes(found.devices[0].memory_bytes)
    yield Finding("backend", "ok", f"cuda: {names}, {memory}; computes a mini-batch as the CPU does")
    if len(found.devices) > 1:
        advice = "if training.workers fails or hangs on them, set training.workers=1 and report it"
        yield Finding("several GPUs", "note", "gradients meet through NCCL, which was not tried on GPUs yet", advice)
    refused = fault_of_pinning()
    if refused:
        advice = "runs go on without, which is slower (the CPU copies what the GPU misses): WSL 2 pins little"
        yield Finding("pinned memory", "note", f"host memory cannot be pinned: {refused}", advice)


def _ports(ports: dict[str, int]) -> Iterator[Finding]:
    for option, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                advice = f"if that is not `garden up`, start it with another {option}"
                yield Finding(f"port {port}", "note", f"in use ({error.strerror})", advice)
            else:
                yield Finding(f"port {port}", "ok", "free")
