"""All of MLflow: runs by explicit id, one batch of metrics an epoch, models as weights and JSON, and no way to stop us.

Names: metrics are grouped by what stands before the slash (`train/loss`, `valid/accuracy`, `cache/feature_hit_rate`,
`io/host_feature_bytes`, `stage/ingest_s`); parameters are the configuration, flattened with dots.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import InputError, MachineError
from storage.locks import locked
from tasks.outbox import Outbox
from tasks.processes import is_dead, this_process
from tasks.tracking_calls import PARENT_TAG, PROCESS_TAG, CallSender, is_refusal, merged, now_ms
from tasks.tracking_database import DATABASE, make_database
from tasks.tracking_experiments import open_experiment

if TYPE_CHECKING:
    from mlflow import MlflowClient

FLOW_RUN_TAG = "prefect.flow_run_id"
"""Tag that tells which Prefect flow run a run belongs to."""
_PREFECT_STOP = "TerminationSignal"  # named, not imported: that takes seconds, which those who only read need not wait
_LOCAL_SCHEMES = ("sqlite:", "postgresql:", "mysql:", "mssql:")
_FINISH_WAIT_S = 30.0
_KILL_WAIT_S = 2.0  # a cancelled run has to end within seconds

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # the default blocks for four minutes when the server is down
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Settings of the MLflow client; what the user has set stays."""


class TrackedRun:
    """One MLflow run, open until its context ends; every call returns at once and never raises because of a server."""

    def __init__(self, key: str, outbox: Outbox) -> None:
        """Name the run by its id, or by the key under which the outbox creates it."""
        self.key = key
        self._outbox = outbox

    def log_params(self, tree: Mapping[str, Any]) -> None:
        """Log a nested mapping as parameters with dotted names."""
        self._outbox.put("params", run=self.key, params=flatten(tree))

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Log one batch of metrics."""
        time_ms = now_ms()
        points = [[name, float(value), step, time_ms] for name, value in metrics.items()]
        self._outbox.put("metrics", run=self.key, points=points)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags."""
        self._outbox.put("tags", run=self.key, tags=dict(tags))

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Upload a file, or the files of a directory; it must stay where it is until the run ends."""
        self._outbox.put("artifact", run=self.key, path=str(path), folder=folder)

    def log_dataset(self, name: str, digest: str, counts: Mapping[str, Any]) -> None:
        """Name the data that a run is about, so that runs can be told apart by it."""
        self._outbox.put("dataset", run=self.key, name=name, digest=digest, counts=dict(counts))

    def log_text(self, text: str, name: str) -> None:
        """Upload a text as a file."""
        self._outbox.put("text", run=self.key, text=text, name=name)

    def register_model(self, name: str, folder: Path, metric: str, score: float, tags: Mapping[str, str]) -> None:
        """Upload a folder of weights and register it as a new version of a model.

        The alias `champion` moves to it only if its validation score is better than the present champion's by the same
        metric; a champion that another metric chose stays until someone moves the alias.
        """
        self.log_artifact(folder, "model")
        scored = {"metric": metric, "score": score, "tags": dict(tags)}
        self._outbox.put("register", run=self.key, name=name, folder="model", **scored)

    def end(self, status: str) -> None:
        """End the run as `FINISHED`, `FAILED` or `KILLED`."""
        self._outbox.put("end", run=self.key, status=status, time_ms=now_ms())


class Tracking:
    """The connection to MLflow for one parent run and its children."""

    def __init__(self, client: MlflowClient, uri: str, experiment_id: str, unsent_dir: Path) -> None:
        """Use `connect` instead."""
        self._client, self.uri, self.experiment_id, self._unsent_dir = client, uri, experiment_id, unsent_dir
        self._child_numbers = itertools.count()
        self._outbox: Outbox | None = None

    @classmethod
    def connect(cls, state_dir: Path, experiment: str) -> Tracking:
        """Reach the store of `MLFLOW_TRACKING_URI`, or the SQLite store below the state directory.

        Raises
        ------
        MachineError
            If it cannot be reached.
        InputError
            If the experiment was deleted there.
        """
        uri, home = tracking_uri(state_dir), state_dir.absolute() / "mlflow"
        client = check_store(state_dir)
        with needing(uri), locked(home / ".lock"):
            experiment_id = open_experiment(client, experiment, home, uri)
            close_dead_runs(client, [experiment_id])
        return cls(client, uri, experiment_id, home / "unsent")

    @contextlib.contextmanager
    def parent_run(self, name: str, tags: Mapping[str, str]) -> Iterator[TrackedRun]:
        """Open the run of a whole pipeline; when it ends, what is still unsent is sent or written down.

        It is created at once, so that its id is known and a store that is away at the start is an error.

        Raises
        ------
        MachineError
            If the store cannot be used.
        """
        tags = {**tags, PROCESS_TAG: this_process()}
        with needing(self.uri):
            run = self._client.create_run(self.experiment_id, run_name=name, tags=tags, start_time=now_ms())
        run_id = str(run.info.run_id)
        self._outbox = Outbox(
            CallSender(self._client, self.experiment_id),
            is_refusal,
            server=f"MLflow at {self.uri}",
            unsent_file=self._unsent_dir / f"{run_id}.jsonl",
            merge=merged,
        )
        finished = False
        try:
            with _ending(TrackedRun(run_id, self._outbox)) as tracked:
                yield tracked
            finished = True
        finally:
            self._outbox.close(_FINISH_WAIT_S if finished else _KILL_WAIT_S, patient=finished)

    @contextlib.contextmanager
    def child_run(self, parent: TrackedRun, name: str, tags: Mapping[str, str]) -> Iterator[TrackedRun]:
        """Open the run of one stage below a parent run; it is created when the store answers."""
        assert self._outbox is not None, "a child run needs an open parent run"
        key = f"{parent.key}/{next(self._child_numbers)}"
        tags = {**tags, PARENT_TAG: parent.key, PROCESS_TAG: this_process()}
        self._outbox.put("create", run=key, name=name, tags=tags, time_ms=now_ms())
        with _ending(TrackedRun(key, self._outbox)) as tracked:
            yield tracked

    def run_url(self, run: TrackedRun, server: str | None = None) -> str:
        """Return where a browser shows the run; `server` serves the store where the store is a database.

        A browser that has not been there yet takes it for an evaluation of a language model unless it is told.
        """
        base = self.uri if not self.uri.startswith(_LOCAL_SCHEMES) else server or "http://127.0.0.1:5000"
        return f"{base.rstrip('/')}/#/experiments/{self.experiment_id}/runs/{run.key}?workflowType=machine_learning"


def tracking_uri(state_dir: Path) -> str:
    """Return `MLFLOW_TRACKING_URI`, or the address of the SQLite store below the state directory."""
    return os.environ.get("MLFLOW_TRACKING_URI") or _local_uri(state_dir)


def _local_uri(state_dir: Path) -> str:
    return f"sqlite:///{state_dir.absolute() / 'mlflow' / DATABASE}"


def check_store(state_dir: Path) -> MlflowClient:
    """Open the store that `connect` would, creating the local one where it is not there yet.

    Raises
    ------
    MachineError
        If it cannot be used.
    """
    uri, home = tracking_uri(state_dir), state_dir.absolute() / "mlflow"
    probe(uri)
    with needing(uri):
        if uri == _local_uri(state_dir):
            _set_environment()
            make_database(home)
        with locked(home / ".lock"):
            return open_client(uri)


def open_client(uri: str) -> MlflowClient:
    """Return a client of one store, for runs and for models, with MLflow's own chatter off."""
    _set_environment()
    from mlflow import MlflowClient

    return MlflowClient(uri, registry_uri=uri)


def _set_environment() -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def probe(uri: str) -> None:
    """Fail at once, not after a client's retries, where nobody listens.

    Raises
    ------
    MachineError
        If a server cannot be reached.
    """
    if not uri.startswith(("http://", "https://")):
        return
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=5):  # noqa: S310 - the scheme is checked above
            pass
    except urllib.error.HTTPError as error:
        error.close()  # something answers, perhaps behind a proxy that hides /health
    except OSError as error:
        raise MachineError(
            f"no MLflow server answers at {uri} ({error}); start it, or unset MLFLOW_TRACKING_URI to track locally"
        ) from error


def close_dead_runs(client: MlflowClient, experiment_ids: Sequence[str]) -> list[str]:
    """End as KILLED the runs whose process on this machine is gone; returns the Prefect runs they belonged to."""
    running = client.search_runs(list(experiment_ids), "attributes.status = 'RUNNING'", max_results=1000)
    dead = [run for run in running if is_dead(run.data.tags.get(PROCESS_TAG, ""))]
    for run in dead:
        client.set_terminated(run.info.run_id, "KILLED")
    return [run.data.tags[FLOW_RUN_TAG] for run in dead if FLOW_RUN_TAG in run.data.tags]


def close_all_dead_runs(uri: str) -> list[str]:
    """Do so in every experiment of a store."""
    client = open_client(uri)
    return close_dead_runs(client, [experiment.experiment_id for experiment in client.search_experiments()])


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested mappings into one with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


@contextlib.contextmanager
def needing(uri: str) -> Iterator[None]:
    """Turn whatever goes wrong with a store, where nothing goes on without it, into one line.

    Raises
    ------
    MachineError
        It cannot be used.
    """
    try:
        yield
    except (InputError, MachineError):
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise MachineError(f"MLflow at {uri} cannot be used ({reason}); check MLFLOW_TRACKING_URI") from error


@contextlib.contextmanager
def _ending(run: TrackedRun) -> Iterator[TrackedRun]:
    """End a run by how its block ended."""
    try:
        yield run
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or type(error).__name__ == _PREFECT_STOP:
            run.end("KILLED")
            raise
        run.set_tags({"error": f"{type(error).__name__}: {error}"[:500]})
        run.end("FAILED")
        raise
    run.end("FINISHED")
