"""A sweep through the command line: a multi-label graph, one and two workers, and points that diverge."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.graph_store import GraphStore
from storage.manifest import Manifest
from tasks.tracking import open_client
from tests.flows.conftest import ROOT, Garden
from tests.tasks.training_graphs import NUM_CLASSES, community_data, with_many_labels

GRID = ("training.learning_rate=0.02,1.0e+30", "training.workers=1,2")
Summary = dict[str, Any]


def manifests(state: Path, stage: str) -> list[Manifest]:
    found = [Manifest.read(directory) for directory in (state / "artifacts" / stage).iterdir() if directory.is_dir()]
    return [manifest for manifest in found if manifest is not None]


def write_files(folder: Path) -> list[str]:
    """Write a graph whose nodes have several labels; return the settings that read it."""
    data = with_many_labels(community_data())
    dst = np.repeat(np.arange(len(data.rows)), np.diff(data.topology.indptr))
    np.savetxt(folder / "edges.csv", np.stack([data.topology.indices, dst], axis=1), "%d", delimiter=",")
    np.save(folder / "x.npy", data.rows)
    np.save(folder / "y.npy", data.labels)
    files = {"edges": "edges.csv", "features": "x.npy", "labels": "y.npy"}
    settings = [f"data.{name}={folder / file}" for name, file in files.items()]
    settings += ["data.format=edge_list", "data.split=random", f"data.num_nodes={len(data.rows)}"]
    settings += ["sampling.fanouts=[4,4]", "sampling.batch_size=16", "model.hidden=16", "training.epochs=4"]
    return [*settings, "training.metric=macro_f1", "training.class_weights=balanced", "profile.heldout_epochs=2"]


@pytest.fixture(scope="module")
def sweep(demo_garden: Garden, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    folder = tmp_path_factory.mktemp("sweep")
    overrides = [f"state_dir={folder / 'state'}", "name=many", *write_files(folder)]
    options = [part for text in overrides for part in ("--set", text)]
    options += [part for text in GRID for part in ("--grid", text)]
    command = [sys.executable, "-m", "flows.cli", "sweep", "demo", "--json", *options]
    done = subprocess.run(
        command, cwd=ROOT, env=dict(demo_garden.environment), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    summary: Summary = json.loads(done.stdout.splitlines()[-1])
    return folder / "state", summary


def test_the_best_point_is_named(sweep: tuple[Path, Summary]) -> None:
    _, summary = sweep
    points = summary["points"]
    assert [point["values"]["training.workers"] for point in points] == [1, 2, 1, 2]
    assert all(0 < point["valid"] <= 1 and 0 < point["test"] <= 1 for point in points[:2])
    assert all("diverged" in point["error"] for point in points[2:])
    assert summary["best"] == max(points[:2], key=lambda point: float(point["valid"]))
    assert any(line.startswith("best of 4 points: training.learning_rate=0.02") for line in summary["headline"])


def test_preparation_is_shared(sweep: tuple[Path, Summary]) -> None:
    state, _ = sweep
    for stage in ("ingest", "reorder", "profile", "cache"):
        assert len(manifests(state, stage)) == 1
    assert len(manifests(state, "train")) == 2


def test_the_store_holds_several_labels(sweep: tuple[Path, Summary]) -> None:
    state, _ = sweep
    (manifest,) = manifests(state, "reorder")
    with GraphStore.open(manifest.path("graph.h5")) as store:
        assert store.info.is_multi_label
        assert store.info.num_classes == NUM_CLASSES


def test_mlflow_has_one_run_a_point_below_the_sweeps(sweep: tuple[Path, Summary]) -> None:
    state, summary = sweep
    client = open_client(f"sqlite:///{state / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("garden")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    by_parent: dict[str | None, list[Any]] = {}
    for run in runs:
        by_parent.setdefault(run.data.tags.get("mlflow.parentRunId"), []).append(run)
    (parent,) = by_parent[None]
    assert parent.info.run_id == summary["mlflow_run_id"]
    points = sorted(by_parent[parent.info.run_id], key=lambda run: run.data.tags["sweep.point"])
    assert [run.info.status for run in points] == ["FINISHED", "FINISHED", "FAILED", "FAILED"]
    assert [run.data.params["training.workers"] for run in points] == ["1", "2", "1", "2"]
    for run, point in zip(points[:2], summary["points"], strict=False):
        assert run.data.metrics["valid/best_macro_f1"] == pytest.approx(point["valid"])
        assert {stage.info.run_name for stage in by_parent[run.info.run_id]} >= {"ingest", "train"}
        assert parent.data.metrics["sweep/valid_macro_f1"] > 0


def test_a_wrong_grid_is_refused_before_anything_runs(tmp_path: Path, demo_garden: Garden) -> None:
    command = [sys.executable, "-m", "flows.cli", "sweep", "demo", "--grid", "model.hiden=1,2"]
    command += ["--set", f"state_dir={tmp_path / 'state'}"]
    done = subprocess.run(
        command, cwd=ROOT, env=dict(demo_garden.environment), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "did you mean 'model.hidden'" in done.stderr
    assert not (tmp_path / "state").exists()
