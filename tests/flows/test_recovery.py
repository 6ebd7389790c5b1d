"""Killed with -9 in any stage, the next run goes on: nothing half-made is trusted, nothing of the dead stays."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tasks.checkpoint import load_model
from tasks.specs import STAGES
from tasks.tracking import open_client
from tests.flows.conftest import ROOT, TINY, Garden, bare_environment
from tests.tasks.test_tracking import Server

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


class WarmGarden:
    """Starts `garden run demo` in processes forked from one that has imported everything."""

    def __init__(self, folder: Path, prefect_url: str) -> None:
        self.state, self._output = folder / "state", folder / "output"
        environment = bare_environment() | {"PREFECT_API_URL": prefect_url, "PREFECT_HOME": str(folder / "prefect")}
        command = [sys.executable, "-m", "tests.flows.warm_garden"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self._answer() != 1:
            self.close()
            pytest.fail("forking a process with threads of Python's is not safe")

    def start(self) -> int:
        sets = [part for override in (f"state_dir={self.state}", *TINY) for part in ("--set", override)]
        return self._ask(json.dumps({"arguments": ["run", "demo", "--json", *sets], "output": str(self._output)}))

    def wait(self) -> int:
        code = self._ask("wait")
        assert code in (0, -signal.SIGKILL), self._output.read_text()
        return code

    def summary(self) -> dict[str, Any]:
        self.start()
        assert self.wait() == 0
        summary: dict[str, Any] = json.loads(self._output.read_text().splitlines()[-1])
        return summary

    def kill_in(self, stage: str, delay_s: float) -> bool:
        """Kill a run so long after it came to a stage; whether it was still at work.

        On a busy machine the stage, and the run, may be over before we look.
        """
        child, folder = self.start(), self.state / "artifacts" / stage
        while not folder.exists() and Path(f"/proc/{child}/exe").exists():
            time.sleep(0.0005)
        time.sleep(delay_s)
        os.kill(child, signal.SIGKILL)
        return self.wait() == -signal.SIGKILL

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, line: str) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@pytest.fixture
def warm_garden(tmp_path: Path, prefect_url: str) -> Iterator[WarmGarden]:
    garden = WarmGarden(tmp_path, prefect_url)
    yield garden
    garden.close()


def kill_somewhere_in(garden: WarmGarden, stage: str, longest_s: float, rng: random.Random) -> None:
    """Kill one run in a stage; one that had ended before is undone and killed sooner."""
    while not garden.kill_in(stage, rng.uniform(0, longest_s)):
        longest_s /= 2
        for later in STAGES[STAGES.index(stage) :]:
            shutil.rmtree(garden.state / "artifacts" / later)
        if stage == "reorder":  # what it is made of was collected
            shutil.rmtree(garden.state / "artifacts" / "ingest")


def same_result(one: Path, other: Path) -> None:
    """The same artifacts under the same digests, with the same stores and the same weights to the bit."""
    for stage in ("reorder", "train"):
        (a,), (b,) = (list((state / "artifacts" / stage).glob("[!.]*")) for state in (one, other))
        assert a.name == b.name
        if stage == "reorder":
            assert (a / "graph.h5").read_bytes() == (b / "graph.h5").read_bytes()
        else:
            weights, expected = (load_model(path / "model").state_dict() for path in (a, b))
            assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.full)])
def test_killed_at_random_moments_of_every_stage(
    kills: int, tmp_path: Path, warm_garden: WarmGarden, request: pytest.FixtureRequest
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    request.node.add_report_section("call", "seed", str(seed))
    rng = random.Random(seed)
    expected, kept = warm_garden.summary(), tmp_path / "undisturbed"
    warm_garden.state.rename(kept)
    for _ in range(kills):
        shutil.rmtree(warm_garden.state, ignore_errors=True)
        for stage in STAGES:
            kill_somewhere_in(warm_garden, stage, expected["stages"][stage]["seconds"], rng)
        summary = warm_garden.summary()
        for key in ("test_accuracy", "valid_accuracy", "tier_bytes", "hit_rates", "epochs"):
            assert summary[key] == expected[key], key
        same_result(warm_garden.state, kept)
        assert not list(warm_garden.state.rglob("*.partial"))
        assert not list((warm_garden.state / "checkpoints").iterdir())


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


@pytest.mark.full  # the outbox is tested with a real server in tests/tasks; here its half-minute of patience counts
def test_mlflow_away_in_mid_run_never_stops_training(tmp_path: Path, prefect_url: str) -> None:
    server = Server(tmp_path)
    server.start()
    environment = {"PREFECT_API_URL": prefect_url, "MLFLOW_TRACKING_URI": server.uri}
    garden = Garden(tmp_path / "state", bare_environment() | environment)
    checkpoints = garden.state / "checkpoints"
    try:
        process = start_until(garden, lambda: any(checkpoints.rglob("checkpoint.pt")), *LONGER_TRAINING)
    finally:
        server.stop()
    _, log = process.communicate(timeout=200)
    assert process.returncode == 0, log
    (unsent,) = (garden.state / "mlflow" / "unsent").iterdir()
    assert str(unsent) in log
    assert '"train/loss"' in unsent.read_text()
    assert "Traceback" not in log
