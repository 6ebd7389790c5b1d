"""Run every benchmark of this folder, one after another: `make bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.benchmarks.report import ROOT

_ASIDE = {"bench_billion"}
"""Takes hours, and a disk: `make bench-billion`."""


def main() -> None:
    """Run each `bench_*.py` in its own process; stop at the first that fails."""
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        if path.stem in _ASIDE:
            continue
        print(f"== {path.stem}", flush=True)
        subprocess.run([sys.executable, "-m", f"tests.benchmarks.{path.stem}"], check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
