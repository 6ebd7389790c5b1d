"""Arrays in `.npy` and `.npz` files come back whole and in pieces; damage and lies are refused."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from storage.errors import InputError
from storage.formats import array_files
from storage.formats.array_files import ArrayFile, PairEdges, array_features, member_names

WAYS = ("npy", "npz", "compressed")


def save(folder: Path, array: npt.NDArray[Any], way: str) -> ArrayFile:
    path = folder / ("a.npy" if way == "npy" else "a.npz")
    if way == "npy":
        np.save(path, array)
    else:
        (np.savez if way == "npz" else np.savez_compressed)(path, other=np.zeros(3), wanted=array)
    return ArrayFile.open(path, None if way == "npy" else "wanted")


@settings(deadline=None, max_examples=60)
@given(
    array=npst.arrays(
        st.sampled_from([np.dtype(code) for code in ("f4", "f2", "i8", ">i4", "?", "U3")]),
        npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=7),
    ),
    way=st.sampled_from(WAYS),
    column_order=st.booleans(),
    rows=st.integers(1, 4),
)
def test_arrays_come_back(
    tmp_path_factory: pytest.TempPathFactory, array: npt.NDArray[Any], way: str, column_order: bool, rows: int
) -> None:
    array = np.asarray(array, order="F" if column_order else "C")
    file = save(tmp_path_factory.mktemp("arrays"), array, way)
    assert (file.shape, file.dtype, file.nbytes) == (array.shape, array.dtype, array.nbytes)
    assert np.array_equal(file.load(), array, equal_nan=array.dtype.kind == "f")
    if array.size:
        pieces = list(file.row_chunks(rows))
        assert all(len(piece) == rows for piece in pieces[:-1])
        assert np.array_equal(np.concatenate(pieces), array, equal_nan=array.dtype.kind == "f")


@settings(deadline=None, max_examples=60)
@given(
    edges=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12),
    way=st.sampled_from(WAYS),
    edge_axis=st.integers(0, 1),
    column_order=st.booleans(),
    chunk=st.integers(1, 5),
)
def test_pairs_in_any_layout(
    tmp_path_factory: pytest.TempPathFactory,
    edges: list[tuple[int, int]],
    way: str,
    edge_axis: int,
    column_order: bool,
    chunk: int,
) -> None:
    array = np.array(edges, np.int32).reshape(-1, 2)
    array = np.asarray(array.T if edge_axis else array, order="F" if column_order else "C")
    pairs = PairEdges.of(save(tmp_path_factory.mktemp("pairs"), array, way), likely_axis=edge_axis)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_files, "CHUNK_EDGES", chunk)
        for _ in "two readings":
            read = [pair for src, dst in pairs.chunks() for pair in zip(src.tolist(), dst.tolist(), strict=True)]
            assert read == edges
    assert pairs.num_edges == len(edges)


@pytest.mark.parametrize("array", [np.zeros((2, 3)), np.zeros((3, 3), int), np.zeros(4, int), np.zeros((2, 2, 2), int)])
def test_what_holds_no_pairs_is_refused(tmp_path: Path, array: npt.NDArray[Any]) -> None:
    with pytest.raises(InputError, match=r"a\.npy (holds float64|has shape)"):
        PairEdges.of(save(tmp_path, array, "npy"), likely_axis=1)


@pytest.mark.parametrize("way", WAYS)
def test_features_of_no_width_have_rows(tmp_path: Path, way: str) -> None:
    table = array_features(save(tmp_path, np.empty((5, 0), np.float32), way))
    assert [chunk.shape for chunk in table.chunks()] == [(5, 0)]


@pytest.mark.parametrize("way", WAYS)
def test_every_truncation_is_refused(tmp_path: Path, way: str) -> None:
    file = save(tmp_path, np.arange(40.0), way)
    whole = file.path.read_bytes()
    for length in range(0, len(whole), 7):
        file.path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"no readable \.np[yz] file"):
            ArrayFile.open(file.path, file.member).load()


@pytest.mark.parametrize("way", ["npz", "compressed"])
def test_a_damaged_member_is_noticed(tmp_path: Path, way: str) -> None:
    file = save(tmp_path, np.random.default_rng(0).random(1000), way)
    damaged = bytearray(file.path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"no readable \.npz file \(array 'wanted'\)"):
        file.load()


def test_a_header_that_lies_allocates_nothing(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9000000000000, 9000000000000), }"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(InputError, match=r"needs 648000000000000000000000000 bytes, 0 are there"):
        ArrayFile.open(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(InputError, match="0 are there"):
        ArrayFile.open(tmp_path / "a.npz", "a")


@pytest.mark.parametrize("way", WAYS)
def test_objects_are_never_unpickled(tmp_path: Path, way: str) -> None:
    with pytest.raises(InputError, match="it holds pickled Python objects"):
        save(tmp_path, np.array([{}], object), way)


def test_a_missing_member_is_named(tmp_path: Path) -> None:
    file = save(tmp_path, np.zeros(1), "npz")
    assert member_names(file.path) == ["other", "wanted"]
    with pytest.raises(InputError, match=r"a\.npz holds no array 'absent': it holds other, wanted"):
        ArrayFile.open(file.path, "absent")
    (tmp_path / "b.npz").write_bytes(b"no zip")
    with pytest.raises(InputError, match=r"b\.npz is no readable \.npz file"):
        member_names(tmp_path / "b.npz")
