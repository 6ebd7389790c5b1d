from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cuda.probe import probe
from tests.cudasim.build import GXX

SCRIPT = Path(__file__).parent / "run_on_gpu.sh"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, env=environment)


@pytest.mark.skipif(GXX is None, reason="g++ is not installed: the GPU script is NOT tried here")
def test_the_gpu_script_runs_on_the_shim(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    done = _run("--dry-run", "--out", str(out))
    assert done.returncode == 0, done.stderr
    record = json.loads(out.read_text())
    assert record["dry_run"] is True
    assert record["environment"]["device"] == "host shim"
    assert set(record["figures"]) >= {"epoch_speedup", "gather_hit_share_of_copy", "gather_miss_share_of_pcie"}
    assert len(record["figures"]["sampling_speedup_over_warp_rows"]) == 6


@pytest.mark.skipif(probe().is_usable, reason="this machine has a GPU")
def test_without_a_gpu_the_script_says_so(tmp_path: Path) -> None:
    done = _run("--out", str(tmp_path / "figures.json"))
    assert done.returncode == 3
    assert "no GPU to use" in done.stderr
    assert not list(tmp_path.iterdir())
