"""Nodes with several labels: read from rows of 0 and 1, kept through store and layout, by a version of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from storage.blocks.layout import estimate_store_bytes, lay_out
from storage.errors import InputError
from storage.formats.labels import to_labels
from storage.graph_store import LABELS, GraphStore
from storage.ingest import IngestOptions, ingest
from storage.order import invert_order
from tests.storage.stores import small_source

ROWS = np.array([[1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0], [np.nan, -1, np.nan], [0, np.nan, 1]])
STORED = [[1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0], [-1, -1, -1], [0, -1, 1]]
ONE_HOT = np.array([[1, 0], [0, 1], [0, 0], [1, 0], [1, 0], [0, 1]])


def stored(path: Path, rows: np.ndarray, task: Any = "auto") -> GraphStore:
    ingest(small_source(labels=to_labels(rows, "y")), IngestOptions(task=task), path)
    return GraphStore.open(path)


def test_rows_are_kept(tmp_path: Path) -> None:
    with stored(tmp_path / "graph.h5", ROWS) as store:
        assert (store.info.is_multi_label, store.info.num_classes, store.info.label_names) == (True, 3, ("0", "1", "2"))
        assert store.read_multi_labels().dtype == np.int8
        assert store.read_multi_labels().tolist() == STORED
        assert not store.has(LABELS)


def test_nodes_without_any_known_label_are_in_no_split(tmp_path: Path) -> None:
    with stored(tmp_path / "graph.h5", ROWS) as store:
        assert [store.read_split(split).tolist() for split in ("train", "valid", "test")] == [[0, 2], [1], [3]]


def test_layout_moves_rows_with_their_nodes(tmp_path: Path) -> None:
    order = np.array([5, 0, 3, 1, 4, 2])
    with stored(tmp_path / "graph.h5", ROWS) as store:
        lay_out(store, tmp_path / "new.h5", old_to_new=invert_order(order), order="none", block_bytes=4096)
        assert estimate_store_bytes(store, 4096) > (tmp_path / "new.h5").stat().st_size
    with GraphStore.open(tmp_path / "new.h5") as new:
        assert new.read_multi_labels().tolist() == np.array(STORED)[order].tolist()
        assert new.info.label_names == ("0", "1", "2")
        new.verify()


def test_only_such_stores_have_the_newer_version(tmp_path: Path) -> None:
    with stored(tmp_path / "multi.h5", ROWS) as multi, stored(tmp_path / "single.h5", ONE_HOT) as single:
        assert (multi.info.format_version, single.info.format_version) == (2, 1)
        assert not single.info.is_multi_label
    with h5py.File(tmp_path / "single.h5") as file:
        assert "labels/multi" not in file


def test_the_task_decides_what_one_hot_rows_are(tmp_path: Path) -> None:
    with (
        stored(tmp_path / "multi.h5", ONE_HOT, "multi") as multi,
        stored(tmp_path / "single.h5", ONE_HOT, "single") as one,
    ):
        assert multi.read_multi_labels().tolist() == ONE_HOT.tolist()
        assert one.read_labels().tolist() == [0, 1, -1, 0, 0, 1]
        assert multi.read_split("train").tolist() == [0, 2]
        assert one.read_split("train").tolist() == [0]


@pytest.mark.parametrize(
    ("rows", "task", "problem"),
    [
        (ROWS, "single", "row 0 of the labels names several classes: set task=multi"),
        (np.array([[1, 0], [-1, 0], *[[0, 1]] * 4]), "single", "some labels are unknown"),
        (np.arange(6), "multi", "has one label a node: give rows of 0 and 1"),
        (ROWS[:4], "auto", "has 4 labels, but 6 nodes"),
    ],
)
def test_what_does_not_fit_the_task_is_refused(tmp_path: Path, rows: np.ndarray, task: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        stored(tmp_path / "graph.h5", rows, task)
    assert not (tmp_path / "graph.h5").exists()
