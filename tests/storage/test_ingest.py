"""Ingest: options, splits, counts; and nothing is written when anything is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import InputError
from storage.formats.base import EdgeArrays, FeatureTable, LabelColumn
from storage.graph_store import GraphStore
from storage.ingest import IngestOptions, ingest
from storage.ingest_report import IngestReport
from tests.storage.stores import small_source


def ingest_small(path: Path, options: IngestOptions | None = None, **changes: Any) -> IngestReport:
    return ingest(small_source(**changes), options or IngestOptions(block_bytes=4096), path)


def test_stores_what_the_source_holds(tmp_path: Path) -> None:
    report = ingest_small(tmp_path / "g.h5")
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.read_indptr().tolist() == [0, 2, 4, 7, 7, 7, 7]
        assert store.read_indices().tolist() == [3, 4, 0, 0, 1, 1, 2]
        assert store.read_out_degree().tolist() == [2, 2, 1, 1, 1, 0]
        assert store.read_features().tolist() == np.arange(12).reshape(6, 2).tolist()
        assert store.read_labels().tolist() == [0, 1, 0, 1, -1, 0]
        assert store.info.label_names == ("a", "b")
        assert (store.info.order, store.info.block_bytes) == ("ingest", 4096)
        assert store.read_split("train").tolist() == [0, 2]
        assert store.read_split("test").tolist() == [3], "node 4 has no label to test on"
    assert report.as_dict() == {
        "num_nodes": 6,
        "num_edges": 7,
        "rows_read": 7,
        "self_loops_found": 1,
        "self_loops_removed": 0,
        "reverse_edges_added": 0,
        "duplicates_found": 2,
        "duplicates_removed": 0,
        "ids_remapped": 0,
        "isolated_nodes": 1,
        "features_non_finite": 0,
        "feature_zero_rows": 0,
        "unlabelled_nodes": 1,
        "split_train": 2,
        "split_valid": 1,
        "split_test": 1,
    }


def test_counts_what_the_options_change(tmp_path: Path) -> None:
    options = IngestOptions(symmetrize=True, self_loops="remove")
    report = ingest_small(tmp_path / "g.h5", options)
    assert (report.rows_read, report.self_loops_removed, report.reverse_edges_added) == (7, 1, 6)
    assert (report.duplicates_removed, report.num_edges) == (4, 8)
    assert ingest_small(tmp_path / "g.h5", IngestOptions(deduplicate=True)).duplicates_removed == 2


def test_the_full_split_trains_on_all_other_labelled_nodes(tmp_path: Path) -> None:
    ingest_small(tmp_path / "g.h5", IngestOptions(split="full"))
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.read_split("train").tolist() == [0, 2, 5]
        assert store.read_split("valid").tolist() == [1]
        assert store.read_split("test").tolist() == [3]


def random_split(path: Path, **options: Any) -> dict[str, set[int]]:
    labels = LabelColumn(np.where(np.arange(1000) % 10 == 0, -1, np.arange(1000) % 3), ("0", "1", "2"))
    changes = {"num_nodes": 1000, "features": None, "labels": labels, "splits": None}
    ingest_small(path, IngestOptions(split="random", **options), **changes)
    with GraphStore.open(path) as store:
        return {split: set(store.read_split(split).tolist()) for split in ("train", "valid", "test")}


def test_the_random_split_cuts_the_labelled_nodes(tmp_path: Path) -> None:
    splits = random_split(tmp_path / "g.h5", train_fraction=0.5, valid_fraction=0.3)
    assert [len(splits[split]) for split in ("train", "valid", "test")] == [450, 270, 180]
    assert set.union(*splits.values()) == {node for node in range(1000) if node % 10}
    assert random_split(tmp_path / "g.h5", train_fraction=0.5, valid_fraction=0.3) == splits
    assert random_split(tmp_path / "g.h5", train_fraction=0.5, valid_fraction=0.3, split_seed=1) != splits
    smaller = random_split(tmp_path / "g.h5", train_fraction=0.25, valid_fraction=0.3)
    assert smaller["train"] < splits["train"], "each node keeps its place in the order"


@pytest.mark.parametrize("fractions", [(0, 0), (1, 0), (0, 1), (0.6, 0.4)])
def test_extreme_fractions(tmp_path: Path, fractions: tuple[float, float]) -> None:
    splits = random_split(tmp_path / "g.h5", train_fraction=fractions[0], valid_fraction=fractions[1])
    assert len(splits["train"]) == 900 * fractions[0]
    assert len(splits["valid"]) == 900 * fractions[1]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_nodes": 0}, "the small graph is empty"),
        ({"num_nodes": 7, "labels": None}, "has 6 rows, but the graph has 7 nodes"),
        ({"num_nodes": 7, "features": None}, "has 6 labels, but 7 nodes"),
        ({"edges": EdgeArrays(np.array([0, 6]), np.array([1, 0]))}, r"row 1: edge \(6, 0\) names a node outside"),
        ({"edges": EdgeArrays(np.array([0]), np.array([-1]))}, r"row 0: edge \(0, -1\) names a node outside"),
        ({"splits": None}, "brings no split of its own: set split=random"),
        (
            {"splits": {"train": np.array([6]), "valid": [], "test": []}},
            "names node 6, but ids end at 5: correct entry 0",
        ),
        ({"features": FeatureTable.from_array(np.full((6, 1), np.nan))}, "row 0, column 0 is nan"),
    ],
)
def test_nothing_is_written_when_anything_is_wrong(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        ingest_small(tmp_path / "g.h5", **changes)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_without_tables(tmp_path: Path) -> None:
    options = IngestOptions(split="random")
    report = ingest_small(tmp_path / "g.h5", options, num_nodes=None, features=None, labels=None, splits=None)
    assert (report.num_nodes, report.unlabelled_nodes, report.isolated_nodes) == (5, 0, 0)
    assert sum(report.split_sizes.values()) == 5
