"""Stores whose checksums are right and whose ids are not: refused before code that checks nothing follows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.blocks.layout import lay_out
from storage.content_checks import check_adjacency
from storage.errors import StorageError
from storage.extras import Extras
from storage.formats.base import Links
from storage.graph_store import GraphStore
from tests.storage.stores import BLOCK_BYTES, write_small_store

NUM_NODES = 3000
DEGREES = np.zeros(NUM_NODES, np.int64)


def write_crafted(path: Path, name: str, position: int, value: int) -> None:
    """Write a small store with one number changed and checksums that match it."""
    contents = write_small_store(path)
    changed = np.array(contents[name])
    changed[position] = value
    parts: dict[str, Any] = {name: changed, "out_degree": DEGREES, "label_names": tuple("abcde")}
    write_small_store(path, **parts)


ADJACENCY = [
    ("indices", 19_999, NUM_NODES, r"the adjacency lists hold 3000 at position 19999, outside \[0, 3000\)"),
    ("indices", 7, -1, r"the adjacency lists hold -1 at position 7, outside \[0, 3000\)"),
    ("indptr", 5, -(2**40), "the list of node 4 ends at -1099511627776, before its start"),
    ("indptr", 5, 2**40, "the list of node 5 ends at .*, before its start 1099511627776"),
    ("indptr", 0, 1, "offsets run from 1 to 20000, but there are 20000 edges"),
    ("indptr", NUM_NODES, 20_001, "offsets run from 0 to 20001, but there are 20000 edges"),
]


@pytest.mark.parametrize(("name", "position", "value", "problem"), ADJACENCY)
def test_adjacency_that_leads_outside_is_refused(
    tmp_path: Path, name: str, position: int, value: int, problem: str
) -> None:
    write_crafted(tmp_path / "g.h5", name, position, value)
    with GraphStore.open(tmp_path / "g.h5") as store:
        store.verify()
        with pytest.raises(StorageError, match=f"g.h5 is damaged or crafted: {problem}.*; delete it and run again"):
            store.read_adjacency()
        with pytest.raises(StorageError, match="damaged or crafted"):
            lay_out(store, tmp_path / "new.h5", old_to_new=np.arange(NUM_NODES), order="none", block_bytes=BLOCK_BYTES)
    assert not (tmp_path / "new.h5").exists()


def test_types_that_no_store_has_are_refused(tmp_path: Path) -> None:
    contents = write_small_store(tmp_path / "g.h5")
    for wrong, problem in (
        ({"indptr": contents["indptr"].astype(np.int32)}, "offsets of int32"),
        ({"indices": contents["indices"].astype(np.int16)}, "adjacency lists of int16"),
    ):
        write_small_store(tmp_path / "g.h5", out_degree=DEGREES, **wrong)
        with GraphStore.open(tmp_path / "g.h5") as store, pytest.raises(StorageError, match=problem):
            store.read_adjacency()


@pytest.mark.parametrize("value", [-2, 5, 2**31 - 1])
def test_a_label_that_is_no_class_is_refused(tmp_path: Path, value: int) -> None:
    write_crafted(tmp_path / "g.h5", "labels", 9, value)
    with (
        GraphStore.open(tmp_path / "g.h5") as store,
        pytest.raises(StorageError, match=rf"labels hold {value} at position 9, outside \[-1, 5\)"),
    ):
        store.read_labels()


@pytest.mark.parametrize("value", [-1, NUM_NODES])
def test_a_split_of_what_are_no_nodes_is_refused(tmp_path: Path, value: int) -> None:
    write_small_store(tmp_path / "g.h5", splits={"valid": np.array([value])})
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert len(store.read_split("train")) == 0
        with pytest.raises(StorageError, match=rf"valid nodes hold {value} at position 0, outside \[0, 3000\)"):
            store.read_split("valid")


LINKS = Links(
    edges=np.zeros((4, 2), np.int64),
    relations=np.zeros(4, np.int32),
    negatives=np.zeros((4, 2), np.int64),
    candidates=np.zeros((4, 3), np.int64),
)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"edges": np.array([[0, 0], [-1, 0], [0, 0], [0, 0]])},
            r"test edges hold -1 at position 2, outside \[0, 3000\)",
        ),
        ({"negatives": np.array([[0, 3000]])}, r"test negatives hold 3000 at position 1, outside \[0, 3000\)"),
        ({"candidates": np.full((4, 3), -1)}, r"test candidates hold -1 at position 0, outside \[0, 3000\)"),
        ({"relations": np.array([0, 0, 2, 0], np.int32)}, r"test relations hold 2 at position 2, outside \[0, 2\)"),
        ({"relations": np.zeros(3, np.int32)}, r"test relations of shape \(3,\)"),
        ({"edges": np.zeros((4, 3), np.int64)}, r"test edges of int64 and shape \(4, 3\)"),
        ({"edges": np.zeros((4, 2))}, r"test edges of float64 and shape \(4, 2\)"),
        ({"edges": np.zeros(4, np.int64)}, r"test edges of int64 and shape \(4,\)"),
        ({"candidates": np.zeros((3, 3), np.int64)}, r"test candidates of int64 and shape \(3, 3\)"),
    ],
)
def test_links_that_make_no_sense_are_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    extras = Extras(
        relations=np.zeros(20_000, np.int32), relation_names=("a", "b"), links={"test": replace(LINKS, **change)}
    )
    write_small_store(tmp_path / "g.h5", extras=extras)
    with GraphStore.open(tmp_path / "g.h5") as store, pytest.raises(StorageError, match=problem):
        store.read_links("test")


@pytest.mark.parametrize("value", [-1, 2])
def test_a_relation_without_a_name_is_refused(tmp_path: Path, value: int) -> None:
    relations = np.zeros(20_000, np.int32)
    relations[7] = value
    write_small_store(tmp_path / "g.h5", extras=Extras(relations=relations, relation_names=("a", "b")))
    with (
        GraphStore.open(tmp_path / "g.h5") as store,
        pytest.raises(StorageError, match=rf"the relations hold {value} at position 7, outside \[0, 2\)"),
    ):
        store.read_relations()


@pytest.mark.parametrize(("labels", "value"), [(2, 2), (2, -1), (None, NUM_NODES)])
def test_a_node_of_no_graph_is_refused(tmp_path: Path, labels: int | None, value: int) -> None:
    graph_ids = np.zeros(NUM_NODES, np.int32)
    graph_ids[5] = value
    graph_labels = None if labels is None else np.zeros((labels, 1), np.float32)
    write_small_store(tmp_path / "g.h5", extras=Extras(graph_ids=graph_ids, graph_labels=graph_labels))
    with (
        GraphStore.open(tmp_path / "g.h5") as store,
        pytest.raises(StorageError, match=f"the graph ids hold {value} at position 5"),
    ):
        store.read_graph_ids()


def accepted(indptr: list[int], indices: list[int], dtype: Any) -> bool:
    try:
        check_adjacency(Path("g.h5"), np.array(indptr, np.int64), np.array(indices, dtype))
    except StorageError:
        return False
    return True


@settings(deadline=None)
@given(
    indptr=st.lists(st.integers(-1, 6), min_size=1, max_size=6),
    indices=st.lists(st.integers(-1, 6), max_size=5),
    dtype=st.sampled_from([np.int32, np.int64]),
)
def test_what_is_accepted_is_a_graph(indptr: list[int], indices: list[int], dtype: Callable[..., Any]) -> None:
    ascends = all(a <= b for a, b in pairwise(indptr))
    is_graph = ascends and indptr[0] == 0 and indptr[-1] == len(indices)
    is_graph = is_graph and all(0 <= u < len(indptr) - 1 for u in indices)
    assert accepted(indptr, indices, dtype) == is_graph
