"""How every benchmark reports: figures beside the hardware, versions, date and commit they belong to."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("numpy", "numba", "torch", "polars", "h5py", "prefect", "mlflow")


def environment() -> dict[str, Any]:
    """Describe this machine, its package versions, the date and the commit."""
    cpu = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine())
    git = ("git", "-C", str(ROOT))
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    dirty = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout.strip()
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "date": datetime.date.today().isoformat(),
        "commit": commit + ("+changes" if dirty else ""),
    }


def _cpuinfo() -> list[str]:
    return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()


def record(name: str, figures: dict[str, Any]) -> None:
    """Write `results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    content = {"benchmark": name, "environment": environment(), "figures": figures}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def publish(name: str, figures: dict[str, Any]) -> None:
    """Write `results/NAME.json` and end standard output with the figures as one JSON line."""
    record(name, figures)
    print(json.dumps(figures), flush=True)
