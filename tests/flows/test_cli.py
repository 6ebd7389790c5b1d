"""The command line: help that teaches, a table at the end, and one line with the right exit code when it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conf.load import preset_names
from tasks.specs import STAGES
from tests.flows.conftest import ROOT, TINY, Garden, bare_environment

NOBODY = "http://127.0.0.1:9"  # the discard port: nothing listens there


def garden_help(*arguments: str) -> str:
    command = [sys.executable, "-m", "flows.cli", *arguments, "--help"]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout


def test_help_teaches_by_example_and_is_quick() -> None:
    start = time.monotonic()
    text = garden_help()
    assert time.monotonic() - start < 2
    assert "garden run demo" in text
    assert "garden up" in text


def test_help_of_run_names_every_preset_and_option() -> None:
    text = " ".join(garden_help("run").split())
    for word in (*preset_names(), "--set", "--until", "--verify-inputs", "--json"):
        assert word in text, word


def test_the_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, flows.cli; print(sorted({'prefect', 'mlflow', 'torch', 'numba', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"


def test_until_stops_after_a_stage_and_without_json_a_table_ends_the_run(
    demo_garden: Garden, first: dict[str, object]
) -> None:
    before = set((demo_garden.state / "runs").iterdir())
    done = demo_garden.run("demo", "--until", "profile", overrides=(*TINY, "seed=7"))
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    table = {row[0]: row[3] for row in rows if row[:1] and row[0] in STAGES}
    assert table == {"ingest": "reused", "reorder": "reused", "profile": "built"}
    assert "2,000 nodes, 20,000 edges" in done.stdout
    assert "garden up" in done.stdout
    assert all("Task run" not in line and "Flow run" not in line for line in done.stderr.splitlines()), done.stderr
    (folder,) = set((demo_garden.state / "runs").iterdir()) - before
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["test_accuracy"] is None
    assert summary["hit_rates"]["feature"] == {"predicted": None, "measured": None, "oracle": None}
    assert summary["tier_bytes"] == {}


def failure(garden: Garden, *arguments: str, overrides: tuple[str, ...] = ()) -> tuple[int, str]:
    """Exit code and last line of a run that must fail, having said nothing on standard output."""
    done = garden.run(*arguments, overrides=overrides)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "overrides", "expected"),
    [
        (["demo"], ["model.hiden=3"], "error: demo: unknown key 'model.hiden': did you mean 'model.hidden'?"),
        (["dmo"], [], "did you mean 'demo'?"),
        (["demo"], ["data.format=planetoid"], "format 'planetoid' needs data.path"),
    ],
)
def test_a_wrong_configuration_is_exit_code_2(
    tmp_path: Path, arguments: list[str], overrides: list[str], expected: str
) -> None:
    garden = Garden(tmp_path / "state", bare_environment())
    code, line = failure(garden, *arguments, overrides=tuple(overrides))
    assert code == 2
    assert expected in line
    assert not garden.state.exists()


def test_a_missing_argument_is_exit_code_2(tmp_path: Path) -> None:
    assert Garden(tmp_path, bare_environment()).run().returncode == 2


def test_a_missing_input_file_is_exit_code_2(demo_garden: Garden, tmp_path: Path) -> None:
    code, line = failure(demo_garden, "cora", overrides=(f"data.path={tmp_path}",))
    assert code == 2
    assert str(tmp_path) in line


@pytest.mark.full  # the error itself is tested with the stages, exit codes above
def test_a_budget_too_small_is_exit_code_2_and_names_one_that_would_do(demo_garden: Garden) -> None:
    code, line = failure(demo_garden, "demo", overrides=(*TINY, "data.demo.seed=5", "host_budget=1kB"))
    assert code == 2
    assert "set host_budget to at least" in line


def test_a_state_directory_that_is_a_file_is_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, line = failure(Garden(tmp_path / "file" / "state", bare_environment()), "demo")
    assert (code, line) == (2, f"error: {tmp_path / 'file' / 'state'}: Not a directory; choose another path")


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("MLFLOW_TRACKING_URI", "no MLflow server answers"), ("PREFECT_API_URL", "no Prefect server answers")],
)
def test_a_server_away_at_the_start_is_exit_code_3(tmp_path: Path, variable: str, expected: str) -> None:
    garden = Garden(tmp_path / "state", bare_environment() | {variable: NOBODY})
    code, line = failure(garden, "demo", overrides=TINY)
    assert code == 3
    assert f"{expected} at {NOBODY}" in line
