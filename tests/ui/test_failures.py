"""What goes wrong with real servers: states are true afterwards, slots free, nothing is lost, the next run succeeds."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.flows.up import Up, wait_for

pytestmark = pytest.mark.full
_LEASE_S = 60  # how long a slot outlives a process that was killed


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up.start(tmp_path_factory.mktemp("up"))
    yield running
    running.kill()


def mlflow_status(up: Up, run_id: str) -> str:
    return str(up.tracked(run_id)[0]["info"]["status"])


def reused(up: Up, run_id: str) -> list[str]:
    """Which stages the summary says were reused."""
    rows = [line.split("|") for line in up.artifacts(run_id)["summary"].splitlines() if line.count("|") == 6]
    return [row[1].strip() for row in rows if row[4].strip() == "yes"]


def metric(up: Up, run_id: str, name: str) -> list[int]:
    """Steps of one metric of a run, in order."""
    found = up.tracked(run_id)[0]["info"]["run_id"]
    history = up.mlflow_api(f"/metrics/get-history?run_id={found}&metric_key={name}&max_results=10000")
    return sorted(int(point.get("step", 0)) for point in history["metrics"])


def expect_slots_free(up: Up, timeout_s: float = 5) -> None:
    wait_for(lambda: up.slots() == 0, timeout_s, "the slot of the GPU is free")


def retry(up: Up, run_id: str) -> None:
    """Press Retry."""
    up.set_state(run_id, type="SCHEDULED", name="AwaitingRetry", message="Retry from the UI")


def test_a_training_is_cancelled_within_5_s_and_goes_on_when_it_is_retried(up: Up) -> None:
    run_id = up.in_training(epochs=300)
    assert up.slots() == 1
    start = time.monotonic()
    up.set_state(run_id, type="CANCELLING")
    up.wait(run_id, "CANCELLED", timeout_s=10)
    took_s = time.monotonic() - start
    assert took_s < 5, f"{took_s:.1f} s"
    assert mlflow_status(up, run_id) == "KILLED"
    expect_slots_free(up)
    retry(up, run_id)
    up.wait(run_id, "COMPLETED")
    assert reused(up, run_id) == ["ingest", "reorder", "profile", "cache"]
    assert metric(up, run_id, "train/loss") == list(range(300))
    expect_slots_free(up)


def test_a_run_that_waits_for_the_gpu_is_cancelled_within_5_s(up: Up) -> None:
    up.api("/v2/concurrency_limits/increment", {"names": ["gpu"], "slots": 1, "mode": "concurrency"})
    run_id = up.submit("pipeline", "training.epochs=300")
    wait_for(lambda: "waiting for a slot of 'gpu'" in up.logs(run_id), 90, "it waits for the GPU")
    start = time.monotonic()
    up.set_state(run_id, type="CANCELLING")
    up.wait(run_id, "CANCELLED", timeout_s=10)
    took_s = time.monotonic() - start
    assert took_s < 5, f"{took_s:.1f} s"
    assert up.slots() == 1, "it must not give back what it never had"
    up.api("/v2/concurrency_limits/decrement", {"names": ["gpu"], "slots": 1, "mode": "concurrency"})
    assert mlflow_status(up, run_id) == "KILLED"


def test_a_flow_process_that_is_killed_has_crashed_and_goes_on_when_it_is_retried(up: Up) -> None:
    run_id = up.in_training(epochs=301)
    up.process_of(run_id).kill()
    up.wait(run_id, "CRASHED", timeout_s=20)
    wait_for(lambda: mlflow_status(up, run_id) == "KILLED", 40, "MLflow says that it was killed")
    expect_slots_free(up, _LEASE_S + 30)
    retry(up, run_id)
    up.wait(run_id, "COMPLETED")
    assert reused(up, run_id) == ["ingest", "reorder", "profile", "cache"]
    assert metric(up, run_id, "train/loss") == list(range(301))
    expect_slots_free(up)


def test_a_prefect_server_that_dies_in_mid_run_is_started_again_and_the_run_ends_well(up: Up) -> None:
    run_id = up.in_training(epochs=1500)
    died = up.children()["prefect"]
    died.kill()
    wait_for(lambda: up.children().get("prefect", died) != died, 10, "it is started again")
    wait_for(up.is_healthy, 60, "it answers")
    up.wait(run_id, "COMPLETED", timeout_s=200)
    assert mlflow_status(up, run_id) == "FINISHED"
    assert metric(up, run_id, "train/loss") == list(range(1500))
    expect_slots_free(up)
    assert up.wait(up.submit("pipeline"))["state_type"] == "COMPLETED"


def test_an_mlflow_server_that_is_away_for_30_s_costs_nothing(up: Up) -> None:
    run_id = up.in_training(epochs=1501)
    server = up.children()["mlflow"]
    processes = [server, *server.children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        time.sleep(30)
    finally:
        for process in processes:
            process.resume()
    up.wait(run_id, "COMPLETED", timeout_s=200)
    assert mlflow_status(up, run_id) == "FINISHED"
    assert metric(up, run_id, "train/loss") == list(range(1501))
    assert list((up.state / "mlflow" / "unsent").glob("*")) == []
    expect_slots_free(up)


def test_serving_that_dies_is_started_again_and_leaves_no_zombie(up: Up) -> None:
    run_id = up.in_training(epochs=1502)
    serve, training = up.children()["serve"], up.process_of(run_id)
    serve.send_signal(signal.SIGKILL)
    training.kill()
    up.wait(run_id, "CRASHED", timeout_s=60)
    assert mlflow_status(up, run_id) == "KILLED"
    expect_slots_free(up, _LEASE_S + 30)
    assert up.wait(up.submit("pipeline"))["state_type"] == "COMPLETED"


def test_a_supervisor_that_is_killed_takes_all_with_it_and_the_next_start_mends_the_rest(up: Up) -> None:
    run_id = up.in_training(epochs=1503)
    left = psutil.Process(up.process.pid).children(recursive=True)
    up.kill()
    # All hear of it; what waits for the server that died with them, the next start ends.
    _, alive = psutil.wait_procs(left, timeout=20)
    assert {"prefect.engine", "flows.deployments"} >= {process.cmdline()[2] for process in alive}
    again = Up.start(up.state, up.ports)
    try:
        assert psutil.wait_procs(left, timeout=5)[1] == []
        assert again.run(run_id)["state_type"] in ("CRASHED", "CANCELLED")
        assert mlflow_status(again, run_id) == "KILLED"
        expect_slots_free(again)
        retry(again, run_id)
        again.wait(run_id, "COMPLETED", timeout_s=200)
        assert metric(again, run_id, "train/loss") == list(range(1503))
        again.stop()
    finally:
        again.kill()
