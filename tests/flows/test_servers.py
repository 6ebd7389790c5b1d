"""`garden up`, for real: servers on loopback, flows served, one supervisor a state directory, a clean stop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.servers import running_servers
from tests.flows.conftest import TINY, Garden, bare_environment
from tests.flows.up import Up, ask, free_ports, garden, run_command, up_command


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up.start(tmp_path_factory.mktemp("up"))
    yield running
    running.kill()


def test_nothing_listens_beyond_loopback(up: Up) -> None:
    processes = [psutil.Process(up.process.pid), *psutil.Process(up.process.pid).children(recursive=True)]
    listening = {c.laddr.ip for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:9"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Origin": "{own}"}, 200),
        ({}, 200),
    ],
)
def test_a_foreign_page_cannot_use_prefect(up: Up, headers: dict[str, str], status: int) -> None:
    sent = {name: value.format(own=up.prefect) for name, value in headers.items()}
    assert ask(f"{up.prefect}/api/flow_runs/count", {}, headers=sent)[0] == status
    assert ask(f"{up.prefect}/v2/", headers=sent)[0] == status


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Host": "evil.example:80"}]
)
def test_a_foreign_page_cannot_use_mlflow(up: Up, headers: dict[str, str]) -> None:
    search = f"{up.mlflow}/api/2.0/mlflow/experiments/search"
    assert ask(search, {"max_results": 1}, headers=headers)[0] == 403
    assert ask(search, {"max_results": 1})[0] == 200


def test_a_second_start_says_so(up: Up) -> None:
    for more in ((), ("--detach",)):
        prefect_port, mlflow_port = free_ports(2)
        done = run_command(up_command(up.state, prefect_port, mlflow_port, *more))
        assert done.returncode == 3
        assert "run already" in done.stderr
        assert up.prefect in done.stderr


def test_a_port_in_use_is_exit_code_3(up: Up, tmp_path: Path) -> None:
    done = run_command(up_command(tmp_path, up.ports[0], free_ports(1)[0]))
    assert done.returncode == 3
    assert f"port {up.ports[0]} cannot be used" in done.stderr
    assert str(up.children()["prefect"].pid) in done.stderr
    assert "--prefect-port" in done.stderr


def test_status_says_where_they_are(up: Up, tmp_path: Path) -> None:
    done = run_command(garden("status", "--state-dir", str(up.state), "--json"))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["answers"] == {"prefect": True, "mlflow": True, "flows": True}
    assert (told["prefect"], told["mlflow"], told["pid"]) == (up.prefect, up.mlflow, up.process.pid)
    nothing = run_command(garden("status", "--state-dir", str(tmp_path)))
    assert (nothing.returncode, nothing.stdout) == (3, f"no servers run for {tmp_path}; garden up starts them\n")


def test_a_run_from_the_command_line_reports_to_the_servers(up: Up) -> None:
    assert running_servers(up.state) is not None
    summary = Garden(up.state, bare_environment()).summary("demo", "--until", "ingest", overrides=TINY)
    assert summary["mlflow_run_url"].startswith(up.mlflow)
    assert up.run(summary["prefect_flow_run_id"])["state_type"] == "COMPLETED"
    (tracked,) = up.tracked(summary["prefect_flow_run_id"])
    assert tracked["info"]["status"] == "FINISHED"


def test_a_deployment_runs_and_leaves_links_and_a_summary(up: Up) -> None:
    run_id = up.submit("prepare_graph")
    assert up.wait(run_id)["state_type"] == "COMPLETED", (up.state / "logs" / "serve.log").read_text()
    artifacts = up.artifacts(run_id)
    assert "| ingest |" in artifacts["summary"]
    assert up.mlflow in artifacts["mlflow-run"]


def test_a_training_is_cancelled_and_gives_its_slot_back(up: Up) -> None:
    run_id = up.in_training()
    assert up.slots() == 1
    up.set_state(run_id, type="CANCELLING")
    # Within 5 s where nothing else runs beside it: tests/ui asserts that. Prefect looks each 3 s.
    up.wait(run_id, "CANCELLED", timeout_s=20)
    assert up.tracked(run_id)[0]["info"]["status"] == "KILLED"
    assert up.slots() == 0


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"dataset": "cora", "epoch": 5}, "epoch"),
        ({"dataset": "korra"}, "korra"),
        ({"epochs": 0}, "less than the minimum"),
        ({"epochs": "ten"}, "not valid"),
        ({"fanouts": "ten"}, "does not match"),
    ],
)
def test_what_a_form_does_not_know_is_refused(up: Up, config: dict[str, object], why: str) -> None:
    path = f"{up.prefect}/api/deployments/{up.deployment('pipeline')['id']}/create_flow_run"
    status, answer = ask(path, {"parameters": {"config": config}, "state": {"type": "SCHEDULED"}})
    assert status == 409, answer
    assert why in str(answer)


def test_the_nightly_schedule_is_off(up: Up) -> None:
    (schedule,) = up.deployment("prepare_graph", "nightly")["schedules"]
    assert (schedule["schedule"]["cron"], schedule["active"]) == ("0 3 * * *", False)


def test_it_stops_cleanly_and_at_once(up: Up) -> None:
    children = psutil.Process(up.process.pid).children(recursive=True)
    done = run_command(garden("down", "--state-dir", str(up.state)))
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
    output, _ = up.process.communicate(timeout=60)
    assert up.process.returncode == 0
    assert output.endswith("stopped\n")
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    assert running_servers(up.state) is None
    again = run_command(garden("down", "--state-dir", str(up.state)))
    assert (again.returncode, again.stdout) == (0, f"no servers run for {up.state}\n")
