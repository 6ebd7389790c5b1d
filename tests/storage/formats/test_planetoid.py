"""Planetoid pickles: Python 2's are read, crafted ones are not; missing test ids leave gaps where they belong."""

from __future__ import annotations

import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from storage.errors import InputError
from storage.formats.planetoid import open_planetoid
from storage.formats.planetoid_pickle import load_pickle
from storage.graph_store import GraphStore
from storage.ingest import IngestOptions, ingest
from tests.storage.formats.read import read_edges, read_features, real_graph


def python2_pickle(value: Any) -> bytes:
    """Bytes as Python 2 wrote them: protocol 2, the old names of modules, byte strings for text."""
    out = io.BytesIO()
    _Python2Pickler(out, protocol=2).dump(value)
    pickled = out.getvalue().replace(b"scipy.sparse._csr\n", b"scipy.sparse.csr\n")
    return pickled.replace(b"numpy._core.multiarray\n", b"numpy.core.multiarray\n")


_PythonPickler: Any = vars(pickle)["_Pickler"]  # not the one in C: its opcodes can be chosen


class _Python2Pickler(_PythonPickler):  # type: ignore[misc]
    dispatch: ClassVar[dict[Any, Any]] = dict(_PythonPickler.dispatch)

    def save_bytes(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_bytes


def write_tiny(folder: Path, **changes: Any) -> Path:
    """Eight nodes: 2 train, 2 more known ones, test ids 6, 4, 7 (shuffled) with 5 missing."""
    feat = np.arange(1, 22, dtype=np.float32).reshape(7, 3)
    target = np.eye(2, dtype=np.int32)[[0, 1, 1, 0, 1, 0, 1]]
    parts: dict[str, Any] = {
        "x": csr_matrix(feat[:2]),
        "y": target[:2],
        "allx": csr_matrix(feat[:4]),
        "ally": target[:4],
        "tx": csr_matrix(feat[4:]),
        "ty": target[4:],
        "graph": {0: [1, 5], 1: [0], 2: [], 3: [3, 4], 4: [3], 5: [0], 6: [], 7: [7, 7]},
        "test.index": b"6\n4\n7\n",
    } | changes
    for part, value in parts.items():
        content = value if isinstance(value, bytes) else python2_pickle(value)
        (folder / f"ind.tiny.{part}").write_bytes(content)
    return folder


def test_rows_belong_to_the_shuffled_ids(tmp_path: Path) -> None:
    source = open_planetoid(write_tiny(tmp_path), "tiny")
    feat = read_features(source)
    assert feat[:, 0].tolist() == [1, 4, 7, 10, 16, 0, 13, 19]
    assert source.labels is not None
    assert source.labels.labels_N.tolist() == [0, 1, 1, 0, 0, -1, 1, 1]
    assert source.splits is not None
    assert {name: ids.tolist() for name, ids in source.splits.items()} == {
        "train": [0, 1],
        "valid": [2, 3],
        "test": [4, 6, 7],
    }
    assert source.notes == {"nodes_without_features": 1}


def test_a_list_holds_what_its_node_aggregates_from(tmp_path: Path) -> None:
    source = open_planetoid(write_tiny(tmp_path), "tiny")
    assert read_edges(source) == [(1, 0), (5, 0), (0, 1), (3, 3), (4, 3), (3, 4), (0, 5), (7, 7), (7, 7)]


class Attack:
    def __init__(self, function: Any, *args: Any) -> None:
        self._call = function, args

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._call


@pytest.mark.parametrize(
    "attack",
    [
        Attack(os.system, "touch owned"),
        Attack(eval, "open('owned', 'w')"),
        Attack(np.load, "owned.npy"),
        [Attack(os.mkdir, "owned")],
    ],
)
def test_a_crafted_pickle_runs_nothing(tmp_path: Path, attack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path, graph=pickle.dumps(attack, protocol=2))
    with pytest.raises(InputError, match=r"ind\.tiny\.graph is no Planetoid pickle \(it asks for"):
        open_planetoid(tmp_path, "tiny")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"not a pickle", b"\x80\x02}q\x00(K\x00]q\x01"])
def test_a_damaged_pickle_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(InputError, match=r"is no Planetoid pickle|damaged pickle"):
        load_pickle(tmp_path / "p")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = python2_pickle(csr_matrix(np.eye(3, dtype=np.float32)))
    for length in range(len(whole)):
        (tmp_path / "p").write_bytes(whole[:length])
        with pytest.raises(InputError, match="pickle"):
            load_pickle(tmp_path / "p")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"ty": np.eye(2, dtype=np.int32)}, r"tx and ty differ in size \(3 and 2\)"),
        ({"test.index": b"4\n6\n"}, r"tx and test.index differ in size \(3 and 2\)"),
        ({"test.index": b"4\n6\n6\n"}, "test.index repeats an id"),
        ({"test.index": b"4\n6\n0\n"}, "names a row of allx"),
        ({"test.index": b"4\nsix\n7\n"}, "line 2: 'six' is no node id"),
        ({"graph": [1, 2]}, r"ind\.tiny\.graph holds list, not dict"),
        ({"tx": csr_matrix(np.ones((3, 5), np.float32))}, "columns of allx and tx differ"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        open_planetoid(write_tiny(tmp_path, **changes), "tiny")


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    (tmp_path / "ind.tiny.tx").unlink()
    with pytest.raises(InputError, match=r"ind\.tiny\.tx does not exist"):
        open_planetoid(tmp_path, "tiny")


def test_a_neighbor_that_is_no_node_is_refused(tmp_path: Path) -> None:
    source = open_planetoid(write_tiny(tmp_path, graph={0: [1], 1: [99]}), "tiny")
    with pytest.raises(InputError, match=r"graph, row 1: edge \(99, 1\) names a node outside \[0, 8\)"):
        ingest(source, IngestOptions(), tmp_path / "g.h5")


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "entries", "simple", "non_zeros", "classes", "train"),
    [
        ("cora", 10_858, 10_556, 49_216, [351, 217, 418, 818, 426, 298, 180], 140),
        ("citeseer", 9464, 9104, 105_165, [249, 590, 668, 701, 596, 508], 120),
        ("pubmed", 88_676, 88_648, 988_031, [4103, 7739, 7875], 60),
    ],
)
def test_counts_of_the_real_graphs(
    tmp_path: Path, name: str, entries: int, simple: int, non_zeros: int, classes: list[int], train: int
) -> None:
    source = open_planetoid(real_graph(name), name)
    assert ingest(source, IngestOptions(), tmp_path / "g.h5").num_edges == entries
    options = IngestOptions(deduplicate=True, self_loops="remove", normalize_features="row", split="full")
    report = ingest(source, options, tmp_path / "s.h5")
    assert report.num_edges == simple
    with GraphStore.open(tmp_path / "g.h5") as store, GraphStore.open(tmp_path / "s.h5") as simple_store:
        feat, normalized = store.read_features(), simple_store.read_features()
        assert np.count_nonzero(feat) == non_zeros
        assert feat.dtype == (np.float32 if name == "pubmed" else np.uint8)
        total = normalized.sum(axis=1, dtype=np.float64)
        assert np.allclose(total[feat.any(axis=1)], 1)
        labels = store.read_labels()
        assert np.bincount(labels[labels >= 0]).tolist() == classes
        assert store.info.split_sizes == {"train": train, "valid": 500, "test": 1000}
        assert store.read_split("valid").tolist() == list(range(train, train + 500))
        assert simple_store.info.split_sizes["train"] == sum(classes) - 1500
        indptr, indices = simple_store.read_indptr(), simple_store.read_indices()
        dst = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        assert set(zip(indices.tolist(), dst.tolist(), strict=True)) == set(
            zip(dst.tolist(), indices.tolist(), strict=True)
        )


@pytest.mark.real_data
def test_the_nodes_that_citeseer_forgot(tmp_path: Path) -> None:
    source = open_planetoid(real_graph("citeseer"), "citeseer")
    report = ingest(source, IngestOptions(self_loops="remove"), tmp_path / "g.h5")
    assert report.notes == {"nodes_without_features": 15}
    assert (report.num_nodes, report.isolated_nodes, report.unlabelled_nodes) == (3327, 48, 15)
    assert (report.feature_zero_rows, report.self_loops_found) == (15, 248)
    missing = [2407, 2489, 2553, 2682, 2781, 2953, 3042, 3063, 3212, 3214, 3250, 3292, 3305, 3306, 3309]
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert np.flatnonzero(store.read_labels() < 0).tolist() == missing
        assert not store.read_features()[missing].any()
        assert (np.diff(store.read_indptr())[missing] > 0).all()
