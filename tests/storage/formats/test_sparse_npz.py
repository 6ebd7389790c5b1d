"""Sparse matrices of SciPy in every form that it saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from storage.errors import InputError
from storage.formats import array_files, sparse_npz
from storage.formats.sparse_npz import open_sparse_npz
from tests.storage.formats.read import read_edges, read_features


def save(path: Path, matrix: Any, **how: Any) -> Path:
    sparse.save_npz(path, matrix, **how)
    return path


@settings(deadline=None, max_examples=60)
@given(
    edges=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30),
    kind=st.sampled_from(["csr", "csc", "coo"]),
    compressed=st.booleans(),
    as_array=st.booleans(),
    chunk=st.integers(1, 9),
)
def test_entries_are_edges_from_row_to_column(
    tmp_path_factory: pytest.TempPathFactory,
    edges: list[tuple[int, int]],
    kind: str,
    compressed: bool,
    as_array: bool,
    chunk: int,
) -> None:
    row, col = np.array(edges, np.int64).reshape(-1, 2).T
    matrix = sparse.coo_array((np.ones(len(edges)), (row, col)), shape=(9, 9)).asformat(kind)
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    save(path, matrix if as_array else getattr(sparse, f"{kind}_matrix")(matrix), compressed=compressed)
    stored = sparse.load_npz(path).tocoo()
    with pytest.MonkeyPatch.context() as patch:
        for module in (array_files, sparse_npz):
            patch.setattr(module, "CHUNK_EDGES", chunk)
        source = open_sparse_npz(path, edge_weights="drop")
        assert read_edges(source) == list(zip(stored.row.tolist(), stored.col.tolist(), strict=True))
        assert (source.num_nodes, source.approx_edges) == (9, stored.nnz)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_weights_are_refused_where_they_are_read(tmp_path: Path, kind: str) -> None:
    path = save(tmp_path / "a.npz", sparse.coo_array(([1, 0.5], ([0, 1], [1, 0]))).asformat(kind))
    with pytest.raises(InputError, match=r"weights \(entry \d is 0\.5\), .* --set data\.edge_weights=drop"):
        read_edges(open_sparse_npz(path))
    assert sorted(read_edges(open_sparse_npz(path, edge_weights="drop"))) == [(0, 1), (1, 0)]
    ones = save(tmp_path / "b.npz", sparse.coo_array(([True, True], ([0, 1], [1, 0]))).asformat(kind))
    assert sorted(read_edges(open_sparse_npz(ones))) == [(0, 1), (1, 0)]


def test_tables_go_with_a_matrix(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(3))
    np.save(tmp_path / "y.npy", np.array([1, 0, 1]))
    path = save(tmp_path / "a.npz", sparse.eye_array(3, format="csr"))
    source = open_sparse_npz(path, features=tmp_path / "x.npy", labels=tmp_path / "y.npy")
    assert read_features(source).tolist() == np.eye(3).tolist()
    assert source.labels is not None
    assert source.labels.labels_N.tolist() == [1, 0, 1]


def test_what_is_no_adjacency_matrix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"shape \(2, 3\): an adjacency matrix is square"):
        open_sparse_npz(save(tmp_path / "a.npz", sparse.csr_array((2, 3))))
    with pytest.raises(InputError, match=r"in 'dia' form: convert it with \.tocsr\(\)"):
        open_sparse_npz(save(tmp_path / "a.npz", sparse.eye_array(3, format="dia")))
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with pytest.raises(InputError, match=r"no file of scipy\.sparse\.save_npz: it holds x"):
        open_sparse_npz(tmp_path / "a.npz")
    with pytest.raises(InputError, match="does not exist"):
        open_sparse_npz(tmp_path / "nowhere.npz")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"indptr": np.array([0, 2, 1, 2])}, "does not rise from 0 to 2"),
        ({"indptr": np.array([0, 1, 2])}, "do not fit together"),
        ({"data": np.ones(3)}, "do not fit together"),
        ({"indices": np.ones(2)}, "indices are rows of integers"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    parts = {"indptr": np.array([0, 1, 1, 2]), "indices": np.array([1, 2]), "data": np.ones(2)} | changes
    np.savez(tmp_path / "a.npz", format=b"csr", shape=np.array([3, 3]), **parts)
    with pytest.raises(InputError, match=problem):
        read_edges(open_sparse_npz(tmp_path / "a.npz"))
