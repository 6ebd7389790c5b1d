"""Killed with -9 in any stage, the next run goes on: nothing half-made is trusted, nothing of the dead stays."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.specs import STAGES
from tasks.tracking import open_client
from tests.flows.conftest import TINY, Garden, bare_environment

LONGER_TRAINING = ("training.epochs=20",)


def start_until(garden: Garden, ready: Callable[[], bool], *overrides: str) -> subprocess.Popen[str]:
    """Start a run and wait for a moment in it."""
    process = garden.start("demo", overrides=(*TINY, *overrides))
    while not ready():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.0005)
    return process


def kill_when(garden: Garden, ready: Callable[[], bool], *overrides: str) -> None:
    """Kill a run, and nothing but it, at a moment."""
    process = start_until(garden, ready, *overrides)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == [], "its Prefect server outlived it"


def is_building(state: Path, stage: str) -> Callable[[], bool]:
    folder = state / "artifacts" / stage
    return lambda: folder.exists() and any(path.suffix == ".partial" for path in folder.iterdir())


@pytest.mark.parametrize(
    "stage", ["ingest", *(pytest.param(name, marks=pytest.mark.full) for name in ("reorder", "profile", "cache"))]
)
def test_a_preparation_stage(tmp_path: Path, first: dict[str, Any], stage: str, prefect_url: str) -> None:
    garden = Garden(tmp_path / "state", bare_environment() | {"PREFECT_API_URL": prefect_url})
    kill_when(garden, is_building(garden.state, stage))
    summary = garden.summary("demo", overrides=TINY)
    reused = [name for name, outcome in summary["stages"].items() if outcome["reused"]]
    assert reused == list(STAGES[: STAGES.index(stage)])
    assert summary["test_accuracy"] == first["test_accuracy"]
    assert summary["tier_bytes"] == first["tier_bytes"]
    assert not list(garden.state.rglob("*.partial"))


def test_training_goes_on_after_the_last_epoch_that_was_finished(demo_garden: Garden, first: dict[str, Any]) -> None:
    checkpoints = demo_garden.state / "checkpoints"
    own_server = Garden(demo_garden.state, bare_environment())
    kill_when(own_server, lambda: any(checkpoints.rglob("checkpoint.pt")), *LONGER_TRAINING)
    summary = demo_garden.summary("demo", overrides=(*TINY, *LONGER_TRAINING))
    assert [stage["reused"] for stage in summary["stages"].values()] == [True] * 4 + [False]
    assert 1 <= summary["resumed_epochs"] < 20
    assert summary["epochs"] == 20
    client = open_client(f"sqlite:///{demo_garden.state / 'mlflow' / 'mlflow.db'}")
    losses = client.get_metric_history(summary["mlflow_run_id"], "train/loss")
    assert sorted(point.step for point in losses) == list(range(20))
    experiment = client.get_run(summary["mlflow_run_id"]).info.experiment_id
    these = "params.`training.epochs` = '20' and attributes.run_name = 'demo'"
    assert sorted(run.info.status for run in client.search_runs([experiment], these)) == ["FINISHED", "KILLED"]
    assert list(checkpoints.iterdir()) == []


def test_a_run_that_is_asked_to_stop_says_how_to_go_on(demo_garden: Garden, first: dict[str, Any]) -> None:
    checkpoints = demo_garden.state / "checkpoints"
    process = start_until(demo_garden, lambda: any(checkpoints.rglob("checkpoint.pt")), "training.epochs=5000")
    process.terminate()
    output, log = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "")
    assert log.splitlines()[-1] == "error: stopped before the end; run the same command again to go on"
    client = open_client(f"sqlite:///{demo_garden.state / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_run(first["mlflow_run_id"]).info.experiment_id
    (run,) = client.search_runs([experiment], "params.`training.epochs` = '5000'")
    assert run.info.status == "KILLED"
    shutil.rmtree(checkpoints)
