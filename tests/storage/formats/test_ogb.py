"""OGB directories of nodes, links and graphs, as CSV and as arrays."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from storage.errors import InputError
from storage.formats import text_table
from storage.formats.ogb import ogb_files, open_ogb
from storage.graph_store import GraphStore
from storage.ingest import IngestOptions, ingest
from tests.storage.formats.read import read_edges, read_features, real_graph

EDGES = np.array([[0, 1], [3, 1], [2, 0]])
FEATURES = np.array([[0.5, -1], [2, 3], [4, 5], [6, 7]], np.float32)


def write_csv(folder: Path, **tables: Any) -> None:
    for name, table in tables.items():
        rows = [",".join("" if value != value else str(value) for value in np.atleast_1d(row)) for row in table]
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{row}\n" for row in rows)
        (folder / f"{name.replace('_', '-')}.csv.gz").write_bytes(gzip.compress(text.encode()))


def write_split(folder: Path, **splits: Any) -> None:
    write_csv(folder, **({"train": [1, 0], "valid": [2], "test": [3]} | splits))


def write_nodes(folder: Path, form: str = "csv", **changes: Any) -> Path:
    """A data set of one graph with four nodes."""
    parts: dict[str, Any] = {
        "edge": EDGES,
        "num_node_list": [4],
        "num_edge_list": [len(changes.get("edge", EDGES))],
        "node_feat": FEATURES,
        "node_label": [[2], [0], [np.nan], [2]],
    } | changes
    if form == "csv":
        write_csv(folder / "raw", **parts)
    else:
        write_arrays(folder / "raw", form, parts)
    write_split(folder / "split" / "time")
    return folder


def write_arrays(raw: Path, form: str, parts: dict[str, Any]) -> None:
    names = {"num_node_list": "num_nodes_list", "num_edge_list": "num_edges_list", "edge": "edge_index"}
    arrays: dict[str, npt.NDArray[Any]] = {names.get(name, name): np.asarray(part) for name, part in parts.items()}
    arrays["edge_index"] = arrays["edge_index"].T
    raw.mkdir(parents=True)
    if form == "npy":
        for name, array in arrays.items():
            np.save(raw / f"{name}.npy", array)
        return
    labels = {name: arrays.pop(name) for name in ("node_label", "graph_label") if name in arrays}
    write: Any = np.savez if form == "npz" else np.savez_compressed
    write(raw / "data.npz", **arrays)
    for name, array in labels.items():
        write(raw / f"{name.replace('_', '-')}.npz", **{name: array})


@pytest.mark.parametrize("form", ["csv", "npz", "compressed", "npy"])
def test_a_node_data_set_in_every_form(tmp_path: Path, form: str) -> None:
    source = open_ogb(write_nodes(tmp_path, form))
    assert read_edges(source) == [(0, 1), (3, 1), (2, 0)]
    assert np.array_equal(read_features(source), FEATURES)
    assert source.labels is not None
    assert (source.labels.labels_N.tolist(), source.labels.names) == ([1, 0, -1, 1], ("0", "2"))
    report = ingest(source, IngestOptions(), tmp_path / "g.h5")
    assert report.split_sizes == {"train": 2, "valid": 0, "test": 1}, "node 2 has no label"
    assert report.notes == {}
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert not store.info.is_union
        assert store.read_graph_ids().tolist() == [0, 0, 0, 0]


def write_graphs(folder: Path, form: str = "csv", **changes: Any) -> Path:
    """Three graphs of two, no and three nodes, the middle one empty."""
    parts = {
        "edge": [[0, 1], [2, 1], [1, 1]],
        "num_node_list": [2, 0, 3],
        "num_edge_list": [1, 0, 2],
        "node_feat": np.arange(5).reshape(5, 1),
        "graph_label": [[0.5, 1], [np.nan, 0], [-2, 1]],
    } | changes
    if form == "csv":
        write_csv(folder / "raw", **parts)
    else:
        write_arrays(folder / "raw", form, parts)
    write_split(folder / "split" / "scaffold", train=[2], valid=[0], test=[1])
    return folder


@pytest.mark.parametrize("form", ["csv", "npz", "npy"])
@pytest.mark.parametrize("block_bytes", [3, 1 << 20])
def test_graphs_become_one_without_edges_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, block_bytes: int
) -> None:
    monkeypatch.setattr(text_table, "_BLOCK_BYTES", block_bytes)
    source = open_ogb(write_graphs(tmp_path, form))
    assert read_edges(source) == [(0, 1), (4, 3), (3, 3)]
    report = ingest(source, IngestOptions(), tmp_path / "g.h5")
    assert (report.num_nodes, report.split_sizes) == (5, {"train": 3, "valid": 2, "test": 0})
    assert report.notes == {"graphs": 3}
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.info.is_union
        assert store.read_graph_ids().tolist() == [0, 0, 2, 2, 2]
        assert np.array_equal(store.read_graph_labels(), np.array([[0.5, 1], [np.nan, 0], [-2, 1]]), equal_nan=True)
        assert store.read_split("train").tolist() == [2, 3, 4]
        assert store.info.num_classes == 0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"edge": [[0, 1], [3, 1], [1, 1]]}, r"line 2: edge \(3, 1\) names a node outside its graph, number 2"),
        ({"num_edge_list": [1, 0, 1]}, "line 3: an edge beyond the 2 of the graphs"),
        ({"num_edge_list": [1, 0, 3]}, "there are 3 edges, but the graphs have 4"),
        ({"num_edge_list": [3, 0]}, "counts the nodes of 3 graphs and the edges of 2"),
        ({"num_node_list": [2, -1, 3]}, "a negative number of nodes"),
        ({"graph_label": [[0]]}, "1 graph labels, but 3 graphs"),
        ({"node_feat": np.zeros((4, 2))}, r"node-feat\.csv\.gz has 4 rows, but there are 5 nodes"),
        ({"node_feat": np.zeros((6, 2))}, r"node-feat\.csv\.gz has 6 rows, but there are 5 nodes"),
    ],
)
def test_counts_that_do_not_fit_are_named(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        ingest(open_ogb(write_graphs(tmp_path, **changes)), IngestOptions(), tmp_path / "g.h5")
    assert not (tmp_path / "g.h5").exists()


def save_links(folder: Path, **splits: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    for split, arrays in splits.items():
        torch.save(arrays, folder / f"{split}.pt", _use_new_zipfile_serialization=split == "train")


def write_links(folder: Path, **splits: dict[str, Any]) -> Path:
    write_csv(folder / "raw", edge=EDGES, num_node_list=[4], num_edge_list=[3])
    save_links(folder / "split" / "target", **splits)
    return folder


ENDS = {"source_node": np.array([0, 1]), "target_node": np.array([2, 3])}


def test_links_are_held_out(tmp_path: Path) -> None:
    valid = {"edge": np.array([[3, 2]]), "edge_neg": np.array([[1, 0], [2, 3]])}
    test = {
        "source_node": np.array([0, 1]),
        "target_node": np.array([2, 3]),
        "target_node_neg": np.array([[0, 1, 3], [2, 2, 0]]),
    }
    source = open_ogb(write_links(tmp_path, valid=valid, test=test, train={"edge": EDGES}))
    report = ingest(source, IngestOptions(), tmp_path / "g.h5")
    assert report.split_sizes == {"train": 0, "valid": 0, "test": 0}
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.info.link_sizes == {"train": 3, "valid": 1, "test": 2}
        links = store.read_links("valid")
        assert links.negatives is not None
        assert (links.edges.tolist(), links.negatives.tolist()) == ([[3, 2]], [[1, 0], [2, 3]])
        assert store.read_links("test").edges.tolist() == [[0, 2], [1, 3]]
        candidates = store.read_links("test").candidates
        assert candidates is not None
        assert candidates.tolist() == [[0, 1, 3], [2, 2, 0]]
        assert store.read_links("test").negatives is None
        assert store.read_links("train").edges.tolist() == EDGES.tolist()


@pytest.mark.parametrize(
    ("links", "problem"),
    [
        ({"edge": np.array([[0, 4]])}, "the valid links name node 4, but ids end at 3: correct entry 0"),
        ({"edge": np.array([[0, 1]]), "edge_neg": np.array([[-1, 1]])}, "the valid links name node -1"),
        ({"edge": np.array([0, 4])}, r"valid, edge holds no \(links, 2\) integers"),
        ({"edge": np.zeros((1, 2), int), "weight": np.ones(1)}, "gives edges weight, which no model here uses"),
        ({"head": np.array([0]), "relation": np.array([0]), "tail": np.array([1])}, "a knowledge graph in OGB's form"),
        ({"source_node": np.array([0])}, "target_node holds no list of ids"),
        (ENDS | {"target_node_neg": np.zeros(2, int)}, "target_node_neg holds no row of integers for each of 2 links"),
        (ENDS | {"target_node_neg": np.zeros((1, 2), int)}, "target_node_neg holds no row of integers for each of 2"),
        (ENDS | {"target_node_neg": np.full((2, 1), 4)}, "the valid links name node 4, but ids end at 3"),
    ],
)
def test_links_that_make_no_sense_are_refused(tmp_path: Path, links: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        ingest(open_ogb(write_links(tmp_path, valid=links)), IngestOptions(), tmp_path / "g.h5")
    assert not (tmp_path / "g.h5").exists()


def test_a_whole_split_in_one_file(tmp_path: Path) -> None:
    write_nodes(tmp_path)
    (tmp_path / "split" / "random").mkdir()
    ids = {"train": np.array([3]), "valid": np.array([0]), "test": np.array([1])}
    torch.save(ids, tmp_path / "split" / "random" / "split_dict.pt")
    source = open_ogb(tmp_path, split_scheme="random")
    assert source.splits is not None
    assert {split: nodes.tolist() for split, nodes in source.splits.items()} == {
        "train": [3],
        "valid": [0],
        "test": [1],
    }


def test_the_split_must_be_clear(tmp_path: Path) -> None:
    write_nodes(tmp_path)
    (tmp_path / "split" / "other").mkdir()
    with pytest.raises(InputError, match=r"holds several splits \(other, time\): set split_scheme"):
        open_ogb(tmp_path)
    with pytest.raises(InputError, match="has no split 'tim': it holds other, time"):
        open_ogb(tmp_path, split_scheme="tim")
    assert open_ogb(tmp_path, split_scheme="other").splits is None
    (tmp_path / "split" / "time" / "test.csv.gz").unlink()
    with pytest.raises(InputError, match="has no test split: it holds train, valid"):
        open_ogb(tmp_path, split_scheme="time")


def test_edge_data_are_refused_unless_they_are_to_be_left_out(tmp_path: Path) -> None:
    write_nodes(tmp_path, edge_feat=[[1], [2], [3]])
    with pytest.raises(InputError, match=r"gives edges edge-feat, .* --set data\.edge_weights=drop"):
        open_ogb(tmp_path)
    source = open_ogb(tmp_path, edge_weights="drop")
    assert (len(read_edges(source)), dict(source.notes)) == (3, {"edge_data_left_out": 1})
    arrays = write_nodes(tmp_path / "arrays", "npz", edge_weight=np.ones(3), node_year=np.zeros(4))
    with pytest.raises(InputError, match="gives edges edge_weight"):
        open_ogb(arrays)
    assert open_ogb(arrays, edge_weights="drop").notes == {"edge_data_left_out": 1, "node_data_left_out": 1}


def test_heterogeneous_data_sets_are_refused_with_the_way_out(tmp_path: Path) -> None:
    write_csv(tmp_path / "raw", triplet_type_list=[["a", "r", "b"]])
    with pytest.raises(InputError, match=r"is heterogeneous \(triplet-type-list\.csv\.gz\).* or all as triples"):
        open_ogb(tmp_path)


def test_several_labels_a_node_are_a_task_of_their_own(tmp_path: Path) -> None:
    labels = open_ogb(write_nodes(tmp_path, node_label=[[1, 1], [0, 1], [1, 0], [0, 0]])).labels
    assert labels is not None
    assert labels.rows_NC is not None
    assert labels.rows_NC.tolist() == [[1, 1], [0, 1], [1, 0], [0, 0]]
    assert not labels.one_class


def test_missing_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="raw does not exist: an OGB directory holds raw/ and split/"):
        open_ogb(tmp_path)
    (write_nodes(tmp_path) / "raw" / "num-node-list.csv.gz").unlink()
    with pytest.raises(InputError, match=r"num-node-list\.csv\.gz does not exist"):
        open_ogb(tmp_path)


def test_files_that_are_read_count(tmp_path: Path) -> None:
    raw = {f"raw/{name}.csv.gz" for name in ("edge", "num-node-list", "num-edge-list", "node-feat", "node-label")}
    splits = {f"split/{split}.csv.gz" for split in ("train", "valid", "test")}
    assert set(ogb_files(write_nodes(tmp_path))) == raw | splits


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "graphs", "nodes", "edges", "largest", "smallest", "splits"),
    [
        ("ogbg_molbace", 1513, 51_577, 55_768, 97, 10, (1210, 151, 152)),
        ("ogbg_molesol", 1128, 14_991, 15_428, 55, 1, (902, 113, 113)),
    ],
)
def test_molecules(
    tmp_path: Path,
    name: str,
    graphs: int,
    nodes: int,
    edges: int,
    largest: int,
    smallest: int,
    splits: tuple[int, int, int],
) -> None:
    source = open_ogb(real_graph(name), edge_weights="drop")
    report = ingest(source, IngestOptions(), tmp_path / "g.h5")
    assert (report.num_nodes, report.num_edges) == (nodes, edges)
    assert (report.self_loops_found, report.duplicates_found) == (0, 0)
    with GraphStore.open(tmp_path / "g.h5") as store:
        graph_ids, labels = store.read_graph_ids(), store.read_graph_labels()
        sizes = np.bincount(graph_ids)
        assert (len(sizes), sizes.max(), sizes.min()) == (graphs, largest, smallest)
        assert (store.info.feature_dim, labels.shape) == (9, (graphs, 1))
        if name == "ogbg_molbace":
            assert np.bincount(labels[:, 0].astype(int)).tolist() == [822, 691]
        else:
            assert (labels.min(), labels.max()) == (np.float32(-11.6), np.float32(1.58))
        sources = np.repeat(graph_ids, np.diff(store.read_indptr()))
        assert np.array_equal(graph_ids[store.read_indices()], sources), "no edge leaves its graph"
        of_split = [np.unique(graph_ids[store.read_split(split)]) for split in ("train", "valid", "test")]
        assert tuple(map(len, of_split)) == splits
        assert len(np.unique(np.concatenate(of_split))) == graphs
    both = ingest(source, IngestOptions(symmetrize=True), tmp_path / "s.h5")
    assert both.num_edges == 2 * edges


@pytest.mark.real_data
def test_drug_interactions(tmp_path: Path) -> None:
    source = open_ogb(real_graph("ogbl_ddi"))
    report = ingest(source, IngestOptions(symmetrize=True), tmp_path / "g.h5")
    assert (report.num_nodes, report.rows_read, report.num_edges) == (4267, 1_067_911, 2 * 1_067_911)
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.info.link_sizes == {"valid": 133_489, "test": 133_489}
        degree = np.diff(store.read_indptr())
        assert (degree.max(), np.median(degree), degree.min() > 0) == (2234, 446, True)
        negatives = [store.read_links(split).negatives for split in ("valid", "test")]
        assert [len(pairs) for pairs in negatives if pairs is not None] == [101_882, 95_599]
