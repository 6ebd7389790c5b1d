"""The pipeline through the command line, on a tiny demo graph: JSON, artifacts, MLflow, reuse, budgets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage.graph_store import GraphStore
from storage.manifest import Manifest
from tasks.checkpoint import load_model
from tasks.specs import STAGES
from tasks.tracking import open_client
from tests.flows.conftest import BUDGET, Garden

PREPARATION = STAGES[:4]
Summary = dict[str, Any]


def manifest_of(summary: Summary, state: Path, stage: str) -> Manifest:
    manifest = Manifest.read(state / "artifacts" / stage / summary["stages"][stage]["digest"])
    assert manifest is not None
    return manifest


def device_bytes(summary: Summary) -> int:
    return int(summary["tier_bytes"]["device_feature"] + summary["tier_bytes"]["device_adjacency"])


def host_bytes(summary: Summary) -> int:
    return int(summary["tier_bytes"]["host_feature"] + summary["tier_bytes"]["host_adjacency"])


def test_the_json_line_holds_what_is_promised(first: Summary) -> None:
    assert len(first["mlflow_run_id"]) == 32
    assert 0 <= first["test_accuracy"] <= 1
    assert 0 <= first["valid_accuracy"] <= 1
    assert first["peak_rss_bytes"] > 100 << 20
    assert tuple(first["stages"]) == STAGES
    for stage in first["stages"].values():
        assert stage["seconds"] > 0
        assert stage["bytes"] > 0
        assert stage["reused"] is False
    for kind in ("feature", "adjacency"):
        rates = first["hit_rates"][kind]
        assert set(rates) == {"predicted", "measured", "oracle"}
        assert 0 < rates["measured"] < 1
        assert rates["measured"] == pytest.approx(rates["predicted"], abs=0.1)
        assert rates["predicted"] <= rates["oracle"] + 1e-9
    assert set(first["tier_bytes"]) == {"device_feature", "host_feature", "device_adjacency", "host_adjacency"}
    assert all(nbytes > 0 for nbytes in first["tier_bytes"].values())


def test_artifacts_are_whole_and_the_ingested_store_is_collected(first: Summary, demo_garden: Garden) -> None:
    for stage in STAGES:
        manifest = manifest_of(first, demo_garden.state, stage)
        assert manifest.nbytes == first["stages"][stage]["bytes"]
        assert (manifest.missing_files() == []) is (stage != "ingest"), stage
    assert manifest_of(first, demo_garden.state, "ingest").counts["rows_read"] == 20_000
    laid_out = manifest_of(first, demo_garden.state, "reorder")
    with GraphStore.open(laid_out.path("graph.h5")) as store:
        assert (store.info.num_nodes, store.info.num_edges) == (2000, 20_000)
        assert (store.read_out_degree()[:-1] >= store.read_out_degree()[1:]).all()
    assert not list(demo_garden.state.rglob("*.partial"))
    assert not (demo_garden.state / "checkpoints").exists() or not list((demo_garden.state / "checkpoints").iterdir())


def test_mlflow_has_the_run_with_everything_to_compare(first: Summary, demo_garden: Garden) -> None:
    client = open_client(f"sqlite:///{demo_garden.state / 'mlflow' / 'mlflow.db'}")
    run = client.get_run(first["mlflow_run_id"])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "demo"
    assert run.data.params["data.demo.nodes"] == "2000"
    assert run.data.params["cache.device_budget"] == str(BUDGET)
    for metric in ("train/loss", "valid/accuracy", "cache/feature_hit_rate", "io/host_feature_bytes", "time/train_s"):
        assert [point.step for point in client.get_metric_history(run.info.run_id, metric)] == [0, 1], metric
    assert {f"stage/{stage}_s" for stage in STAGES} <= set(run.data.metrics)
    assert run.data.metrics["ingest/num_nodes"] == 2000
    assert run.data.metrics["cache/oracle_feature_hit_rate"] == first["hit_rates"]["feature"]["oracle"]
    assert run.data.metrics["test/best_accuracy"] == first["test_accuracy"]
    assert run.data.tags["prefect.flow_run_id"] == first["prefect_flow_run_id"]
    assert f"/v2/runs/flow-run/{first['prefect_flow_run_id']}" in run.data.tags["mlflow.note.content"]
    pictures = {item.path for item in client.list_artifacts(run.info.run_id, "pictures")}
    assert pictures == {f"pictures/{name}.png" for name in ("degrees", "hit_rates", "time", "training")}
    children = client.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
    assert {child.info.run_name for child in children} == set(STAGES)
    assert {child.info.status for child in children} == {"FINISHED"}


def test_the_model_is_registered_and_reads_back(first: Summary, demo_garden: Garden, tmp_path: Path) -> None:
    client = open_client(f"sqlite:///{demo_garden.state / 'mlflow' / 'mlflow.db'}")
    champion = client.get_model_version_by_alias("demo", "champion")
    assert champion.run_id is not None
    folder = Path(client.download_artifacts(champion.run_id, "model", str(tmp_path)))
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "arch.json", "data.json", "state_dict.pt"]
    model = load_model(folder)
    assert (model.spec.in_dim, model.spec.num_classes) == (64, 16)


def test_the_model_comes_with_a_card(first: Summary, demo_garden: Garden, tmp_path: Path) -> None:
    client = open_client(f"sqlite:///{demo_garden.state / 'mlflow' / 'mlflow.db'}")
    card = Path(client.download_artifacts(first["mlflow_run_id"], "model/README.md", str(tmp_path))).read_text()
    for told in (
        f"| data digest | `{first['stages']['ingest']['digest']}` |",
        "| num nodes | 2,000 |",
        f"| test accuracy | {first['test_accuracy']:.4f} |",
        "garden predict demo@champion -o classes.parquet",
        'load_model(Path("model"))',
        "    nodes: 2000\n",
        first["mlflow_run_id"],
    ):
        assert told in card, told
    assert str(demo_garden.state) not in card


def test_the_summary_lies_on_disk_too(first: Summary, demo_garden: Garden) -> None:
    folder = demo_garden.state / "runs" / first["mlflow_run_id"]
    assert json.loads((folder / "summary.json").read_text()) == first


def test_the_second_run_reuses_the_preparation_and_trains_the_same(first: Summary, later: dict[str, Summary]) -> None:
    again = later["again"]
    assert {name: stage["reused"] for name, stage in again["stages"].items()} == {
        **dict.fromkeys(PREPARATION, True),
        "train": False,
    }
    assert again["test_accuracy"] == first["test_accuracy"]
    assert again["tier_bytes"] == first["tier_bytes"]
    assert again["mlflow_run_id"] != first["mlflow_run_id"]


def test_the_budget_decides_the_bytes_of_each_tier_and_nothing_else(first: Summary, later: dict[str, Summary]) -> None:
    half, double = later["half"], later["double"]
    assert device_bytes(half) < device_bytes(first) < device_bytes(double)
    assert host_bytes(half) > host_bytes(first) > host_bytes(double)
    for other in (half, double):
        assert other["test_accuracy"] == first["test_accuracy"]
        reused = {name for name, stage in other["stages"].items() if stage["reused"]}
        assert reused == {"ingest", "reorder", "profile"}
