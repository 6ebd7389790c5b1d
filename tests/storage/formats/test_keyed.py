"""Features and labels that go by an id column: rows in any order, ids of any kind, joined within bounded memory."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import distinct_keys, keyed_rows, numbering
from storage.distinct_keys import DistinctKeys
from storage.errors import InputError
from storage.formats.edge_list import open_edge_list
from storage.formats.parquet import open_parquet
from storage.graph_store import GraphStore
from storage.ingest import IngestOptions, ingest
from storage.keyed_rows import in_node_order
from storage.numbering import Room
from tests.keyed_graphs import NameIds, gapped_ids, string_ids, write_keyed_graph

OPTIONS = IngestOptions(split="random", block_bytes=4096)
EDGES = [("ann", "bob"), ("bob", "dora"), ("carl", "ann"), ("dora", "zoë")]
NAMES = ["ann", "bob", "carl", "dora", "zoë"]
NUMBERS = {name: 10 + 7 * place for place, name in enumerate(NAMES)}
FEATURES = {name: [float(place), place / 4] for place, name in enumerate(NAMES)}
LABELS = {"zoë": "red", "ann": "blue", "carl": "red"}


def write(path: Path, table: pl.DataFrame) -> Path:
    if path.suffix == ".parquet":
        table.write_parquet(path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(table.write_csv().encode()))
    else:
        table.write_csv(path, separator="\t" if path.suffix == ".tsv" else ",")
    return path


def tables(folder: Path, suffix: str, ids: dict[str, Any], order: list[str]) -> dict[str, Any]:
    edges = pl.DataFrame({"src": [ids[u] for u, _ in EDGES], "dst": [ids[v] for _, v in EDGES]})
    features = pl.DataFrame(
        {"f0": [FEATURES[n][0] for n in order], "key": [ids[n] for n in order], "f1": [FEATURES[n][1] for n in order]}
    )
    labels = pl.DataFrame({"key": [ids[n] for n in LABELS], "kind": list(LABELS.values())})
    edge_file = write(folder / f"e{'.parquet' if suffix == '.parquet' else '.csv'}", edges)
    return {
        "edges": edge_file,
        "features": write(folder / f"x{suffix}", features),
        "labels": write(folder / f"y{suffix}", labels),
    }


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz", ".parquet"])
@pytest.mark.parametrize("kind", ["strings", "gaps", "row numbers"])
@pytest.mark.parametrize("order", [NAMES, ["dora", "zoë", "ann", "carl", "bob"]])
def test_rows_are_found_by_id(tmp_path: Path, suffix: str, kind: str, order: list[str]) -> None:
    kinds: dict[str, dict[str, Any]] = {"strings": {n: n for n in NAMES}, "gaps": NUMBERS}
    ids = kinds.get(kind) or {name: place for place, name in enumerate(NAMES)}
    files = tables(tmp_path, suffix, ids, order)
    source = (open_parquet if suffix == ".parquet" else open_edge_list)(**files, id_column="key")
    report = ingest(source, OPTIONS, tmp_path / "g.h5")
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.read_original_ids().tolist() == list(ids.values())
        assert store.read_features().tolist() == [FEATURES[name] for name in NAMES]
        named = [store.info.label_names[label] if label >= 0 else None for label in store.read_labels()]
        assert named == [LABELS.get(name) for name in NAMES]
        indptr, indices = store.read_indptr(), store.read_indices()
        assert {(NAMES[u], NAMES[v]) for v in range(5) for u in indices[indptr[v] : indptr[v + 1]]} == set(EDGES)
    assert report.unlabelled_nodes == 2
    assert not [path for path in tmp_path.iterdir() if path.is_dir()], "scratch files are gone"


@pytest.mark.parametrize("ids", [string_ids, gapped_ids])
def test_the_store_does_not_depend_on_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: NameIds) -> None:
    """Ids and rows that go by way of scratch files, and those that stay in memory."""
    monkeypatch.setattr(distinct_keys, "CHUNK_EDGES", 500)
    monkeypatch.setattr(numbering, "LEAST_NUMBERING_BYTES", 50_000)
    write_keyed_graph(tmp_path / "graph", ".parquet", 3000, 9000, 3, ids=ids, labelled=0.5)
    files: dict[str, Any] = {name: tmp_path / f"graph/{name}.parquet" for name in ("edges", "features", "labels")}
    spilled: list[Path] = []
    spill = DistinctKeys._spill

    def watched(keys: DistinctKeys[Any]) -> None:
        spill(keys)
        spilled.extend(keys._files)

    monkeypatch.setattr(DistinctKeys, "_spill", watched)

    def plan(work_bytes: int | None, _: Any) -> int | None:
        return work_bytes

    for name, room, work_bytes in (("whole", None, None), ("small", Room(1), 10_000)):
        source = open_parquet(**files, id_column="id")
        ingest(source, OPTIONS, tmp_path / name, plan=partial(plan, work_bytes), room=room)
        assert bool(spilled) == (name == "small")
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "small").read_bytes()


def test_a_node_without_edges_comes_from_its_features(tmp_path: Path) -> None:
    files = tables(tmp_path, ".csv", NUMBERS, NAMES)
    with files["features"].open("a") as file:
        file.write("9,99,9\n")
    report = ingest(open_edge_list(**files, id_column="key"), OPTIONS, tmp_path / "g.h5")
    assert (report.num_nodes, report.isolated_nodes) == (6, 1)


def test_labels_of_no_node_are_counted(tmp_path: Path) -> None:
    files = tables(tmp_path, ".csv", NUMBERS, NAMES)
    with files["labels"].open("a") as file:
        file.write("99,green\n98,green\n")
    report = ingest(open_edge_list(**files, id_column="key"), OPTIONS, tmp_path / "g.h5").as_dict()
    assert report["labels_of_no_node"] == 2
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.info.label_names == ("blue", "red"), "no class of nodes that are not there"


@pytest.mark.parametrize("values", [["3", "1", "3"], ["3.0", "1", "3"], [3, 1, 3]])
def test_classes_are_numbers_where_all_are(tmp_path: Path, values: list[Any]) -> None:
    files = tables(tmp_path, ".csv", NUMBERS, NAMES)
    write(files["labels"], pl.DataFrame({"key": [10, 17, 24], "kind": values}, strict=False))
    ingest(open_edge_list(**files, id_column="key"), OPTIONS, tmp_path / "g.h5")
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.info.label_names == ("1", "3")
        assert store.read_labels().tolist() == [1, 0, 1, -1, -1]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("features", "key,f\n10,1\n17,2\n24,3\n", r"no row for 2 of 5 nodes, the first of them 31: give every id"),
        ("features", "key,f\n10,1\n17,2\n24,3\n31,4\n38,5\n17,6\n", r"row 5 is the second of node 17"),
        ("features", "key,f\n10,1\nx,2\n", r"x\.csv, line 3: the id 'x' is none of the integers that edges name"),
        ("features", "key,f\n10,1\n-4,2\n", r"x\.csv, line 3: the id '-4' is none of the integers"),
        ("features", "key,f\n10,1\n,2\n", r"x\.csv, line 3: an id is empty"),
        ("features", "key,f\n10,1\n17,red\n", r"x\.csv, line 3: 'red' is no number"),
        ("features", "key,f\n10,1\n17\n", r"x\.csv, line 3: 1 fields where 2 are expected"),
        ("features", "id,f\n10,1\n", r"x\.csv has no column 'key': it has id, f"),
        ("features", "key\n10\n", r"the first line of a table names its columns"),
        ("features", "key,key\n10,1\n", r"names column 'key' twice"),
        ("features", "", r"the first line of a table names its columns"),
        ("labels", "key,a,b\n10,1,2\n", r"2 columns beside 'key' \(a, b\): give one column of labels"),
        ("labels", "key,kind\n10,a\n17,b\n10,c\n", r"y\.csv, line 4: 10 has a label already"),
        ("labels", "key,kind\n10,1\n17,0.5\n", r"y\.csv, line 3: the label is 0\.5, which is no class"),
        ("labels", "key,kind\n1,a\n2,b\n", r"none of its 2 ids is that of a node"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, content: str, expected: str) -> None:
    files = tables(tmp_path, ".csv", NUMBERS, NAMES)
    files[name].write_text(content)
    with pytest.raises(InputError, match=expected):
        ingest(open_edge_list(**files, id_column="key"), OPTIONS, tmp_path / "g.h5")
    assert not (tmp_path / "g.h5").exists()


def test_arrays_have_no_id_column_and_text_needs_one(tmp_path: Path) -> None:
    files = tables(tmp_path, ".csv", NUMBERS, NAMES)
    np.save(tmp_path / "x.npy", np.zeros((5, 2)))
    with pytest.raises(InputError, match=r"x\.npy holds bare rows, which name no node: give CSV or Parquet"):
        open_edge_list(files["edges"], features=tmp_path / "x.npy", id_column="key")
    with pytest.raises(InputError, match=r"x\.csv is a text table, whose rows go by an id column: name it with --id-c"):
        open_edge_list(**files)


def test_string_ids_with_bare_rows_are_told_the_way_out(tmp_path: Path) -> None:
    files = tables(tmp_path, ".csv", {n: n for n in NAMES}, NAMES)
    np.save(tmp_path / "x.npy", np.zeros((5, 2)))
    with pytest.raises(InputError, match=r"e\.csv has string ids, .* name it with --id-column \(data\.id_column\)"):
        open_edge_list(files["edges"], features=tmp_path / "x.npy")


@settings(max_examples=60, deadline=None)
@given(data=st.data(), num_nodes=st.integers(1, 60), width=st.integers(0, 5), window=st.integers(1, 400))
def test_scattered_rows_come_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, num_nodes: int, width: int, window: int
) -> None:
    order = np.array(data.draw(st.permutations(range(num_nodes))), np.int64)
    rows = np.random.default_rng(0).standard_normal((num_nodes, width)).astype(np.float32)
    step = data.draw(st.integers(1, num_nodes))
    chunks = [(order[i : i + step], rows[order[i : i + step]]) for i in range(0, num_nodes, step)]
    scratch, work_bytes = tmp_path_factory.mktemp("scratch"), data.draw(st.none() | st.integers(1, 400))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyed_rows, "_LEAST_WINDOW_BYTES", window)
        patch.setattr(keyed_rows, "_LEAST_WRITE_BYTES", 1)
        found = np.concatenate(list(in_node_order(chunks, num_nodes, scratch, work_bytes)))
    np.testing.assert_array_equal(found, rows)
    assert list(scratch.iterdir()) == []
