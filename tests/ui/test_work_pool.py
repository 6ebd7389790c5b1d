"""`prefect.yaml`: what `garden up` serves, for a server and workers of one's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.flows.conftest import ROOT, bare_environment
from tests.flows.up import Up

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up.start(tmp_path_factory.mktemp("up"))
    yield running
    running.kill()


def test_a_worker_runs_what_it_names(up: Up) -> None:
    environment: dict[str, Any] = bare_environment() | {
        "PREFECT_API_URL": f"{up.prefect}/api",
        "MLFLOW_TRACKING_URI": up.mlflow,
        "GARDEN_STATE_DIR": str(up.state),
        "PREFECT_HOME": str(up.state / "worker"),
    }
    prefect = [sys.executable, "-m", "prefect"]
    for command in (["work-pool", "create", "garden", "--type", "process"], ["--no-prompt", "deploy", "--all"]):
        done = subprocess.run([*prefect, *command], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    worker = subprocess.Popen([*prefect, "worker", "start", "--pool", "garden"], cwd=ROOT, env=environment)
    try:
        run_id = up.submit("pipeline", name="pool")
        assert up.wait(run_id, timeout_s=180)["state_type"] == "COMPLETED", up.logs(run_id)
        assert up.tracked(run_id)[0]["info"]["status"] == "FINISHED"
    finally:
        worker.terminate()
        worker.wait(60)
