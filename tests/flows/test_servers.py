"""`garden up`, for real: servers on loopback, flows served, one supervisor a state directory, a clean stop."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.servers import running_servers
from tests.flows.conftest import ROOT, TINY, Garden, bare_environment


@dataclass
class Up:
    """A running `garden up`."""

    process: subprocess.Popen[str]
    state: Path
    prefect: str
    mlflow: str


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def up_command(state: Path, prefect_port: int, mlflow_port: int) -> list[str]:
    ports = ["--prefect-port", str(prefect_port), "--mlflow-port", str(mlflow_port)]
    return [sys.executable, "-m", "flows.cli", "up", "--state-dir", str(state), *ports]


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.loads(response.read())


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    state = tmp_path_factory.mktemp("up")
    prefect_port, mlflow_port = free_ports(2)
    process = subprocess.Popen(
        up_command(state, prefect_port, mlflow_port),
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=bare_environment(),
    )
    assert process.stdout is not None
    lines: list[str] = []
    while "logs" not in (line := process.stdout.readline()):
        assert line, (lines, [log.read_text() for log in (state / "logs").glob("*.log")])
        lines.append(line)
    try:
        yield Up(process, state, f"http://127.0.0.1:{prefect_port}", f"http://127.0.0.1:{mlflow_port}")
    finally:
        process.kill()
        process.communicate()


def fails(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=bare_environment(), check=False)
    return done.returncode, done.stderr


def test_nothing_listens_beyond_loopback(up: Up) -> None:
    processes = [psutil.Process(up.process.pid), *psutil.Process(up.process.pid).children(recursive=True)]
    listening = {c.laddr.ip for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def test_a_second_start_says_so(up: Up) -> None:
    code, error = fails(up_command(up.state, *free_ports(2)))
    assert code == 3
    assert "run already" in error
    assert up.prefect in error


def test_a_port_in_use_is_exit_code_3(up: Up, tmp_path: Path) -> None:
    port = int(up.prefect.rpartition(":")[2])
    code, error = fails(up_command(tmp_path, port, *free_ports(1)))
    assert code == 3
    assert f"port {port} cannot be used" in error
    assert "--prefect-port" in error


def test_a_run_from_the_command_line_reports_to_the_servers(up: Up) -> None:
    assert running_servers(up.state) is not None
    summary = Garden(up.state, bare_environment()).summary("demo", "--until", "ingest", overrides=TINY)
    assert summary["mlflow_run_url"].startswith(up.mlflow)
    run = call(f"{up.prefect}/api/flow_runs/{summary['prefect_flow_run_id']}")
    assert run["state_type"] == "COMPLETED"
    tracked = call(f"{up.mlflow}/api/2.0/mlflow/runs/get?run_id={summary['mlflow_run_id']}")["run"]
    assert tracked["info"]["status"] == "FINISHED"


def test_a_deployment_runs_and_leaves_links_and_a_summary(up: Up) -> None:
    deadline = time.monotonic() + 60
    while True:
        names = {d["name"]: d for d in call(f"{up.prefect}/api/deployments/filter", {})}
        flows = call(f"{up.prefect}/api/deployments/filter", {"flows": {"name": {"any_": ["prepare_graph"]}}})
        if flows and flows[0]["status"] == "READY":
            break
        assert time.monotonic() < deadline, names
        time.sleep(0.2)
    config = flows[0]["parameters"]["config"]
    assert config["state_dir"] == str(up.state)
    config["data"]["demo"] |= {"nodes": 500, "edges": 3000}
    run = call(
        f"{up.prefect}/api/deployments/{flows[0]['id']}/create_flow_run",
        {"parameters": {"config": config}, "state": {"type": "SCHEDULED"}},
    )
    while (state := call(f"{up.prefect}/api/flow_runs/{run['id']}")["state_type"]) not in ("COMPLETED", "FAILED"):
        assert time.monotonic() < deadline, state
        time.sleep(0.2)
    assert state == "COMPLETED", (up.state / "logs" / "serve.log").read_text()
    artifacts = call(f"{up.prefect}/api/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
    by_key = {artifact["key"]: artifact["data"] for artifact in artifacts}
    assert "| ingest |" in by_key["summary"]
    assert up.mlflow in by_key["mlflow-run"]


def test_it_stops_cleanly_and_at_once(up: Up) -> None:
    children = psutil.Process(up.process.pid).children(recursive=True)
    up.process.send_signal(signal.SIGTERM)
    output, _ = up.process.communicate(timeout=60)
    assert up.process.returncode == 0
    assert output.endswith("stopped\n")
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    assert running_servers(up.state) is None
