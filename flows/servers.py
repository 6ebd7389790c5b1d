"""Local servers on loopback: Prefect, MLflow, the bootstrap and `serve()`; started, watched, stopped in order."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from flows.answering import HOST, answers, require_free
from flows.children import Children, end_leftovers
from flows.environment import STATE_DIR_VARIABLE, prefect_settings
from storage.atomic import write_text
from storage.errors import MachineError
from storage.locks import locked
from tasks.gpu_slot import GPU_LIMIT, LIMIT_VARIABLE
from tasks.processes import is_dead, this_process
from tasks.tracking_database import DATABASE, is_made

_SERVER_PATIENCE_S = 10.0
_SERVE_PATIENCE_S = 45.0  # Prefect gives the runs it cancels 30 s
_STOP_S = 90.0  # all of them, one after another
_RECORD = "servers.json"

# MLflow's job execution would add a dozen processes; see also tasks.tracking for the client's settings.
_MLFLOW_SERVER = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


@dataclass(frozen=True)
class Addresses:
    """Where the local servers listen."""

    prefect: str
    """Prefect, without `/api`."""
    mlflow: str
    """MLflow."""

    @classmethod
    def of_ports(cls, prefect_port: int, mlflow_port: int) -> Addresses:
        """Return the addresses of two ports on loopback."""
        return cls(f"http://{HOST}:{prefect_port}", f"http://{HOST}:{mlflow_port}")

    def client_settings(self) -> dict[str, str]:
        """Return the environment of a process that uses the servers."""
        return {
            "PREFECT_API_URL": f"{self.prefect}/api",
            "PREFECT_UI_URL": self.prefect,
            "MLFLOW_TRACKING_URI": self.mlflow,
            # Only a server that stays has use for heartbeats; each run pays a second for them when it ends.
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
            LIMIT_VARIABLE: GPU_LIMIT,
        }

    def pages(self) -> dict[str, str]:
        """Return what a person opens in a browser."""
        return {
            "Prefect": f"{self.prefect}/v2/deployments",
            "MLflow": f"{self.mlflow}/#/experiments?workflowType=machine_learning",
        }


@dataclass(frozen=True)
class Record:
    """What a supervisor writes down about itself."""

    process: str
    """The supervisor, as `tasks.processes` describes it."""
    prefect: str
    """Address of Prefect."""
    mlflow: str
    """Address of MLflow."""
    ready: bool
    """Whether the flows are served; before that the servers are starting."""

    @property
    def addresses(self) -> Addresses:
        """Where the servers listen."""
        return Addresses(self.prefect, self.mlflow)

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return int(json.loads(self.process)[2])


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
        Call it now and then: it starts again what has died, and raises MachineError once that is no use.

    Raises
    ------
    MachineError
        If a port is in use, these servers run already, or one does not start.
    """
    addresses = Addresses.of_ports(prefect_port, mlflow_port)
    with locked(state_dir / ".locks" / "servers", wait=False) as free, contextlib.ExitStack() as stack:
        if not free:
            record = read_record(state_dir)
            where = f": Prefect {record.prefect}, MLflow {record.mlflow}" if record else ""
            raise MachineError(f"the servers of {state_dir} run already{where}; `garden down` stops them")
        end_leftovers(state_dir)
        require_free(prefect_port, "--prefect-port")
        require_free(mlflow_port, "--mlflow-port")
        stack.callback((state_dir / _RECORD).unlink, missing_ok=True)
        _write_record(state_dir, addresses, ready=False)
        children = Children(state_dir, _environment(state_dir, addresses), stack, say)
        children.start("prefect", prefect_command(prefect_port), _SERVER_PATIENCE_S)
        home = state_dir.absolute() / "mlflow"
        if not is_made(home):  # else the server would make it in place, and must not be interrupted meanwhile
            children.run("mlflow-database", [sys.executable, "-m", "tasks.tracking_database", str(home)])
        children.start("mlflow", _mlflow_command(state_dir, mlflow_port), _SERVER_PATIENCE_S)
        children.wait_for("prefect", f"{addresses.prefect}/api/health")
        children.wait_for("mlflow", f"{addresses.mlflow}/health")
        say("servers are up")
        children.run("bootstrap", [sys.executable, "-m", "flows.bootstrap", "--mend"])
        children.start("serve", [sys.executable, "-m", "flows.deployments"], _SERVE_PATIENCE_S)
        _write_record(state_dir, addresses, ready=True)
        yield children.check


def running_servers(state_dir: Path) -> Addresses | None:
    """Return the addresses of the servers that `garden up` runs for a state directory, if any."""
    record = read_record(state_dir)
    if record is None or not record.ready:
        return None
    return record.addresses if answers(f"{record.prefect}/api/health", 2) else None


def read_record(state_dir: Path) -> Record | None:
    """Return what the supervisor of a state directory wrote down, if it lives."""
    try:
        record = Record(**json.loads((state_dir / _RECORD).read_text(encoding="utf-8")))
        return None if is_dead(record.process) else record
    except (OSError, ValueError, TypeError):
        return None


def stop_servers(state_dir: Path) -> bool:
    """Have the supervisor of a state directory stop everything, and wait for it; False if there is none.

    Raises
    ------
    MachineError
        If it is at work after a minute and a half still.
    """
    record = read_record(state_dir)
    if record is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(record.pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_S
    while not is_dead(record.process):
        if time.monotonic() > deadline:
            raise MachineError(
                f"process {record.pid} does not end; see {state_dir / 'logs'}, or kill it: the next start mends all"
            )
        time.sleep(0.1)
    return True


def wait_until_ready(state_dir: Path, supervisor: subprocess.Popen[bytes]) -> Addresses | None:
    """Wait for servers that a child process starts; None if it ends first."""
    while supervisor.poll() is None:
        record = read_record(state_dir)
        if record is not None and record.ready and record.pid == supervisor.pid:
            return record.addresses
        time.sleep(0.1)
    return None


def prefect_command(port: int) -> list[str]:
    """Return the command of a Prefect server that answers our own pages alone."""
    app = ["--factory", "flows.prefect_app:create_app", "--lifespan", "on", "--log-level", "warning"]
    return [sys.executable, "-m", "uvicorn", *app, "--host", HOST, "--port", str(port)]


def _mlflow_command(state_dir: Path, port: int) -> list[str]:
    home = state_dir.absolute() / "mlflow"
    (home / "artifacts").mkdir(parents=True, exist_ok=True)
    options = [
        f"--backend-store-uri=sqlite:///{home / DATABASE}",
        f"--artifacts-destination={home / 'artifacts'}",
        # Files, as for runs without a server: so both can read what either wrote.
        f"--default-artifact-root={(home / 'artifacts').as_uri()}",
        "--allowed-hosts=localhost,localhost:*,127.0.0.1,127.0.0.1:*",
        f"--cors-allowed-origins=http://localhost:{port},http://{HOST}:{port}",
    ]
    return [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1", *options]


def _environment(state_dir: Path, addresses: Addresses) -> dict[str, str]:
    """Return the environment of the servers and of the flows they start: ours, not what another project left."""
    foreign = ("PREFECT_", "MLFLOW_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    origins = f"{addresses.prefect},{addresses.prefect.replace(HOST, 'localhost')}"
    return (
        kept
        | prefect_settings(state_dir)
        | _MLFLOW_SERVER
        | addresses.client_settings()
        | {
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": origins,  # by default any web page may read the answers
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
            STATE_DIR_VARIABLE: str(state_dir),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), kept.get("PYTHONPATH")))),
        }
    )


def _write_record(state_dir: Path, addresses: Addresses, *, ready: bool) -> None:
    record = Record(process=this_process(), ready=ready, **asdict(addresses))
    write_text(state_dir / _RECORD, json.dumps(asdict(record)) + "\n")
