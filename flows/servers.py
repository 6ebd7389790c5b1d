"""Local servers on loopback: Prefect, MLflow, the bootstrap and `serve()`; started, watched, stopped in order."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import Popen, run

from flows.child_process import spawn, stop
from flows.environment import STATE_DIR_VARIABLE, prefect_settings
from storage.atomic import write_text
from storage.errors import MachineError
from storage.locks import locked
from tasks.processes import is_dead, this_process

_HOST = "127.0.0.1"
_READY_S = 120.0
_SERVER_PATIENCE_S = 10.0
_SERVE_PATIENCE_S = 45.0  # Prefect gives the runs it cancels 30 s

# MLflow's job execution would add a dozen processes; see also tasks.tracking for the client's settings.
_MLFLOW_SERVER = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}

# What Prefect itself sets for the server of its ephemeral mode.
_TEMPORARY = {"PREFECT_UI_ENABLED": "false", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}


@dataclass(frozen=True)
class Addresses:
    """Where the local servers listen."""

    prefect: str
    """Prefect, without `/api`."""
    mlflow: str
    """MLflow."""

    def client_settings(self) -> dict[str, str]:
        """Return the environment of a process that uses the servers."""
        return {
            "PREFECT_API_URL": f"{self.prefect}/api",
            "PREFECT_UI_URL": self.prefect,
            "MLFLOW_TRACKING_URI": self.mlflow,
            # Only a server that stays has use for heartbeats; each run pays a second for them when it ends.
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        }


@contextlib.contextmanager
def local_servers(
    state_dir: Path, prefect_port: int, mlflow_port: int, say: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Start everything that the browser needs; stop it in order when the block ends.

    Parameters
    ----------
    state_dir
        Directory of the databases, artifacts and logs.
    prefect_port, mlflow_port
        Ports on loopback.
    say
        Told about each step in a few words.

    Yields
    ------
    callable
        Call it now and then: it raises MachineError once a server has died.

    Raises
    ------
    MachineError
        If a port is in use, these servers run already, or one does not start.
    """
    addresses = Addresses(f"http://{_HOST}:{prefect_port}", f"http://{_HOST}:{mlflow_port}")
    with locked(state_dir / ".locks" / "servers", wait=False) as free, contextlib.ExitStack() as stack:
        if not free:
            raise MachineError(f"the servers of {state_dir} run already: {_recorded(state_dir) or 'starting up'}")
        for port, option in ((prefect_port, "--prefect-port"), (mlflow_port, "--mlflow-port")):
            _require_free(port, option)
        children = _Children(state_dir, _environment(state_dir, addresses), stack)
        children.start("prefect", _prefect_command(prefect_port), _SERVER_PATIENCE_S)
        children.start("mlflow", _mlflow_command(state_dir, mlflow_port), _SERVER_PATIENCE_S)
        children.wait_for("prefect", f"{addresses.prefect}/api/health")
        children.wait_for("mlflow", f"{addresses.mlflow}/health")
        say("servers are up")
        children.run("bootstrap", [sys.executable, "-m", "flows.bootstrap"])
        children.start("serve", [sys.executable, "-m", "flows.deployments"], _SERVE_PATIENCE_S)
        record = state_dir / "servers.json"
        write_text(record, json.dumps({"process": this_process(), **asdict(addresses)}) + "\n")
        stack.callback(record.unlink, missing_ok=True)
        yield children.check


def running_servers(state_dir: Path) -> Addresses | None:
    """Return the addresses of the servers that `garden up` runs for a state directory, if any."""
    addresses = _recorded(state_dir)
    return addresses if addresses is not None and answers(f"{addresses.prefect}/api/health", 2) else None


@contextlib.contextmanager
def temporary_prefect(state_dir: Path) -> Iterator[Callable[[], None]]:
    """Start a Prefect server without a UI for one run, on a free port, and point this process at it.

    It takes seconds to start: import what is heavy meanwhile. Its database stays, so that `garden up` shows the run.

    Yields
    ------
    callable
        Waits until the server is ready; raises MachineError if it does not start.
    """
    port = _free_port()
    url = f"http://{_HOST}:{port}"
    environment = os.environ | prefect_settings(state_dir) | _TEMPORARY
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as starting:
        # One at a time: two servers that create one database at once would trip over each other.
        starting.enter_context(locked(state_dir / ".locks" / "temporary-prefect"))
        children = _Children(state_dir, environment, stack)
        children.start("temporary-prefect", _uvicorn_command(port), _SERVER_PATIENCE_S)
        stack.callback(_send_what_is_left)
        os.environ["PREFECT_API_URL"] = f"{url}/api"

        def wait_until_ready() -> None:
            children.wait_for("temporary-prefect", f"{url}/api/health")
            starting.close()

        yield wait_until_ready


def _send_what_is_left() -> None:
    """Let Prefect send its last events and log lines; at exit it would knock at a closed door for a minute."""
    if "prefect" in sys.modules:
        from prefect.events.worker import EventsWorker
        from prefect.logging.handlers import APILogWorker

        EventsWorker.drain_all(timeout=_SERVER_PATIENCE_S)
        APILogWorker.drain_all(timeout=_SERVER_PATIENCE_S)


def answers(url: str, timeout_s: float) -> bool:
    """Whether a server answers at all, be it with an error."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s):  # noqa: S310 - http addresses only
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except (OSError, ValueError):
        return False


class _Children:
    """The processes of one supervisor; leaving its stack stops them, the last started first."""

    def __init__(self, state_dir: Path, environment: Mapping[str, str], stack: contextlib.ExitStack) -> None:
        self._logs, self._environment, self._stack = state_dir / "logs", environment, stack
        self._running: dict[str, Popen[bytes]] = {}

    def start(self, name: str, command: list[str], patience_s: float) -> None:
        child = spawn(command, self._environment, self._logs / f"{name}.log")
        self._running[name] = child
        self._stack.callback(stop, child, patience_s)

    def run(self, name: str, command: list[str]) -> None:
        """Run a step to its end."""
        with (self._logs / f"{name}.log").open("ab") as log:
            done = run(command, env=self._environment, stdout=log, stderr=log, check=False)
        if done.returncode:
            raise self._died(name, done.returncode)

    def wait_for(self, name: str, url: str) -> None:
        deadline = time.monotonic() + _READY_S
        while not answers(url, 1):
            self.check()
            if time.monotonic() > deadline:
                raise MachineError(f"{name} does not answer after {_READY_S:.0f} s; see {self._logs / name}.log")
            time.sleep(0.05)

    def check(self) -> None:
        """Raise if a child has ended."""
        for name, child in self._running.items():
            if child.poll() is not None:
                raise self._died(name, child.returncode)

    def _died(self, name: str, code: int) -> MachineError:
        return MachineError(f"{name} ended with code {code}; see {self._logs / name}.log")


def _environment(state_dir: Path, addresses: Addresses) -> dict[str, str]:
    """Return the environment of the servers and of the flows they start: ours, not what another project left."""
    foreign = ("PREFECT_", "MLFLOW_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    origins = f"{addresses.prefect},{addresses.prefect.replace(_HOST, 'localhost')}"
    return (
        kept
        | prefect_settings(state_dir)
        | _MLFLOW_SERVER
        | addresses.client_settings()
        | {
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": origins,  # by default any web page could start runs
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
            STATE_DIR_VARIABLE: str(state_dir),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), kept.get("PYTHONPATH")))),
        }
    )


def _prefect_command(port: int) -> list[str]:
    return [sys.executable, "-m", "prefect", "server", "start", "--host", _HOST, "--port", str(port)]


def _uvicorn_command(port: int) -> list[str]:
    app = ["--factory", "prefect.server.api.server:create_app", "--lifespan", "on", "--log-level", "error"]
    return [sys.executable, "-m", "uvicorn", *app, "--host", _HOST, "--port", str(port)]


def _mlflow_command(state_dir: Path, port: int) -> list[str]:
    home = state_dir.absolute() / "mlflow"
    (home / "artifacts").mkdir(parents=True, exist_ok=True)
    stores = [
        f"--backend-store-uri=sqlite:///{home / 'mlflow.db'}",
        f"--artifacts-destination={home / 'artifacts'}",
        # Files, as for runs without a server: so both can read what either wrote.
        f"--default-artifact-root={(home / 'artifacts').as_uri()}",
    ]
    return [sys.executable, "-m", "mlflow", "server", "--host", _HOST, "--port", str(port), "--workers", "1", *stores]


def _recorded(state_dir: Path) -> Addresses | None:
    try:
        record = json.loads((state_dir / "servers.json").read_text(encoding="utf-8"))
        return None if is_dead(record.pop("process")) else Addresses(**record)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _require_free(port: int, option: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            raise MachineError(
                f"port {port} cannot be used ({error.strerror}): stop the program that has it, or choose another "
                f"with {option}"
            ) from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port
