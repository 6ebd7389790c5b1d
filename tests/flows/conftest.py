"""One tiny demo run through the real command line, once a session; several tests look at what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flows.temporary_server import temporary_prefect

ROOT = Path(__file__).parents[2]
BUDGET = 60_000  # a tenth of the features and adjacency of the tiny graph
TINY = (
    "data.demo.nodes=2000",
    "data.demo.edges=20000",
    "training.epochs=2",
    "profile.heldout_epochs=4",
    f"cache.device_budget={BUDGET}",
)


@dataclass(frozen=True)
class Garden:
    """Runs `garden` in processes of its own, with one state directory."""

    state: Path
    environment: Mapping[str, str]

    def command(self, *arguments: str, overrides: Sequence[str] = ()) -> list[str]:
        sets = [part for override in (f"state_dir={self.state}", *overrides) for part in ("--set", override)]
        return [sys.executable, "-m", "flows.cli", "run", *arguments, *sets]

    def run(self, *arguments: str, overrides: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments, overrides=overrides)
        return subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=dict(self.environment), timeout=300, check=False
        )

    def start(self, *arguments: str, overrides: Sequence[str] = ()) -> subprocess.Popen[str]:
        command = self.command(*arguments, overrides=overrides)
        return subprocess.Popen(
            command, cwd=ROOT, env=dict(self.environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def summary(self, *arguments: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
        done = self.run(*arguments, "--json", overrides=overrides)
        assert done.returncode == 0, done.stderr
        summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return summary


def bare_environment() -> dict[str, str]:
    """The environment without anything that points at servers of the person who runs the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}


@pytest.fixture
def process_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep commands that run within this process from changing its logging and its environment."""
    monkeypatch.setattr("flows.terminal.set_up_logging", lambda: None)
    monkeypatch.setattr("flows.environment.set_defaults", lambda _: None)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="session")
def prefect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of one Prefect server for all runs that need not start their own."""
    before = dict(os.environ)
    with temporary_prefect(tmp_path_factory.mktemp("prefect")) as wait_until_ready:
        url = os.environ["PREFECT_API_URL"]
        os.environ.clear()
        os.environ.update(before)
        wait_until_ready()
        yield url


@pytest.fixture(scope="session")
def demo_garden(tmp_path_factory: pytest.TempPathFactory, prefect_url: str) -> Garden:
    """State directory of the session's demo runs."""
    return Garden(tmp_path_factory.mktemp("demo"), bare_environment() | {"PREFECT_API_URL": prefect_url})


@pytest.fixture
def fresh_garden(tmp_path: Path, prefect_url: str) -> Garden:
    """A state directory that nothing has used."""
    return Garden(tmp_path / "state", bare_environment() | {"PREFECT_API_URL": prefect_url})


@pytest.fixture(scope="session")
def first(demo_garden: Garden) -> dict[str, Any]:
    """Summary of the first run in a state directory, which started a Prefect server of its own."""
    return Garden(demo_garden.state, bare_environment()).summary("demo", overrides=TINY)


@pytest.fixture(scope="session")
def later(demo_garden: Garden, first: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Summaries of later runs in the same directory: the same again, and with half and twice the budget."""
    variants = {
        "again": (),
        "half": (f"cache.device_budget={BUDGET // 2}",),
        "double": (f"cache.device_budget={BUDGET * 2}",),
    }
    with ThreadPoolExecutor(2) as pool:
        runs = {
            name: pool.submit(demo_garden.summary, "demo", overrides=(*TINY, *overrides))
            for name, overrides in variants.items()
        }
    return {name: run.result() for name, run in runs.items()}
