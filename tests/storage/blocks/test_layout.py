"""A laid-out store holds the same graph under new ids, whatever the memory for it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.mfg import IdArray
from storage.blocks import reordered
from storage.blocks.layout import (
    estimate_store_bytes,
    lay_out,
    layout_held_bytes,
    layout_scratch_bytes,
    layout_work_bytes,
)
from storage.errors import ChecksumMismatchError, InputError, StorageError
from storage.extras import Extras
from storage.formats.base import Links
from storage.graph_store import FEATURES, INDICES, GraphStore, write_store
from storage.order import invert_order, node_order
from storage.row_spill import permute_by_files
from tests.graphs import graphs
from tests.storage.stores import write_small_store


def assert_same_graph(old: GraphStore, new: GraphStore, new_to_old: npt.NDArray[np.int64]) -> None:
    old_to_new = invert_order(new_to_old)
    old_indptr, old_indices, indptr, indices = (
        old.read_indptr(),
        old.read_indices(),
        new.read_indptr(),
        new.read_indices(),
    )
    for node, source in enumerate(new_to_old):
        row = old_indices[old_indptr[source] : old_indptr[source + 1]]
        assert indices[indptr[node] : indptr[node + 1]].tolist() == old_to_new[row].tolist()
    assert indices.dtype == old_indices.dtype
    assert np.array_equal(new.read_features(), old.read_features()[new_to_old])
    assert np.array_equal(new.read_labels(), old.read_labels()[new_to_old])
    assert np.array_equal(new.read_out_degree(), old.read_out_degree()[new_to_old])
    assert np.array_equal(new.read_original_ids(), old.read_original_ids()[new_to_old])
    for split in ("train", "valid", "test"):
        assert new.read_split(split).tolist() == sorted(old_to_new[old.read_split(split)])
    assert new.info.label_names == old.info.label_names
    new.verify()


@pytest.mark.parametrize("work_bytes", [1, 5000, 1 << 30])
@pytest.mark.parametrize("kind", ["degree", "locality", "none"])
def test_same_graph_under_new_ids(tmp_path: Path, kind: str, work_bytes: int) -> None:
    sizes = {"num_nodes": 40, "num_edges": 300} if work_bytes == 1 else {}
    write_small_store(tmp_path / "old.h5", **sizes)
    with GraphStore.open(tmp_path / "old.h5") as old:
        order = node_order(kind, old.read_indptr(), old.read_indices())  # type: ignore[arg-type]
        lay_out(
            old,
            tmp_path / "new.h5",
            old_to_new=invert_order(order),
            order=kind,
            block_bytes=8192,
            work_bytes=work_bytes,
        )
        with GraphStore.open(tmp_path / "new.h5") as new:
            assert_same_graph(old, new, order)
            assert (new.info.order, new.info.block_bytes) == (kind, 8192)
            assert np.array_equal(new.read_new_to_old(), order)


@settings(deadline=None)
@given(graph=graphs(), seed=st.integers(0, 99), work_bytes=st.integers(1, 600))
def test_drawn_graphs(
    tmp_path_factory: pytest.TempPathFactory,
    graph: tuple[npt.NDArray[np.int64], IdArray],
    seed: int,
    work_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    indptr, indices = graph
    write_store(folder / "old.h5", indptr=indptr, indices=indices.astype(np.int32), block_bytes=4096)
    order = np.random.default_rng(seed).permutation(len(indptr) - 1)
    with GraphStore.open(folder / "old.h5") as old:
        lay_out(
            old,
            folder / "new.h5",
            old_to_new=invert_order(order),
            order="degree",
            block_bytes=4096,
            work_bytes=work_bytes,
        )
        with GraphStore.open(folder / "new.h5") as new:
            assert_same_graph(old, new, order)


def test_two_reorderings_compose(tmp_path: Path) -> None:
    write_small_store(tmp_path / "a.h5", original_ids=None)
    rng = np.random.default_rng(0)
    first, second = rng.permutation(3000), rng.permutation(3000)
    for name, order in (("a", first), ("b", second)):
        with GraphStore.open(tmp_path / f"{name}.h5") as store:
            lay_out(
                store,
                tmp_path / f"{chr(ord(name) + 1)}.h5",
                old_to_new=invert_order(order),
                order="none",
                block_bytes=4096,
            )
    with GraphStore.open(tmp_path / "c.h5") as last:
        assert np.array_equal(last.read_new_to_old(), first[second])
        assert np.array_equal(last.read_original_ids(), first[second])


@pytest.mark.parametrize("order", [[0, 1], [0, 0, 1], [0, 1, 3], [-1, 0, 1]])
def test_what_is_no_permutation_is_refused(tmp_path: Path, order: list[int]) -> None:
    write_store(tmp_path / "old.h5", indptr=np.zeros(4, np.int64), indices=np.zeros(0, np.int32))
    with (
        GraphStore.open(tmp_path / "old.h5") as old,
        pytest.raises(InputError, match=r"each of 0\.\.2 once"),
    ):
        lay_out(old, tmp_path / "new.h5", old_to_new=np.array(order), order="none", block_bytes=4096)
    assert not (tmp_path / "new.h5").exists()


def test_a_damaged_store_is_not_laid_out(tmp_path: Path) -> None:
    path = tmp_path / "old.h5"
    write_small_store(path)
    extent = GraphStore.open(path).extent(INDICES)
    damaged = bytearray(path.read_bytes())
    damaged[extent.offset] ^= 1
    path.write_bytes(damaged)
    with (
        GraphStore.open(path) as old,
        pytest.raises(ChecksumMismatchError, match="block 0 of topology/indices"),
    ):
        lay_out(old, tmp_path / "new.h5", old_to_new=np.arange(3000), order="none", block_bytes=4096)
    assert [file.name for file in tmp_path.iterdir()] == ["old.h5"]


def test_the_estimate_of_disk_bounds_the_file(tmp_path: Path) -> None:
    write_small_store(tmp_path / "old.h5")
    with GraphStore.open(tmp_path / "old.h5") as old:
        lay_out(old, tmp_path / "new.h5", old_to_new=np.arange(3000), order="none", block_bytes=4096)
        size = (tmp_path / "new.h5").stat().st_size
        assert size <= estimate_store_bytes(old, 4096) <= 1.5 * size + (1 << 16)
        assert layout_work_bytes(old) == old.nbytes(FEATURES), "the largest part"


@pytest.mark.parametrize("block_bytes", [4096, 1 << 20])
def test_long_names_and_negatives_are_estimated(tmp_path: Path, block_bytes: int) -> None:
    names = np.array([f"{node}".rjust(500, "x") for node in range(3000)], np.bytes_)
    negatives = np.zeros((50_000, 2), np.int64)
    links = {"test": Links(np.zeros((10, 2), np.int64), negatives=negatives)}
    write_small_store(tmp_path / "plain.h5")
    write_small_store(tmp_path / "old.h5", original_ids=names, extras=Extras(links=links))
    with GraphStore.open(tmp_path / "plain.h5") as plain, GraphStore.open(tmp_path / "old.h5") as old:
        lay_out(old, tmp_path / "new.h5", old_to_new=np.arange(3000), order="none", block_bytes=block_bytes)
        size = (tmp_path / "new.h5").stat().st_size
        assert size <= estimate_store_bytes(old, block_bytes) <= 1.5 * size + 12 * block_bytes + (1 << 16)
        assert layout_held_bytes(old) - layout_held_bytes(plain) >= 2 * negatives.nbytes, "names are moved in pieces"
        assert layout_work_bytes(old) == names.nbytes


def test_the_estimate_of_memory_bounds_what_is_held(tmp_path: Path) -> None:
    names = np.array([f"{node}".rjust(500, "x") for node in range(3000)], np.bytes_)
    write_small_store(tmp_path / "old.h5", original_ids=names)
    with GraphStore.open(tmp_path / "old.h5") as old:
        lay_out(old, tmp_path / "new.h5", old_to_new=np.arange(3000), order="none", block_bytes=4096)  # compile, import
        tracemalloc.start()
        lay_out(old, tmp_path / "new.h5", old_to_new=np.arange(3000), order="none", block_bytes=4096)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= layout_held_bytes(old) - (6 << 20), "of which most is for chunks larger than this store"


def test_places_of_many_nodes_are_found_some_at_a_time(tmp_path: Path) -> None:
    """A chunk of a million narrow rows, all of which have a place in memory: 20 bytes each were beside the plan."""
    num_nodes, work_bytes = 1_100_000, 8 << 20
    indptr, indices = np.zeros(num_nodes + 1, np.int64), np.arange(1000, dtype=np.int32)
    indptr[-1:] = 1000
    write_store(tmp_path / "old.h5", indptr=indptr, indices=indices, block_bytes=1 << 20)
    old_to_new = np.random.default_rng(0).permutation(num_nodes).astype(np.int32)
    with GraphStore.open(tmp_path / "old.h5") as old:
        arguments = {"old_to_new": old_to_new, "order": "degree", "block_bytes": 1 << 20, "work_bytes": work_bytes}
        lay_out(old, tmp_path / "new.h5", **arguments)  # type: ignore[arg-type]  # compile, import
        tracemalloc.start()
        lay_out(old, tmp_path / "new.h5", **arguments)  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak + old_to_new.nbytes <= layout_held_bytes(old) + work_bytes


@pytest.mark.parametrize("work_bytes", [3000, 100_000])
def test_any_memory_makes_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work_bytes: int) -> None:
    write_small_store(tmp_path / "old.h5")
    old_to_new = np.random.default_rng(2).permutation(3000).astype(np.int32)
    with GraphStore.open(tmp_path / "old.h5") as old:
        lay_out(old, tmp_path / "whole.h5", old_to_new=old_to_new, order="degree", block_bytes=4096)
        monkeypatch.setattr(reordered, "_OFFSET_NODES", 700)
        monkeypatch.setattr(reordered, "CHUNK_BYTES", 9000)
        lay_out(
            old, tmp_path / "pieces.h5", old_to_new=old_to_new, order="degree", block_bytes=4096, work_bytes=work_bytes
        )
        (tmp_path / "scratch").mkdir()
        lay_out(
            old,
            tmp_path / "files.h5",
            old_to_new=old_to_new,
            order="degree",
            block_bytes=4096,
            work_bytes=work_bytes,
            scratch=tmp_path / "scratch",
        )
        assert (layout_scratch_bytes(old, work_bytes) > 0) == (work_bytes == 3000)
    assert list((tmp_path / "scratch").iterdir()) == []
    for name in ("pieces", "files"):
        assert (tmp_path / f"{name}.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


@settings(deadline=None)
@given(
    st.integers(0, 60), st.integers(1, 70), st.integers(1, 20), st.sampled_from([(), (3,), (0,)]), st.integers(0, 99)
)
def test_rows_that_go_by_files_are_permuted(
    tmp_path_factory: pytest.TempPathFactory, num_rows: int, at_once: int, chunk: int, row: tuple[int, ...], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 99, (num_rows, *row)).astype(np.int16)
    old_to_new = rng.permutation(num_rows).astype(np.int32)
    folder = tmp_path_factory.mktemp("files")
    pieces = permute_by_files(
        (rows[i : i + chunk] for i in range(0, num_rows, chunk)),
        old_to_new,
        folder,
        shape=rows.shape,
        dtype=rows.dtype,
        rows_at_once=at_once,
    )
    found = np.concatenate([rows[:0], *(piece.copy() for piece in pieces)])
    assert np.array_equal(found[old_to_new], rows)
    assert list(folder.iterdir()) == []


def test_a_split_that_names_a_node_twice_is_refused(tmp_path: Path) -> None:
    write_small_store(tmp_path / "old.h5", splits={"valid": np.array([5, 5])})
    with GraphStore.open(tmp_path / "old.h5") as old, pytest.raises(StorageError, match="valid nodes repeat"):
        lay_out(old, tmp_path / "new.h5", old_to_new=np.arange(3000), order="none", block_bytes=4096)
