"""The MLflow database is there whole or not at all, and one whose making broke off is made anew."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.tracking import check_store
from tasks.tracking_database import DATABASE, is_made, make_database

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def use(state: Path) -> MlflowClient:
    """As a run does; what cannot be used raises."""
    client = check_store(state)
    client.create_run(client.create_experiment("mine"))
    return client


@pytest.mark.parametrize("seconds", [0.05, 0.6])
def test_one_whose_making_broke_off_is_made_anew(tmp_path: Path, seconds: float) -> None:
    """Killed at any moment, the making leaves no database; one that was left half-made in place is no obstacle."""
    home = tmp_path / "mlflow"
    process = subprocess.Popen([sys.executable, "-m", "tasks.tracking_database", str(home)], cwd=ROOT)
    deadline = time.monotonic() + 120
    while not (home / f"{DATABASE}.partial").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(seconds)
    assert process.poll() is None, "it is made in less time than was waited"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (home / DATABASE).exists()
    for path in home.glob(f"{DATABASE}.partial*"):
        path.rename(path.with_name(path.name.replace(".partial", "")))
    assert not is_made(home)
    use(tmp_path)
    assert is_made(home)
    assert sorted(path.name for path in home.iterdir() if path.is_file() and path.name != ".lock") == [DATABASE]


def test_one_that_holds_runs_or_is_damaged_stays(tmp_path: Path) -> None:
    client = use(tmp_path)
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None
    make_database(tmp_path / "mlflow")
    assert len(client.search_runs([experiment.experiment_id])) == 1
    other = tmp_path / "other"
    other.mkdir()
    (other / DATABASE).write_bytes(b"no database, for sure, but of someone's" * 100)
    assert is_made(other)
    before = (other / DATABASE).read_bytes()
    make_database(other)
    assert (other / DATABASE).read_bytes() == before


def test_one_that_holds_models_alone_stays(tmp_path: Path) -> None:
    use(tmp_path).create_registered_model("kept")
    home = tmp_path / "mlflow"
    with contextlib.closing(sqlite3.connect(home / DATABASE)) as database, database:
        database.execute("DELETE FROM runs")
        database.execute("DELETE FROM experiments")  # as `mlflow gc` does of deleted ones
    inode = (home / DATABASE).stat().st_ino
    make_database(home)
    assert (home / DATABASE).stat().st_ino == inode
