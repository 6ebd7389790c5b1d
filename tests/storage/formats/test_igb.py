"""IGB directories: edges in rows, labels of two kinds, the loader's split, raw files of the large sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from storage.errors import InputError
from storage.formats.igb import igb_files, open_igb
from storage.graph_store import GraphStore
from storage.ingest import IngestOptions, ingest
from tests.storage.formats.read import read_edges, read_features

EDGES = np.array([[0, 1], [2, 1], [9, 3]])
LABELS = np.array([3, 1, np.nan, 3, 1, 1, -1, 0, 3, 1], np.float32)


def write_igb(folder: Path, *, dtype: npt.DTypeLike = np.float32, raw: bool = False) -> Path:
    """Ten papers, of which eight have a label."""
    (folder / "paper").mkdir(parents=True)
    (folder / "paper__cites__paper").mkdir()
    feat = np.arange(10 * 1024).reshape(10, 1024).astype(dtype)
    np.save(folder / "paper__cites__paper" / "edge_index.npy", EDGES)
    np.save(folder / "paper" / "node_label_2K.npy", np.arange(10))
    if raw:
        feat.tofile(folder / "paper" / "node_feat.npy")
        LABELS.tofile(folder / "paper" / "node_label_19.npy")
    else:
        np.save(folder / "paper" / "node_feat.npy", feat)
        np.save(folder / "paper" / "node_label_19.npy", LABELS)
    return folder


@pytest.mark.parametrize("raw", [False, True])
def test_reads_all_parts(tmp_path: Path, raw: bool) -> None:
    source = open_igb(write_igb(tmp_path / "processed", raw=raw).parent)
    assert read_edges(source) == [(0, 1), (2, 1), (9, 3)]
    assert np.array_equal(read_features(source), np.arange(10 * 1024, dtype=np.float32).reshape(10, 1024))
    assert source.labels is not None
    assert source.labels.labels_N.tolist() == [2, 1, -1, 2, 1, 1, -1, 0, 2, 1]
    assert source.labels.names == ("0", "1", "3")
    assert source.splits is not None
    assert {name: ids.tolist() for name, ids in source.splits.items()} == {
        "train": [0, 1, 3, 4],
        "valid": [5],
        "test": [7, 8, 9],
    }


def test_half_precision_stays(tmp_path: Path) -> None:
    ingest(open_igb(write_igb(tmp_path, dtype=np.float16), label_set="2K"), IngestOptions(), tmp_path / "g.h5")
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.info.feature_dtype == np.float16
        assert store.info.num_classes == 10
        assert store.info.split_sizes == {"train": 6, "valid": 2, "test": 2}


def test_two_edges_are_rows(tmp_path: Path) -> None:
    np.save(write_igb(tmp_path) / "paper__cites__paper" / "edge_index.npy", EDGES[:2])
    assert read_edges(open_igb(tmp_path)) == [(0, 1), (2, 1)]


def test_the_files_are_those_that_are_read(tmp_path: Path) -> None:
    names = {"paper/node_feat.npy", "paper/node_label_19.npy", "paper__cites__paper/edge_index.npy"}
    assert set(igb_files(write_igb(tmp_path), "19")) == names


def test_other_relations_are_refused(tmp_path: Path) -> None:
    (write_igb(tmp_path) / "paper__written_by__author").mkdir()
    with pytest.raises(InputError, match=r"is heterogeneous \(paper__written_by__author\): one kind of node"):
        open_igb(tmp_path)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    folder = write_igb(tmp_path, raw=True)
    (folder / "paper" / "node_feat.npy").write_bytes(bytes(4097))
    with pytest.raises(InputError, match=r"node_feat\.npy has no \.npy header, and 4097 bytes are no rows of 4096"):
        open_igb(tmp_path)
    (folder / "paper" / "node_feat.npy").unlink()
    with pytest.raises(InputError, match=r"node_feat\.npy does not exist"):
        open_igb(tmp_path)
