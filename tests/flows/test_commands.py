"""The small commands through the real command line: what they say, what they refuse, their exit codes."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from typer.testing import CliRunner, Result

from conf.load import load_config, validate_config
from flows.cli import app
from flows.reference import render
from storage.graph_store import write_store
from tasks import doctor
from tests.flows.conftest import ROOT
from tests.graphs import csc_from_edges

COMMANDS = ("run", "up", "inspect", "verify", "predict", "embed", "gc", "doctor", "config")


def garden(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def answer(*arguments: object) -> Any:
    done = garden(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refusal(*arguments: object) -> tuple[int, str]:
    done = garden(*arguments)
    assert done.stdout == "", done.stdout
    *before, _ = done.stderr.splitlines()
    assert all(" starting " in line for line in before), done.stderr
    assert "Traceback" not in done.stderr
    return done.exit_code, done.stderr


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three nodes; node 2 has an in-degree of 2, node 0 an out-degree of 2."""
    path = tmp_path / "graph.h5"
    indptr, indices = csc_from_edges(3, [0, 0, 1], [1, 2, 2])
    features = np.arange(3 * 4000, dtype=np.float32).reshape(3, 4000)
    splits = {"train": np.array([0, 1])}
    write_store(
        path,
        indptr=indptr,
        indices=indices,
        features=features,
        labels=np.array([0, 1, -1]),
        label_names=("cat", "dog"),
        splits=splits,
        block_bytes=4096,
    )
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_by_example(command: str) -> None:
    done = garden(command, "--help")
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    assert "Examples" in text
    assert text.count(f"garden {command}") >= 2


def test_the_reference_is_made_from_the_help() -> None:
    page = ROOT / "docs" / "command-line.md"
    assert page.read_text(encoding="utf-8") == render(), "python -m flows.reference docs/command-line.md"


# config


def test_config_show_gives_back_what_it_was_given() -> None:
    shown = yaml.safe_load(garden("config", "show", "demo", "--set", "training.epochs=3").stdout)
    assert validate_config(shown, "shown") == load_config("demo", ["training.epochs=3"])
    assert answer("config", "show", "demo", "--set", "training.epochs=3") == shown


def test_config_schema_describes_every_section() -> None:
    schema = json.loads(garden("config", "schema").stdout)
    assert set(load_config("demo").model_dump()) == set(schema["properties"])
    assert schema["additionalProperties"] is False


def test_config_validate() -> None:
    done = garden("config", "validate", "demo")
    assert (done.exit_code, done.stdout) == (0, "valid: run 'demo', format demo, model sage\n")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("model.hiden=3", "unknown key 'model.hiden': did you mean 'model.hidden'?"),
        ("model.hidden=many", "model.hidden: Input should be a valid integer"),
        ("cache.device_budget=-1", "cache.device_budget: -1 "),
        ("cache.device_budget=-1MB", "cache.device_budget: '-1MB' is no byte size: write 500MB or 2GiB"),
        ("sampling.fanouts=[0]", "a fanout must be >= 1"),
    ],
)
def test_a_wrong_key_or_type_is_exit_code_2(setting: str, expected: str) -> None:
    for command in (("config", "validate"), ("run",)):
        code, line = refusal(*command, "demo", "--set", setting)
        assert code == 2
        assert expected in line


# run without a configuration


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--name", "mine"], "--edges FILE"),
        (["--edges", "e.xyz", "--name", "mine"], "give --format"),
        (["demo", "--edges", "e.csv"], "not both: leave out 'demo', or --edges"),
        (["demo", "--directed"], "with 'demo' write --set data.symmetrize=false instead"),
        (["edge_list", "--name", "foo"], "with 'edge_list' write --set name=foo instead"),
        (["--edges", "e.csv", "--name", "mine", "--labels", "y.npy"], "has no features (e.csv): give --features FILE"),
        (["--edges", "e.csv", "--name", "mine", "--features", "x.npy"], "has no labels (e.csv): give --labels FILE"),
        (["--edges", "e.bin", "--name", "mine", "--labels", "y.npy"], "no effect for format 'dgl'"),
    ],
)
def test_files_that_cannot_be_trained_on_are_refused_before_anything_starts(
    arguments: list[str], expected: str, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    code, line = refusal("run", *arguments, "--set", f"state_dir={state}")
    assert code == 2
    assert expected in line
    assert not state.exists()


def test_config_show_of_files() -> None:
    tree = answer("config", "show", "--edges", "my graph.csv.gz", "--features", "x.csv", "--id-column", "key")
    assert (tree["name"], tree["data"]["id_column"], tree["data"]["symmetrize"]) == ("my-graph", "key", True)
    preset = answer("config", "show", "edge_list")
    assert preset["data"]["symmetrize"] is True, "one default for both ways to name files"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["cora", "--set", "data.path=none"], "none does not exist: its files are at https://github.com/kimiyoung/"),
        (["musae_facebook", "--set", "data.path=none"], "elsewhere, --set data.path=DIR"),
        (["ogb", "--set", "data.path=none"], "to have it fetched, --set data.url=https://"),
        (["--edges", "none.csv", "--until", "reorder"], "none.csv does not exist: check the path"),
        (
            ["--edges", "e.csv", "--features", "x.npy", "--labels", "y.npy"],
            "x.npy has 4 rows, y.npy 5: they must agree",
        ),
    ],
)
def test_files_are_looked_at_before_anything_starts(
    arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.csv").write_text("0,1\n")
    np.save("x.npy", np.zeros((4, 2), np.float32))
    np.save("y.npy", np.zeros(5, np.int64))
    done = garden("run", *arguments)
    assert done.exit_code == 2
    assert "starting" in done.stderr.splitlines()[0]
    assert expected in done.stderr.splitlines()[-1]
    assert not Path(".garden").exists()


def test_a_mistyped_stage_is_told_the_right_one() -> None:
    done = garden("run", "demo", "--until", "training")
    assert done.exit_code == 2
    assert "'training' is no stage: did you mean 'train'?" in " ".join(done.stderr.replace("│", " ").split())


def test_no_help_names_the_type_of_a_flag() -> None:
    for command in ("run", "sweep", "inspect", "gc"):
        assert "bool" not in garden(command, "--help").stdout.lower(), command


def test_version() -> None:
    done = garden("--version")
    assert done.exit_code == 0
    assert done.stdout.startswith("garden")


def test_verify_of_a_mistyped_path_is_no_damage() -> None:
    code, line = refusal("verify", "nosuch")
    assert code == 2
    assert line.strip() == "error: nosuch does not exist: give a store, an artifact or a state directory"


# inspect


def test_inspect_a_store(store: Path) -> None:
    facts = answer("inspect", store)
    assert (facts["num_nodes"], facts["num_edges"], facts["feature_dim"]) == (3, 3, 4000)
    assert facts["splits"] == {"train": 2, "valid": 0, "test": 0}
    assert facts["class_names"] == ["cat", "dog"]
    assert facts["degree_percentiles"]["in"] == {"0": 0, "25": 0, "50": 1, "75": 2, "90": 2, "99": 2, "100": 2}
    assert facts["degree_percentiles"]["out"] == {"0": 0, "25": 0, "50": 1, "75": 2, "90": 2, "99": 2, "100": 2}
    assert facts["datasets"]["features/x"] == {"dtype": "float32", "shape": [3, 4000], "bytes": 48000, "blocks": 12}
    assert "48,000" in garden("inspect", store).stdout


def test_inspect_input_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2), np.float16))
    pl.DataFrame({"a": [1, 2], "b": ["x", "y"]}).write_parquet(tmp_path / "e.parquet")
    with gzip.open(tmp_path / "e.csv.gz", "wt") as file:
        file.write("source,target\n0,5\n7,3\n")
    assert answer("inspect", tmp_path / "x.npy")["shape"] == [3, 2]
    assert answer("inspect", tmp_path / "e.parquet")["columns"] == {"a": "Int64", "b": "String"}
    facts = answer("inspect", tmp_path / "e.csv.gz")
    assert (facts["rows"], facts["smallest_id"], facts["largest_id"], facts["delimiter"]) == (2, 0, 7, ",")
    pl.DataFrame({"src": [3, 9], "dst": [4, 1]}).write_parquet(tmp_path / "ids.parquet")
    ends = answer("inspect", tmp_path / "ids.parquet")["read_as_edges"]
    assert (ends["smallest_id"], ends["largest_id"]) == (1, 9)
    (tmp_path / "empty.csv").write_text("")
    facts = answer("inspect", tmp_path / "empty.csv")
    assert (facts["rows"], facts["note"]) == (0, "holds no edges")
    assert "delimiter" not in facts


def test_inspect_a_configuration_tells_what_is_not_finished(tmp_path: Path) -> None:
    stages = answer("inspect", "demo", "--state-dir", tmp_path)["stages"]
    assert list(stages) == ["ingest", "reorder", "profile", "cache", "train"]
    assert not any(stage["finished"] for stage in stages.values())


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    code, line = refusal("inspect", tmp_path / "pipe.csv")
    assert code == 2
    assert "pipe.csv is no regular file: write its content to one" in line


def test_names_that_are_not_utf8_are_shown_or_refused(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    (folder / "e.csv").write_text("0,1\n")
    assert answer("inspect", folder / "e.csv")["rows"] == 1
    command = [sys.executable, "-m", "flows.cli", "inspect", str(folder / "e.csv")]
    strict = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    shown = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=strict)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "caf?/e.csv" in shown.stdout
    for arguments in (["inspect", folder / "none.csv"], ["run", "--name", "n", "--edges", folder / "e.csv"]):
        code, line = refusal(*arguments)
        assert code == 2
        assert "caf" in line
    code, line = refusal("run", "demo", "--set", f"state_dir={folder}")
    assert (code, "is not UTF-8: rename the file or the folder" in line) == (2, True)


@pytest.mark.parametrize("what", ["nowhere.h5", "abcdef", "."])
def test_inspect_nothing_is_exit_code_2(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, line = refusal("inspect", what)
    assert code == 2
    assert line.startswith(f"error: {what}")


# doctor


def test_doctor_says_what_this_machine_can_do(tmp_path: Path) -> None:
    findings = {finding["topic"]: finding for finding in answer("doctor", "--state-dir", tmp_path)}
    assert {"python", "packages", "cores", "memory", "disk", "direct I/O", "kernel cache", "backend"} <= set(findings)
    assert all(finding["found"] for finding in findings.values())
    assert "MB/s" in findings["direct I/O"]["found"]
    assert not list(tmp_path.iterdir())


def test_doctor_ends_with_3_where_nothing_can_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_PACKAGES", ("numpy", "no-such-package"))
    done = garden("doctor", "--state-dir", tmp_path)
    assert done.exit_code == 3
    assert "to do: install no-such-package" in done.stdout


def test_doctor_sees_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (finding,) = doctor._ports({"--prefect-port": taken.getsockname()[1]})
    assert finding.status == "note"
    assert "--prefect-port" in finding.advice


def test_doctor_refuses_a_state_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = garden("doctor", "--state-dir", tmp_path / "file" / "state")
    assert done.exit_code == 3
    assert f"{tmp_path / 'file'} is a file" in done.stdout


# gc


@pytest.mark.parametrize("age", ["soon", "7", "d"])
def test_gc_refuses_what_is_no_age(age: str, tmp_path: Path) -> None:
    code, line = refusal("gc", "--state-dir", tmp_path, "--older-than", age)
    assert code == 2
    assert "7d" in line


def test_gc_without_a_state_directory(tmp_path: Path) -> None:
    code, line = refusal("gc", "--state-dir", tmp_path / "none")
    assert code == 2
    assert "--state-dir" in line


def test_help_shows_every_default_that_the_reference_shows() -> None:
    """A text in brackets would be taken for markup and vanish."""
    for command, default in (("run", "symmetrize"), ("predict", "as the training graph")):
        text = " ".join(garden(command, "--help").stdout.replace("│", " ").split())
        assert f"[default: ({default})]" in text
