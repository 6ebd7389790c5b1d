"""MLflow, for real: a SQLite store, and a server on loopback that goes away and comes back."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prefect.exceptions import TerminationSignal

from storage.errors import InputError, MachineError
from tasks import tracking
from tasks.tracking import Tracking, flatten, open_client
from tasks.tracking_models import champion_digests, download_model, registered_version

if TYPE_CHECKING:
    from mlflow.entities import Run

EXPERIMENT = "garden"


@pytest.fixture(autouse=True)
def local_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One state directory for the tests that do not break it: its database takes seconds to create."""
    return tmp_path_factory.mktemp("state")


def find_run(track: Tracking, name: str) -> Run:
    found = open_client(track.uri).search_runs([track.experiment_id], f"attributes.run_name = '{name}'")
    assert len(found) == 1
    return found[0]


def test_flatten_dots_nested_names() -> None:
    assert flatten({"a": {"b": {"c": 1}}, "d": [1], "e": None}) == {"a.b.c": 1, "d": [1], "e": None}


def test_a_run_with_a_child_keeps_everything(state: Path, tmp_path: Path) -> None:
    (tmp_path / "plot.png").write_bytes(b"picture")
    track = Tracking.connect(state, EXPERIMENT)
    with track.parent_run("whole", {"prefect.flow_run_id": "abc"}) as parent:
        parent.log_params({"model": {"kind": "sage"}, "training": {"patience": None}})
        parent.log_params({f"many.{i}": i for i in range(250)})
        for epoch in range(3):
            parent.log_metrics({"train/loss": 1.0 / (epoch + 1), "valid/accuracy": 0.1 * epoch}, epoch)
        with track.child_run(parent, "stage", {"reused": "false"}) as child:
            child.log_text("hello", "note.txt")
            child.log_artifact(tmp_path / "plot.png", "plots")
    client = open_client(track.uri)
    run, stage = find_run(track, "whole"), find_run(track, "stage")
    assert (run.info.status, stage.info.status) == ("FINISHED", "FINISHED")
    assert run.data.params["model.kind"] == "sage"
    assert run.data.params["training.patience"] == "none"
    assert len(run.data.params) == 252
    assert [metric.value for metric in client.get_metric_history(run.info.run_id, "train/loss")] == [1, 1 / 2, 1 / 3]
    assert stage.data.tags["mlflow.parentRunId"] == run.info.run_id
    assert run.data.tags["prefect.flow_run_id"] == "abc"
    assert sorted(item.path for item in client.list_artifacts(stage.info.run_id)) == ["note.txt", "plots"]
    assert Path(stage.info.artifact_uri.removeprefix("file://")).is_relative_to(state)
    assert track.run_url(parent).endswith(
        f"/#/experiments/{track.experiment_id}/runs/{run.info.run_id}?workflowType=machine_learning"
    )


@pytest.mark.parametrize(
    ("error", "status"),
    [(TerminationSignal(15), "KILLED"), (KeyboardInterrupt(), "KILLED"), (ValueError("no such node"), "FAILED")],
)
def test_the_status_tells_how_it_ended(state: Path, error: BaseException, status: str) -> None:
    name = f"ends-with-{type(error).__name__}"
    track = Tracking.connect(state, EXPERIMENT)
    with (
        pytest.raises(type(error)),
        track.parent_run(name, {}) as parent,
        track.child_run(parent, f"{name}-child", {}),
    ):
        raise error
    run = find_run(track, name)
    assert run.info.status == find_run(track, f"{name}-child").info.status == status
    if status == "FAILED":
        assert run.data.tags["error"] == "ValueError: no such node"


def champions(state: Path, tmp_path: Path, name: str, scores: Sequence[tuple[str, float]]) -> list[int]:
    """Version of the champion after each model was registered."""
    (tmp_path / "arch.json").write_text("{}")
    track, versions = Tracking.connect(state, EXPERIMENT), []
    client = open_client(track.uri)
    for metric, score in scores:
        with track.parent_run(f"score-{score}", {}) as run:
            run.register_model(name, tmp_path, metric, score, {"store_digest": "abc"})
        versions.append(int(client.get_model_version_by_alias(name, "champion").version))
    return versions


def test_the_champion_moves_only_for_a_better_score(state: Path, tmp_path: Path) -> None:
    scores = [("accuracy", score) for score in (0.5, 0.4, float("nan"), 0.5, 0.6)]
    assert champions(state, tmp_path, "crowned", scores) == [1, 1, 1, 1, 5]
    best = open_client(tracking.tracking_uri(state)).get_model_version_by_alias("crowned", "champion")
    assert best.tags == {"store_digest": "abc", "metric": "accuracy", "valid_score": "0.6"}
    assert best.source is not None
    assert Path(best.source.removeprefix("file://"), "arch.json").read_text() == "{}"


def test_scores_of_different_metrics_are_not_compared(
    state: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A ROC-AUC is often above the accuracy of a better model."""
    scores = [("accuracy", 0.8), ("roc_auc", 0.95), ("accuracy", 0.85), ("macro_f1", 0.99)]
    assert champions(state, tmp_path, "incomparable", scores) == [1, 1, 3, 3]
    assert "incomparable@champion stays version 1: accuracy chose it and roc_auc the new version 2" in caplog.text
    client = open_client(tracking.tracking_uri(state))
    client.set_registered_model_alias("incomparable", "champion", "2")  # as a person does in the browser
    later = champions(state, tmp_path, "incomparable", [("accuracy", 0.99), ("roc_auc", 0.96)])
    assert later == [2, 6]


def test_a_version_on_other_data_becomes_the_champion_whatever_its_score(state: Path, tmp_path: Path) -> None:
    (tmp_path / "arch.json").write_text("{}")
    track, versions = Tracking.connect(state, EXPERIMENT), []
    for data, score in (("old", 0.9), ("old", 0.8), ("new", 0.3), ("new", 0.2), ("new", 0.4)):
        with track.parent_run("of data", {}) as run:
            run.register_model("fed", tmp_path, "accuracy", score, {"data_digest": data})
        versions.append(int(open_client(track.uri).get_model_version_by_alias("fed", "champion").version))
    assert versions == [1, 1, 3, 3, 5]


def test_no_empty_experiment_stands_beside_ours(tmp_path: Path) -> None:
    track = Tracking.connect(tmp_path, "mine")
    assert [experiment.name for experiment in open_client(track.uri).search_experiments()] == ["mine"]
    Tracking.connect(tmp_path, "another")


def test_a_run_of_a_dead_process_is_closed(state: Path) -> None:
    code = f"""
import os
from pathlib import Path
from tasks.tracking import Tracking
with Tracking.connect(Path({str(state)!r}), {EXPERIMENT!r}).parent_run("killed", {{}}):
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    track = Tracking.connect(state, EXPERIMENT)
    assert find_run(track, "killed").info.status == "KILLED"


def test_a_deleted_experiment_is_an_input_error(state: Path) -> None:
    track = Tracking.connect(state, "deleted")
    open_client(track.uri).delete_experiment(track.experiment_id)
    with pytest.raises(InputError, match="was deleted in MLflow"):
        Tracking.connect(state, "deleted")


def test_a_server_that_is_away_at_the_start_is_a_machine_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    start = time.monotonic()
    with pytest.raises(MachineError, match="no MLflow server answers at"):
        Tracking.connect(tmp_path, EXPERIMENT)
    assert time.monotonic() - start < 5


def test_a_database_that_cannot_be_opened_is_a_machine_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/nowhere/mlflow.db")
    with pytest.raises(MachineError, match="cannot be used"):
        Tracking.connect(tmp_path, EXPERIMENT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """An MLflow server on loopback that can be stopped and started again."""

    def __init__(self, home: Path) -> None:
        self.home, self.port = home, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        stores = [f"--backend-store-uri=sqlite:///{self.home}/mlflow.db", f"--artifacts-destination={self.home}/a"]
        environment = {**os.environ, **tracking.ENVIRONMENT, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self.home / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--workers=1", *stores], env=environment, stdout=log, stderr=log, start_new_session=True
            )
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=1):
                    return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError((self.home / "server.log").read_text())

    def stop(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


def test_a_server_that_goes_away_in_mid_run_misses_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    (tmp_path / "weights").write_text("1 2 3")
    track = Tracking.connect(tmp_path, EXPERIMENT)
    with track.parent_run("interrupted", {}) as parent:
        parent.log_metrics({"train/loss": 3.0}, 0)
        server.stop()
        parent.log_metrics({"train/loss": 2.0}, 1)
        with track.child_run(parent, "created-while-away", {}) as child:
            child.log_artifact(tmp_path / "weights")
        server.start()
        parent.log_metrics({"train/loss": 1.0}, 2)
    client, run = open_client(server.uri), find_run(track, "interrupted")
    assert run.info.status == "FINISHED"
    assert [metric.value for metric in client.get_metric_history(run.info.run_id, "train/loss")] == [3, 2, 1]
    child_id = find_run(track, "created-while-away").info.run_id
    assert [item.path for item in client.list_artifacts(child_id)] == ["weights"]
    assert not (tmp_path / "mlflow" / "unsent").exists()


def test_a_server_that_never_returns_leaves_the_figures_in_a_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setattr(tracking, "_FINISH_WAIT_S", 0.1)
    track = Tracking.connect(tmp_path, EXPERIMENT)
    with track.parent_run("abandoned", {}) as parent:
        server.stop()
        parent.log_metrics({"train/loss": 2.0}, 1)
    path = tmp_path / "mlflow" / "unsent" / f"{parent.key}.jsonl"
    calls: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    assert [call["verb"] for call in calls] == ["metrics", "end"]
    ((name, value, step, _),) = calls[0]["arguments"]["points"]
    assert (name, value, step) == ("train/loss", 2.0, 1)
    assert str(path) in caplog.text


class Stumbling(BaseHTTPRequestHandler):
    """A server that is healthy, and cannot do anything."""

    def do_GET(self) -> None:
        healthy = self.path == "/health"
        self.send_response(200 if healthy else 500)
        self.end_headers()

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    "ask",
    [
        lambda state: download_model(state, "mine", "champion", state),
        lambda state: download_model(state, "mine", "1", state),
        lambda state: registered_version(state, "mine", "0" * 24),
        champion_digests,
    ],
)
def test_a_registry_that_stumbles_is_no_wrong_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Path], object]
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with HTTPServer(("127.0.0.1", 0), Stumbling) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
        try:
            with pytest.raises(MachineError, match=r"cannot be used .*check MLFLOW_TRACKING_URI"):
                ask(tmp_path)
        finally:
            server.shutdown()
