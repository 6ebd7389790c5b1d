"""`garden up` in a process of its own, and what tests ask of its servers."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from flows.answering import answers
from tests.flows.conftest import ROOT, TINY, bare_environment

T = TypeVar("T")
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def garden(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flows.cli", *arguments]


def up_command(state: Path, prefect_port: int, mlflow_port: int, *more: str) -> list[str]:
    ports = ["--prefect-port", str(prefect_port), "--mlflow-port", str(mlflow_port)]
    return garden("up", "--state-dir", str(state), *ports, *more)


def run_command(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=bare_environment(), check=False)


def ask(
    url: str, body: Any = None, *, method: str | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Status and answer of a server, whatever the status is."""
    data = None if body is None else json.dumps(body).encode()
    every = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data=data, method=method, headers=every)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            status, text = response.status, response.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text.decode(errors="replace")


def wait_for(question: Callable[[], T], timeout_s: float, what: str) -> T:
    """Ask again and again until the answer is a true one."""
    deadline = time.monotonic() + timeout_s
    while not (answer := question()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.1)
    return answer


@dataclass
class Up:
    """A running `garden up`."""

    process: subprocess.Popen[str]
    state: Path
    ports: tuple[int, int]

    @classmethod
    def start(cls, state: Path, ports: Sequence[int] | None = None) -> Up:
        first, second = ports or free_ports(2)
        process = subprocess.Popen(
            up_command(state, first, second), stdout=subprocess.PIPE, text=True, cwd=ROOT, env=bare_environment()
        )
        assert process.stdout is not None
        lines: list[str] = []
        while "logs " not in (line := process.stdout.readline()):
            assert line, (lines, [log.read_text()[-3000:] for log in (state / "logs").glob("*.log")])
            lines.append(line)
        return cls(process, state, (first, second))

    @property
    def prefect(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def mlflow(self) -> str:
        return f"http://127.0.0.1:{self.ports[1]}"

    def stop(self) -> str:
        """Stop in order; what it said last."""
        self.process.terminate()
        output, _ = self.process.communicate(timeout=100)
        return output

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def children(self) -> dict[str, psutil.Process]:
        """Direct children by name."""
        names = {"flows.prefect_app": "prefect", "mlflow": "mlflow", "flows.deployments": "serve"}
        found = dict[str, psutil.Process]()
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):  # it has died
                line = " ".join(child.cmdline())
                found |= {name: child for part, name in names.items() if part in line}
        return found

    def api(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """Ask Prefect, again while SQLite is locked, as its own client does."""
        for _ in range(20):
            status, answer = ask(f"{self.prefect}/api{path}", body, method=method)
            if status != 503:
                break
            time.sleep(0.5)
        assert status < 300, (path, status, answer)
        return answer

    def deployment(self, flow: str, name: str = "local") -> dict[str, Any]:
        """A deployment, once it is served."""

        def served() -> dict[str, Any] | None:
            status, found = ask(f"{self.prefect}/api/deployments/name/{flow}/{name}")
            return found if status == 200 and found["status"] == "READY" else None

        found = wait_for(served, 90, f"{flow}/{name} is served")
        assert found is not None
        return found

    def submit(self, flow: str, *settings: str, name: str = "local", **parameters: Any) -> str:
        """Start a run of the tiny demo as the UI does."""
        config = {"dataset": "demo", "settings": [*TINY, *settings]}
        return self.create(flow, {"config": config, **parameters}, name)

    def create(self, flow: str, parameters: dict[str, Any], name: str = "local") -> str:
        path = f"/deployments/{self.deployment(flow, name)['id']}/create_flow_run"
        run = self.api(path, {"parameters": parameters, "state": {"type": "SCHEDULED"}})
        return str(run["id"])

    def run(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api(f"/flow_runs/{run_id}")
        return found

    def wait(self, run_id: str, *states: str, timeout_s: float = 120) -> dict[str, Any]:
        """Wait for a state; the run."""
        states = states or ENDED

        def there() -> dict[str, Any] | None:
            found = self.run(run_id)
            return found if found["state_type"] in states else None

        found = wait_for(there, timeout_s, f"run {run_id} is {states}, not {self.run(run_id)['state']}")
        assert found is not None
        return found

    def set_state(self, run_id: str, **state: Any) -> None:
        self.api(f"/flow_runs/{run_id}/set_state", {"state": state})

    def slots(self) -> int:
        """Slots of the GPU that are taken."""
        return int(self.api("/v2/concurrency_limits/gpu")["active_slots"])

    def artifacts(self, run_id: str) -> dict[str, str]:
        """Prefect's artifacts of a run, by key."""
        found = self.api("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run_id]}}})
        return {artifact["key"]: artifact["data"] for artifact in found}

    def logs(self, run_id: str) -> str:
        """What a run has logged."""
        lines = self.api("/logs/filter", {"logs": {"flow_run_id": {"any_": [run_id]}}, "sort": "TIMESTAMP_ASC"})
        return "\n".join(line["message"] for line in lines)

    def is_healthy(self) -> bool:
        return answers(f"{self.prefect}/api/health", 1)

    def mlflow_api(self, path: str, body: Any = None) -> Any:
        """Ask MLflow."""
        status, answer = ask(f"{self.mlflow}/api/2.0/mlflow{path}", body)
        assert status == 200, (path, status, answer)
        return answer

    def tracked(self, run_id: str) -> list[dict[str, Any]]:
        """MLflow's runs of a flow run, the newest first, stages left out."""
        experiments = self.mlflow_api("/experiments/search", {"max_results": 100})
        ids = [experiment["experiment_id"] for experiment in experiments.get("experiments", [])]
        which = {"experiment_ids": ids, "filter": f"tags.`prefect.flow_run_id` = '{run_id}'"}
        runs: list[dict[str, Any]] = self.mlflow_api("/runs/search", which).get("runs", [])
        return runs

    def process_of(self, run_id: str) -> psutil.Process:
        """The process that a flow run is in."""
        tags = {tag["key"]: tag["value"] for tag in self.tracked(run_id)[0]["data"]["tags"]}
        return psutil.Process(json.loads(tags["garden.process"])[2])

    def in_training(self, *settings: str, epochs: int = 5000) -> str:
        """Start a run and wait until an epoch is finished."""
        run_id = self.submit("pipeline", f"training.epochs={epochs}", *settings)
        wait_for(lambda: any((self.state / "checkpoints").rglob("checkpoint.pt")), 120, "an epoch is finished")
        return run_id
