"""Bad input, as the stages meet it: exit code 2, one line that says what is wrong and what to do, nothing left."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from conf.load import load_config
from storage.errors import GardenError, InputError
from storage.formats.base import GraphSource, LabelColumn
from storage.graph_store import INDICES, GraphStore
from storage.ingest import IngestOptions
from tasks.ingest import ingest_graph
from tasks.profile import profile_graph
from tasks.readiness import check_config, check_seeds
from tasks.reorder import reorder_graph
from tasks.run_context import RunContext
from tasks.sources import STORE_FILE
from tasks.tracking import Tracking

EDGES = "0,1\n1,2\n2,3\n3,0\n"
Run = Callable[..., RunContext]


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> Tracking:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return Tracking.connect(tmp_path_factory.mktemp("tracking"), "bad-input")


@pytest.fixture
def run(tracking: Tracking, tmp_path: Path) -> Run:
    """Runs ingest and more over four nodes with features and labels, or over what the overrides name."""
    write_good_files(tmp_path)

    def run(
        *overrides: str, until: str = "ingest", preset: str = "edge_list", planned: str | None = None
    ) -> RunContext:
        stages = {"ingest": ingest_graph, "reorder": reorder_graph, "profile": profile_graph}
        state, files = [f"state_dir={tmp_path / 'state'}"], []
        if preset == "edge_list":
            names = {"edges": "e.csv", "features": "x.npy", "labels": "y.npy"}
            files = [f"data.{field}={tmp_path / name}" for field, name in names.items()]
        config = load_config(preset, [*state, *files, *overrides])
        with tracking.parent_run("bad-input", {}) as parent:
            context = RunContext(config, tracking, parent)
            context.until = planned or until
            for stage, task in stages.items():
                task.fn(context)
                if stage == until:
                    return context
        raise AssertionError(f"no stage {until}")

    return run


def write_good_files(folder: Path) -> None:
    (folder / "e.csv").write_text(EDGES)
    np.save(folder / "x.npy", np.eye(4, dtype=np.float32))
    np.save(folder / "y.npy", np.array([0, 1, 0, 1]))


def check_refused(folder: Path, run: Callable[[], object], problem: str) -> None:
    """Run what must fail, and look at what it says and leaves."""
    with pytest.raises(GardenError, match=problem) as caught:
        run()
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    left = [
        path for path in (folder / "state" / "artifacts").rglob("*") if path.is_file() and ".locks" not in path.parts
    ]
    finished = {path.parent for path in left if path.name == "manifest.json"}
    assert {path.parent for path in left} == finished, "nothing half-written"
    assert not list((folder / "state").rglob("*.partial"))


@pytest.mark.parametrize(
    ("edges", "overrides", "problem"),
    [
        (None, [], r"e\.csv: cannot read the input file \(No such file or directory\); check the path"),
        ("0\t1\n", ["data.delimiter=;"], r"e\.csv, line 1: one field .* it looks delimited by '\\t'"),
        ("0,1\n1,2\n2\n", [], r"e\.csv, line 3: 1 fields where 2 are expected"),
        ("0,1\n1,4\n", [], r"e\.csv, line 2: edge \(1, 4\) names a node outside \[0, 4\): correct the row"),
        ("0,1\n1,-1\n", [], r"e\.csv, line 2: edge \(1, -1\) names a node outside"),
        ("0,1,0.5\n1,2,1\n", [], r"e\.csv gives edges 1 further column, .* --set data\.edge_weights=drop"),
        ("", ["data.features=", "data.labels="], r"e\.csv is empty: a graph needs at least one node"),
        ("source,target\n", [], r"e\.csv holds no edges: check the file, or set data\.num_nodes"),
        ("1,2\n2,4\n", [], r"e\.csv: ids start at 1 and end at 4, .*: subtract 1 from the ids, or give .*--id-column"),
        (
            "0,1\n1,9\n",
            [],
            r"Ids run from 0 to 9; where they are no row numbers, give features and labels an id column",
        ),
        ("source,target,weight\n0,1,1\n", [], r"gives edges further columns \(weight\), which"),
        ("a,b\n", [], "string ids, which are no row numbers of features"),
    ],
)
def test_edges(run: Run, tmp_path: Path, edges: str | None, overrides: list[str], problem: str) -> None:
    (tmp_path / "e.csv").unlink() if edges is None else (tmp_path / "e.csv").write_text(edges)
    check_refused(tmp_path, lambda: run(*overrides), problem)


@pytest.mark.parametrize(
    ("features", "overrides", "problem"),
    [
        (np.eye(5), ["data.num_nodes=4"], r"x\.npy has 5 rows, but the graph has 4 nodes: give one row a node"),
        (np.full((4, 1), np.nan), [], r"x\.npy: row 0, column 0 is nan: .*data\.nan_policy=zero"),
        (np.full((4, 1), "a"), [], r"x\.npy holds <U1, which is no number"),
        (np.zeros(4), [], r"x\.npy has shape \(4,\): features need two dimensions"),
        (np.zeros((4, 0)), [], r"x\.npy has no column of features: give one at least"),
    ],
)
def test_features(run: Run, tmp_path: Path, features: np.ndarray, overrides: list[str], problem: str) -> None:
    np.save(tmp_path / "x.npy", features)
    check_refused(tmp_path, lambda: run(*overrides), problem)


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (np.arange(5), r"x\.npy has 4 rows, .*y\.npy 5: they must agree, one row a node"),
        (np.zeros(4, complex), r"y\.npy holds complex128: give integers or strings"),
        (np.array([0, 1, 0.5, 1]), r"y\.npy: row 2 is 0\.5, which is no class"),
        (np.array([0, 1, np.inf, 1]), r"y\.npy: row 2 is inf, which is no class"),
        (np.zeros((4, 2, 2)), "give one label a node"),
    ],
)
def test_labels(run: Run, tmp_path: Path, labels: np.ndarray, problem: str) -> None:
    np.save(tmp_path / "y.npy", labels)
    check_refused(tmp_path, run, problem)


@pytest.mark.parametrize(
    ("labels", "stored"),
    [
        ([5.0, np.nan, 7.0, -1.0], [0, -1, 1, -1]),
        (np.eye(4)[[3, 0, 1, 2]], [3, 0, 1, 2]),
        (["b", "a", "b", ""], [1, 0, 1, -1]),
    ],
)
def test_labels_that_are_understood(run: Run, tmp_path: Path, labels: Any, stored: list[int]) -> None:
    np.save(tmp_path / "y.npy", np.array(labels))
    with GraphStore.open(run().manifest("ingest").path(STORE_FILE)) as store:
        assert store.read_labels().tolist() == stored


def test_rows_of_labels_that_are_understood(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.array([[1, 1], [0, 1], [np.nan, 0], [-1, -1]]))
    with GraphStore.open(run().manifest("ingest").path(STORE_FILE)) as store:
        assert store.read_multi_labels().tolist() == [[1, 1], [0, 1], [-1, 0], [-1, -1]]


def test_no_training_nodes(run: Run, tmp_path: Path) -> None:
    overrides = ("data.train_fraction=0", "data.valid_fraction=1")
    check_refused(
        tmp_path,
        lambda: run(*overrides, until="profile"),
        "of the labelled nodes of .*, 4, leaves no node to train",
    )


@pytest.mark.parametrize("content", [b"PAR1", b"", b"0,1\n"])
def test_what_is_no_parquet(run: Run, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "e.csv").write_bytes(content)
    check_refused(tmp_path, lambda: run("data.format=parquet"), "is no readable Parquet file")


def test_a_null_in_parquet(run: Run, tmp_path: Path) -> None:
    pl.DataFrame({"u": [0, None], "v": [1, 2]}).write_parquet(tmp_path / "e.csv")
    check_refused(tmp_path, lambda: run("data.format=parquet"), "row 1: column 'u' is null: give every edge two ids")


class Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch owned",)


def test_a_crafted_pickle(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for part in ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index"):
        (tmp_path / f"ind.cora.{part}").write_bytes(pickle.dumps(Attack(), protocol=2))
    check_refused(tmp_path, lambda: run(f"data.path={tmp_path}", preset="cora"), r"ind\.cora\.y is no Planetoid pickle")
    assert not (tmp_path / "owned").exists()


def test_a_flipped_bit_in_a_block(run: Run, tmp_path: Path) -> None:
    path = run(until="reorder").manifest("reorder").path(STORE_FILE)
    damaged = bytearray(path.read_bytes())
    damaged[GraphStore.open(path).extent(INDICES).offset] ^= 1
    path.write_bytes(damaged)
    check_refused(tmp_path, lambda: run(until="profile"), f"block 0 of {INDICES} .*: the file is damaged; delete it")


def test_a_split_that_trains_on_nothing_is_refused_before_anything_is_read() -> None:
    names = [f"data.{field}=absent" for field in ("edges", "features", "labels")]
    with pytest.raises(InputError, match=r"data\.train_fraction=0 leaves no node to train on: set it above 0"):
        check_config(load_config("edge_list", [*names, "data.split=random", "data.train_fraction=0"]))


def no_features_read(*_: object) -> None:
    raise AssertionError("the features were read before the labels were looked at")


@pytest.mark.parametrize("by_id", [False, True], ids=["by row", "by id"])
@pytest.mark.parametrize(
    ("labels", "overrides", "problem"),
    [
        ([-1, -1, -1, -1], (), "no node of .* has a label: all are negative"),
        ([0, 1, 0, 1], ("training.class_weights=[1, 2, 3]",), r"class_weights has 3 numbers, .* has 2 classes"),
        ([0, -1, -1, -1], ("data.train_fraction=0.4",), "of the labelled nodes of .*, 1, leaves no node to train on"),
    ],
)
def test_labels_that_nothing_can_be_trained_on(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_id: bool,
    labels: list[int],
    overrides: tuple[str, ...],
    problem: str,
) -> None:
    np.save(tmp_path / "y.npy", np.array(labels))
    names: tuple[str, ...] = ()
    if by_id:
        pl.DataFrame({"id": range(4), "x": [0.5] * 4}).write_csv(tmp_path / "x.csv")
        pl.DataFrame({"id": range(4), "y": labels}).write_csv(tmp_path / "y.csv")
        names = (f"data.features={tmp_path / 'x.csv'}", f"data.labels={tmp_path / 'y.csv'}", "data.id_column=id")
    monkeypatch.setattr("storage.ingest._check_features", no_features_read)
    check_refused(tmp_path, lambda: run(*names, *overrides, planned="train"), problem)


@pytest.mark.parametrize(
    ("rule", "train", "valid", "problem"),
    [
        ("provided", [0], [1], "leaves no labelled node to train on"),
        ("provided", [0, 2], [1], None),
        ("provided", [0, 99], [1], "leaves no labelled node to train on"),
        ("full", [0], [1, 2, 3], "leaves no labelled node to train on"),
        ("full", [0], [1, 2], None),
    ],
)
def test_a_split_of_its_own_without_labels_to_train_on(
    rule: Any, train: list[int], valid: list[int], problem: str | None
) -> None:
    """Node 0 of 4 has no label."""
    splits = {name: np.array(nodes) for name, nodes in (("train", train), ("valid", valid), ("test", [1]))}
    labels = LabelColumn(np.array([-1, 0, 1, 0], np.int32), ("a", "b"))
    source = GraphSource("g", None, 0, num_nodes=4, labels=labels, splits=splits)  # type: ignore[arg-type]
    with contextlib.nullcontext() if problem is None else pytest.raises(InputError, match=problem):
        check_seeds(source, IngestOptions(split=rule))


def test_generated_classes_and_weights_are_compared_before_anything_starts() -> None:
    with pytest.raises(InputError, match=r"class_weights has 2 numbers, the generated graph .* has 16 classes"):
        check_config(load_config("demo", ["training.class_weights=[1, 2]"]))
    with pytest.raises(InputError, match=r"data\.demo\.train_fraction=0 leaves no node to train on"):
        check_config(load_config("demo", ["data.demo.train_fraction=0"]))
