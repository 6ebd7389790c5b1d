"""A graph of one's own, without a configuration: trained, predicted, embedded, verified, tidied up."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from conf.load import load_config
from flows.answering import free_port
from flows.cli import app
from flows.commands import run as run_command
from storage.graph_store import FEATURES, GraphStore
from tasks.collect import needed_artifacts
from tasks.tracking_models import champion_digests, registered_version
from tests.flows.conftest import ROOT, bare_environment
from tests.tasks.training_graphs import NUM_CLASSES, community_data

pytestmark = pytest.mark.usefixtures("process_as_it_is")
NAMES = [f"kind {c}" for c in range(NUM_CLASSES)]


@dataclass(frozen=True)
class Mine:
    """Files of a graph, and the state directory of the run that trained on them."""

    folder: Path
    summary: dict[str, Any]

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def laid_out(self) -> Path:
        return self.artifact("reorder")

    def artifact(self, stage: str) -> Path:
        return self.state / "artifacts" / stage / str(self.summary["stages"][stage]["digest"])


def run_garden(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flows.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120, check=False)


def garden(*arguments: object) -> Result:
    """The command line within this process: the imports of a new one take longer than all the rest."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


IDS = [f"node/{node:03}" for node in range(300)]


def write_files(folder: Path) -> list[object]:
    """Options that name the files: all go by names of the nodes, in no order; text labels, some missing."""
    data, ids = community_data(), np.array(IDS)
    dst = np.repeat(np.arange(data.topology.num_nodes), data.topology.in_degree())
    pl.DataFrame({"src": ids[data.topology.indices], "dst": ids[dst]}).write_csv(folder / "mine.csv")
    columns = {f"f{column}": data.rows[:, column] for column in range(data.rows.shape[1])}
    pl.DataFrame({"name": ids, **columns}).sample(fraction=1, shuffle=True, seed=1).write_csv(folder / "x.csv")
    labels = [None if label < 0 else NAMES[label] for label in data.labels]
    table = pl.DataFrame({"name": ids, "label": labels})
    table.sample(fraction=1, shuffle=True, seed=2).write_parquet(folder / "y.parquet")
    return ["--edges", folder / "mine.csv", "--features", folder / "x.csv", "--id-column", "name"]


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory, prefect_url: str) -> Mine:
    folder = tmp_path_factory.mktemp("mine")
    environment = bare_environment() | {"PREFECT_API_URL": prefect_url}
    options = [*write_files(folder), "--labels", folder / "y.parquet", "--json"]
    sets = ["--set", f"state_dir={folder / 'state'}", "--set", "training.epochs=8", "--set", "cache.device_budget=0"]
    done = run_garden(environment, "run", *options, *sets)
    assert done.returncode == 0, done.stderr
    return Mine(folder, json.loads(done.stdout.splitlines()[-1]))


def test_it_learned_with_a_device_budget_of_nothing(mine: Mine) -> None:
    assert mine.summary["name"] == "mine"
    assert mine.summary["test_accuracy"] > 0.6
    assert mine.summary["tier_bytes"]["device_feature"] == 0
    assert mine.summary["stages"]["train"]["reused"] is False


def test_predict_the_training_graph_and_the_same_files_as_a_new_one(mine: Mine, tmp_path: Path) -> None:
    old, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    done = garden("predict", mine.artifact("train"), "-o", old, "--state-dir", mine.state, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == {"path": str(old), "rows": 300, "columns": NUM_CLASSES}
    files = ["--edges", mine.folder / "mine.csv", "--features", mine.folder / "x.csv", "--id-column", "name"]
    done = garden("predict", "mine@champion", *files, "-o", new, "--state-dir", mine.state)
    assert (done.exit_code, done.stdout) == (0, f"{new}: 300 nodes, 4 classes\n"), done.stderr
    first, second = pl.read_parquet(old), pl.read_parquet(new)
    assert first.columns == ["id", "class", *(f"p_{name}" for name in NAMES)]
    assert first["id"].to_list() == IDS
    assert first["class"].to_list() == second["class"].to_list()
    table, other = first.drop("id", "class").to_numpy(), second.drop("id", "class").to_numpy()
    np.testing.assert_allclose(table, other, atol=1e-5)
    np.testing.assert_allclose(table.sum(axis=1), 1, atol=1e-5)
    assert [NAMES[c] for c in table.argmax(axis=1)] == first["class"].to_list()
    truth = pl.read_parquet(mine.folder / "y.parquet").sort("name")["label"]
    assert np.mean(first["class"].to_numpy() == truth.to_numpy()) > 0.6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.parquet", "old.parquet"]


def test_embed_writes_parquet_and_npy(mine: Mine, tmp_path: Path) -> None:
    for name in ("emb.parquet", "emb.npy", "emb.csv"):
        store, state = mine.laid_out.name[:8], ("--state-dir", mine.state)
        done = garden("embed", mine.artifact("train") / "model", store, "-o", tmp_path / name, *state)
        assert done.exit_code == 0, done.stderr
    table, rows = pl.read_parquet(tmp_path / "emb.parquet"), np.load(tmp_path / "emb.npy")
    assert table.columns == ["id", "embedding"]
    assert rows.shape == (300, 64)
    assert (rows >= 0).all()  # they come out of a ReLU
    np.testing.assert_array_equal(table["embedding"].to_numpy(), rows)
    text = pl.read_csv(tmp_path / "emb.csv")
    assert text.columns == ["id", *(f"e{column}" for column in range(64))]
    assert text["id"].to_list() == IDS
    np.testing.assert_allclose(text.drop("id").to_numpy(), rows, rtol=1e-5)


def test_predictions_as_csv(mine: Mine, tmp_path: Path) -> None:
    for name in ("p.csv", "p.parquet"):
        done = garden("predict", mine.artifact("train"), "-o", tmp_path / name, "--state-dir", mine.state)
        assert done.exit_code == 0, done.stderr
    text, table = pl.read_csv(tmp_path / "p.csv"), pl.read_parquet(tmp_path / "p.parquet")
    assert text.columns == table.columns
    assert text["id"].to_list() == IDS
    assert text["class"].to_list() == table["class"].to_list()


def test_the_configuration_of_a_run_runs_again(mine: Mine) -> None:
    path = mine.state / "runs" / str(mine.summary["mlflow_run_id"]) / "config.yaml"
    facts = json.loads(garden("inspect", path, "--json").stdout)
    assert all(stage["finished"] for stage in facts["stages"].values())
    assert {name: stage["digest"] for name, stage in facts["stages"].items()} == {
        name: stage["digest"] for name, stage in mine.summary["stages"].items()
    }


def test_inspect_finds_the_newest_run_of_a_name(mine: Mine) -> None:
    facts = json.loads(garden("inspect", "mine", "--state-dir", mine.state, "--json").stdout)
    assert (facts["kind"], facts["name"]) == ("run", "mine")
    assert facts["stages"]["reorder"]["path"] == str(mine.laid_out)
    assert [stage for stage, facts in facts["stages"].items() if not facts["there"]] == ["ingest"]
    done = garden("inspect", "nobody", "--state-dir", mine.state)
    assert done.exit_code == 2
    assert "neither a file nor a preset" in done.stderr
    assert "a digest or the name of a run" in done.stderr


def test_the_end_of_a_run_names_version_and_champion(mine: Mine) -> None:
    digest = mine.artifact("train").name
    assert registered_version(mine.state, "mine", digest) == ("1", "1")
    assert registered_version(mine.state, "mine", "0" * 24) is None
    champion = champion_digests(mine.state)["mine"]
    assert (champion["train_digest"], champion["store_digest"]) == (digest, mine.laid_out.name)


def test_a_run_ends_well_where_mlflow_went_away_meanwhile(mine: Mine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    config = load_config("demo", [f"state_dir={mine.state}", "name=mine"])
    where = run_command._where_to_look(config, mine.summary)
    assert "model" not in where
    assert Path(where["this summary"]).name == "summary.json"


def test_what_the_champion_needs_is_kept(mine: Mine, tmp_path: Path) -> None:
    artifacts = {("reorder", mine.laid_out.name), ("train", mine.artifact("train").name)}
    aside = tmp_path / "runs"
    (mine.state / "runs").rename(aside)
    try:
        assert artifacts <= needed_artifacts(mine.state)
    finally:
        aside.rename(mine.state / "runs")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nothing", "STORE"], "nothing is no model"),
        (["mine@7", "STORE"], "versions are 1 (champion)"),
        (["MODEL", "feedbeef"], "feedbeef is no store"),
        (["STORE", "STORE"], "holds no model"),
        (["MODEL", "STORE", "--edges", "EDGES"], "give a STORE, or a new graph"),
        (["MODEL", "STORE", "--out", "x.xls"], "x.xls: the output is .parquet or .csv"),
        (["MODEL", "STORE", "--host-budget", "1MB"], "set --host-budget to at least"),
        (["MODEL", "--edges", "EDGES"], "give --features"),
        (["MODEL", "--edges", "EDGES", "--features", "NARROW"], "has 3 features a node, MODEL was trained on 8"),
    ],
)
def test_what_cannot_be_predicted_is_exit_code_2_and_one_line(
    mine: Mine, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    narrow = tmp_path / "narrow.npy"
    np.save(narrow, np.zeros((300, 3), np.float32))
    (mine.folder / "bare.csv").write_text("0,1\n1,299\n")
    paths = {"MODEL": mine.artifact("train"), "STORE": mine.laid_out, "EDGES": mine.folder / "bare.csv"}
    paths |= {"NARROW": narrow}
    words = [str(paths.get(word, word)) for word in arguments]
    done = garden("predict", *words, "--state-dir", mine.state)
    assert (done.exit_code, done.stdout) == (2, ""), done.stderr
    line = done.stderr.splitlines()[-1]
    assert expected.replace("MODEL", str(paths["MODEL"])) in line
    assert "Traceback" not in done.stderr


def test_inspect_finds_the_artifact_by_its_digest(mine: Mine) -> None:
    digest = mine.artifact("train").name
    done = garden("inspect", digest[:8], "--state-dir", mine.state, "--json")
    facts = json.loads(done.stdout)
    assert (facts["stage"], facts["digest"]) == ("train", digest)
    assert facts["counts"]["test_accuracy"] == mine.summary["test_accuracy"]


def test_verify_names_each_damaged_block(mine: Mine) -> None:
    whole = garden("verify", mine.state, "--json")
    assert whole.exit_code == 0, whole.stderr
    found = json.loads(whole.stdout)
    assert (found["stores"], found["artifacts"], found["removed"], found["damage"]) == (1, 5, 1, [])
    path = mine.laid_out / "graph.h5"
    with GraphStore.open(path) as store:
        offset = store.extent(FEATURES).offset
    with path.open("r+b") as file:
        file.seek(offset + 5)
        byte = file.read(1)
        file.seek(offset + 5)
        file.write(bytes([byte[0] ^ 1]))
        file.flush()
        damaged = garden("verify", mine.state)
        file.seek(offset + 5)
        file.write(byte)
    assert (damaged.exit_code, damaged.stdout) == (2, "")
    assert f"block 0 of {FEATURES}" in damaged.stderr.splitlines()[-1]


def test_gc_removes_a_retired_artifact_and_nothing_that_the_run_needs(mine: Mine) -> None:
    retired = mine.state / "artifacts" / "cache" / ("0" * 24)
    retired.mkdir()
    (retired / "plan.h5").write_bytes(b"x" * 1000)
    dry = garden("gc", "--state-dir", mine.state, "--dry-run")
    assert dry.exit_code == 0, dry.stderr
    assert str(retired) in dry.stdout
    assert retired.exists()
    done = json.loads(garden("gc", "--state-dir", mine.state, "--json").stdout)
    assert [item["path"] for item in done["removed"] if "__pycache__" not in item["path"]] == [str(retired)]
    assert not retired.exists()
    assert all(mine.artifact(stage).exists() for stage in mine.summary["stages"])
