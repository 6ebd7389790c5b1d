"""Run every benchmark of this folder, one after another: `make bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.benchmarks.report import ROOT


def main() -> None:
    """Run each `bench_*.py` in its own process; stop at the first that fails."""
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        print(f"== {path.stem}", flush=True)
        subprocess.run([sys.executable, "-m", f"tests.benchmarks.{path.stem}"], check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
