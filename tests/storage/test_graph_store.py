"""A store gives back what was written, and notices every kind of damage."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.blocks.writer import ArrayStream
from storage.csc import count_occurrences
from storage.errors import ChecksumMismatchError, FormatVersionError, MachineError, StorageError
from storage.graph_store import FEATURES, INDICES, INDPTR, GraphStore, write_store
from storage.store_format import BlockTable
from tests.storage.stores import BLOCK_BYTES, write_small_store

DATASETS = (
    "topology/indptr",
    "topology/indices",
    "topology/out_degree",
    "features/x",
    "labels/y",
    "splits/train",
    "splits/valid",
    "splits/test",
    "nodes/original_id",
)


def test_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "g.h5"
    written = write_small_store(path)
    with GraphStore.open(path) as store:
        for read, name in (
            (store.read_indptr(), "indptr"),
            (store.read_indices(), "indices"),
            (store.read_features(), "features"),
            (store.read_labels(), "labels"),
            (store.read_original_ids(), "original_ids"),
        ):
            assert read.dtype == written[name].dtype
            assert np.array_equal(read, written[name])
        assert np.array_equal(store.read_out_degree(), count_occurrences(written["indices"], 3000))
        for split in ("train", "valid", "test"):
            assert np.array_equal(store.read_split(split), written["splits"][split])
        assert store.read_new_to_old().tolist() == list(range(3000))
        store.verify()


def test_info_tells_the_sizes(tmp_path: Path) -> None:
    write_small_store(tmp_path / "g.h5", label_names=tuple("abcde"), order="degree")
    info = GraphStore.open(tmp_path / "g.h5").info
    assert (info.num_nodes, info.num_edges, info.feature_dim) == (3000, 20_000, 7)
    assert (info.feature_dtype, info.feature_row_bytes) == (np.dtype(np.float32), 28)
    assert (info.num_classes, info.label_names) == (5, tuple("abcde"))
    assert (info.order, info.block_bytes, info.format_version) == ("degree", BLOCK_BYTES, 1)
    assert info.split_sizes == {"train": 1500, "valid": 750, "test": 1}


def test_only_the_topology_is_required(tmp_path: Path) -> None:
    write_store(tmp_path / "g.h5", indptr=np.zeros(4, np.int64), indices=np.zeros(0, np.int32))
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.read_indices().shape == (0,)
        assert store.read_features().shape == (3, 0)
        assert store.read_labels().tolist() == [-1, -1, -1]
        assert store.read_split("train").shape == (0,)
        assert store.read_original_ids().tolist() == [0, 1, 2]
        assert (store.info.feature_dim, store.info.num_classes) == (0, 0)
        assert (store.nbytes(FEATURES), store.nbytes(INDPTR)) == (0, 32)
        store.verify()
        with pytest.raises(StorageError, match="has no features/x; it holds"):
            store.extent(FEATURES)


@pytest.mark.parametrize("ids", [np.array(["Zoë", "b", "日本"]), np.array([b"x", b"yy", b""])])
def test_string_ids_come_back(tmp_path: Path, ids: np.ndarray) -> None:
    write_store(tmp_path / "g.h5", indptr=np.zeros(4, np.int64), indices=np.zeros(0, np.int32), original_ids=ids)
    expected = [i.decode() if isinstance(i, bytes) else i for i in ids.tolist()]
    assert GraphStore.open(tmp_path / "g.h5").read_original_ids().tolist() == expected


def test_large_datasets_start_at_blocks_and_any_hdf5_tool_reads_them(tmp_path: Path) -> None:
    written = write_small_store(tmp_path / "g.h5")
    with h5py.File(tmp_path / "g.h5") as file:
        for name in DATASETS:
            if file[name].nbytes >= BLOCK_BYTES:
                assert file[name].id.get_offset() % BLOCK_BYTES == 0
                assert file[name].chunks is None
        assert np.array_equal(file["topology/indices"][:], written["indices"])


def test_equal_content_makes_equal_files(tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        write_small_store(tmp_path / name, label_names=tuple("abcde"))
        time.sleep(1.1)  # a time stamp in the file would differ by a second
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_streams_of_any_pieces_make_the_same_file(tmp_path: Path) -> None:
    contents = write_small_store(tmp_path / "whole.h5")
    indices, features = contents["indices"], contents["features"]
    cuts = [0, 1, 1, 1500, 1501, 7000, 20_000]
    pieces = (indices[a:b] for a, b in pairwise(cuts))
    write_small_store(
        tmp_path / "streamed.h5",
        indices=ArrayStream(indices.shape, indices.dtype, pieces),
        features=ArrayStream(features.shape, features.dtype, (features[i : i + 1] for i in range(3000))),
        out_degree=count_occurrences(indices, 3000),
    )
    assert (tmp_path / "streamed.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


@pytest.mark.parametrize("name", DATASETS)
def test_a_flipped_bit_is_found_and_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "g.h5"
    write_small_store(path)
    extent = GraphStore.open(path).extent(name)
    place = extent.nbytes - 1
    damaged = bytearray(path.read_bytes())
    damaged[extent.offset + place] ^= 0x10
    path.write_bytes(damaged)
    with GraphStore.open(path) as store:
        message = rf"block {place // BLOCK_BYTES} of {name} .*CRC-32"
        with pytest.raises(ChecksumMismatchError, match=message):
            store.verify()
        with pytest.raises(ChecksumMismatchError, match=message):
            store.reader(name).read_all()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "g.h5"
    write_small_store(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(StorageError, match=r"damaged or no graph store|cut short"):
        GraphStore.open(path)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no graph store at"):
        GraphStore.open(tmp_path / "missing.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = [1]
    with pytest.raises(StorageError, match="an HDF5 file, but no graph store"):
        GraphStore.open(tmp_path / "other.h5")


def test_another_version_is_refused(tmp_path: Path) -> None:
    write_small_store(tmp_path / "g.h5")
    with h5py.File(tmp_path / "g.h5", "a") as file:
        file.attrs["format_version"] = 99
    with pytest.raises(FormatVersionError, match="format version 99, this release reads 1"):
        GraphStore.open(tmp_path / "g.h5")


def test_a_failed_write_leaves_the_old_store_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "g.h5"
    write_small_store(path)
    before = path.read_bytes()

    def breaks() -> object:
        yield np.zeros((1, 7), np.float32)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        write_small_store(path, features=ArrayStream((3000, 7), np.dtype(np.float32), breaks()))  # type: ignore[arg-type]
    assert [file.name for file in tmp_path.iterdir()] == ["g.h5"]
    assert path.read_bytes() == before


def test_a_full_disk_is_an_error_of_the_machine(tmp_path: Path, limit_file_size: int) -> None:
    with pytest.raises(MachineError, match=r"the disk is full: writing .*; free some space"):
        write_small_store(tmp_path / "g.h5", num_edges=limit_file_size)
    assert list(tmp_path.iterdir()) == []


def nodes_of_blocks(indptr: npt.NDArray[np.int64], ids_per_block: int, step: int) -> npt.NDArray[np.int64]:
    """The object index table of offsets that pass by in pieces."""
    table = BlockTable(int(indptr[-1]), ids_per_block)
    pieces = (indptr[i : i + step] for i in range(0, len(indptr), step))
    passed = list(table.watch(ArrayStream(indptr.shape, indptr.dtype, pieces)).chunks)
    assert np.array_equal(np.concatenate(passed), indptr)
    return table.nodes_B2


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 8), st.integers(1, 50))
def test_the_object_index_table_names_first_and_last_node(degrees: list[int], ids_per_block: int, step: int) -> None:
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    owner = np.repeat(np.arange(len(degrees)), degrees)
    expected = [[owner[i], owner[min(i + ids_per_block, len(owner)) - 1]] for i in range(0, len(owner), ids_per_block)]
    assert nodes_of_blocks(indptr, ids_per_block, step).tolist() == expected


def test_the_stored_table_covers_the_blocks(tmp_path: Path) -> None:
    written = write_small_store(tmp_path / "g.h5")
    store = GraphStore.open(tmp_path / "g.h5")
    table = store.block_nodes()
    assert table.shape == (store.extent(INDICES).num_blocks, 2)
    assert np.array_equal(table, nodes_of_blocks(written["indptr"], BLOCK_BYTES // 4, 10_000))


def test_original_ids_far_apart_are_read_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of 32 bits whose ids lie beyond 4 GiB: nothing in between is read."""
    read: list[tuple[int, int]] = []

    def read_rows(begin: int, end: int) -> npt.NDArray[np.int64]:
        read.append((begin, end))
        return np.arange(begin, end)

    write_small_store(tmp_path / "g.h5")
    with GraphStore.open(tmp_path / "g.h5") as store:
        wide = SimpleNamespace(extent=SimpleNamespace(dtype=np.dtype(np.int64), row_bytes=1 << 20), read_rows=read_rows)
        monkeypatch.setattr(store, "reader", lambda _: wide)
        assert store.read_original_ids_of(np.array([4096, 0], np.int32)).tolist() == [4096, 0]
    assert read == [(0, 1), (4096, 4097)]
