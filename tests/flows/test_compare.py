"""A comparison through the command line: figures, pictures, a run a policy, and a recommendation that can be run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conf.load import load_config
from tasks.tracking import open_client
from tests.flows.conftest import ROOT, Garden

SETTINGS = ("data.demo.nodes=3000", "data.demo.edges=30000", "sampling.batch_size=60", "sampling.fanouts=[4,4]")
OPTIONS = ("--budget", "0.05", "--budget", "0.2", "--seeds", "1")


def compare(garden: Garden, state: Path, *options: str) -> subprocess.CompletedProcess[str]:
    sets = [part for text in (f"state_dir={state}", *SETTINGS) for part in ("--set", text)]
    command = [sys.executable, "-m", "flows.cli", "compare", "demo", *sets, *options, "--json"]
    return subprocess.run(
        command, cwd=ROOT, env=dict(garden.environment), capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def compared(demo_garden: Garden, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    state = tmp_path_factory.mktemp("compare") / "state"
    done = compare(demo_garden, state, *OPTIONS, "--set", "cache.device_budget=100kB", "--set", "training.epochs=1")
    assert done.returncode == 0, done.stderr
    return state, json.loads(done.stdout.splitlines()[-1])


def test_every_policy_is_measured_below_the_bounds(compared: tuple[Path, dict[str, Any]]) -> None:
    facts = compared[1]["compare"]
    rates = facts["feature_hit_rate"]
    assert {"smoothed", "presc_1", "out_degree", "lru", "s3_fifo", "fastgl", "ducati", "belady"} <= set(rates)
    for values in rates.values():
        assert all(0 <= value <= best + 1e-9 for value, best in zip(values, rates["belady"], strict=True))
    assert all(random < ours for random, ours in zip(rates["random"], rates["smoothed"], strict=True))
    assert facts["budgets"] == sorted(facts["budgets"])
    assert facts["device_budget"] in facts["budgets"]


def test_pictures_table_and_a_run_a_policy_are_left(compared: tuple[Path, dict[str, Any]]) -> None:
    state, summary = compared
    folder = state / "runs" / summary["mlflow_run_id"]
    for name in ("policies", "marginal_gain", "profile_epochs", "splits"):
        assert (folder / f"{name}.png").stat().st_size > 10_000
    assert "| smoothed |" in (folder / "policies.md").read_text(encoding="utf-8")
    assert not (folder / "trace.h5").exists()
    client = open_client(f"sqlite:///{state.absolute() / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("garden")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], "tags.policy != ''", max_results=100)
    assert {run.data.tags["policy"] for run in runs} == set(summary["compare"]["feature_hit_rate"])
    assert all("compare/feature_hit_rate" in run.data.metrics for run in runs)


def test_the_recommendation_is_a_sentence_and_a_configuration_that_runs(
    demo_garden: Garden, compared: tuple[Path, dict[str, Any]]
) -> None:
    facts = compared[1]["compare"]
    assert facts["recommendation"].count(".") >= 1
    assert compared[1]["headline"][-1] == facts["recommendation"]
    path = facts["recommended_file"]
    assert load_config(path).cache.device_budget == 100_000
    command = [sys.executable, "-m", "flows.cli", "run", path, "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env=dict(demo_garden.environment), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["test_accuracy"] is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--policy", "lruu"), "unknown policy 'lruu'"), (("--budget", "1.5"), "budgets"), (("--seeds", "0"), "seeds")],
)
def test_a_mistake_is_told_before_anything_starts(
    demo_garden: Garden, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    done = compare(demo_garden, tmp_path / "state", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "state").exists()
