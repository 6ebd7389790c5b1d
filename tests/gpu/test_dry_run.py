from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.cuda.probe import probe
from tests.cudasim.build import GXX
from tests.cudasim.launcher import SimLauncher
from tests.gpu import on_gpu
from tests.gpu.checks import CHECKS
from tests.gpu.on_gpu import BUDGET_SHARE, FULL, gates

SCRIPT = Path(__file__).parent / "run_on_gpu.sh"


# What a machine that is lent for minutes does not have.
MISSING = ("prefect", "mlflow", "dgl", "pydantic", "polars", "psutil", "hypothesis", "matplotlib")
BARE = f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.split(".")[0] in {MISSING!r} else find(name, *rest)
"""


def _run(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable} | ({} if path is None else {"PYTHONPATH": str(path)})
    return subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, env=environment)


@pytest.mark.skipif(GXX is None, reason="g++ is not installed: the GPU script is NOT tried here")
def test_the_gpu_script_runs_on_the_shim(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    (tmp_path / "sitecustomize.py").write_text(BARE)
    done = _run("--dry-run", "--out", str(out), path=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(out.read_text())
    assert record["dry_run"] is True
    assert record["environment"]["device"] == "host shim"
    assert record == json.loads(done.stdout.splitlines()[-1])
    assert set(record["checks_s"]) == {check.__name__ for check in CHECKS}
    assert {"check_mini_batches", "check_training", "check_before_use"} <= set(record["checks_s"])
    assert record["failed"] == {}
    figures = record["figures"]
    assert set(figures) >= {"epoch_speedup", "gather_hit_share_of_copy", "gather_miss_share_of_pcie", "loading_s"}
    assert len(figures["sampling_speedup_over_warp_rows"]) == 6
    assert 0 < figures["feature_hit_rate"] < 1
    assert figures["host_bytes_an_epoch"] > 0
    assert len(record["gates"]) == 2


def test_gates_are_those_that_were_set() -> None:
    met = {"epoch_speedup": 2.0, "gather_miss_share_of_pcie": 0.8}
    assert all(gates(met).values())
    for name, value in (("epoch_speedup", 1.9), ("gather_miss_share_of_pcie", 0.79)):
        assert sum(gates(met | {name: value}).values()) == 1
    assert (FULL.nodes, FULL.edges, BUDGET_SHARE) == (10_000_000, 200_000_000, 0.1)


def test_a_check_that_fails_is_noted_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise ValueError("not the CPU's")

    def sound(_: object) -> None:
        pass

    noted: dict[str, dict[str, Any]] = {"failed": {}, "checks_s": {}}
    monkeypatch.setattr(on_gpu, "CHECKS", (broken, sound))
    on_gpu.check_all(SimLauncher(), lambda name, figure, part: noted[part].update({name: figure}))
    assert set(noted["checks_s"]) == {"sound"}
    assert set(noted["failed"]) == {"broken"}
    assert "not the CPU's" in noted["failed"]["broken"]


@pytest.mark.skipif(probe().is_usable, reason="this machine has a GPU")
def test_without_a_gpu_the_script_says_so(tmp_path: Path) -> None:
    done = _run("--out", str(tmp_path / "figures.json"))
    assert done.returncode == 3
    assert "no GPU to use" in done.stderr
    assert not list(tmp_path.iterdir())
