"""Matrix Market files against SciPy's reader, and the headers that are refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import io as scipy_io
from scipy import sparse

from storage.errors import InputError
from storage.formats import text_table
from storage.formats.matrix_market import open_matrix_market
from storage.ingest import IngestOptions, ingest
from tests.storage.formats.read import read_edges

PATTERN = "%%MatrixMarket matrix coordinate pattern general\n% a comment\n3 3 2\n1 2\n3 1\n"


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "m.mtx"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@settings(deadline=None, max_examples=40)
@given(
    edges=st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30),
    field=st.sampled_from(["pattern", "real", "integer", "complex"]),
    symmetry=st.sampled_from(["general", "symmetric", "skew-symmetric", "hermitian"]),
    zipped=st.booleans(),
)
def test_equals_what_scipy_reads(
    tmp_path_factory: pytest.TempPathFactory, edges: set[tuple[int, int]], field: str, symmetry: str, zipped: bool
) -> None:
    folder = tmp_path_factory.mktemp("mtx")
    if symmetry != "general":
        edges |= {(v, u) for u, v in edges}
        edges = {(u, v) for u, v in edges if u != v} if symmetry.startswith("skew") else edges
    row, col = np.array(sorted(edges), np.int64).reshape(-1, 2).T
    values = np.where(row < col, 1, -1) if symmetry.startswith("skew") else np.ones(len(row))
    matrix = sparse.coo_array((values.astype(complex if field == "complex" else float), (row, col)), shape=(9, 9))
    symmetry = "symmetric" if symmetry == "hermitian" and field != "complex" else symmetry
    field = "real" if field == "pattern" and symmetry.startswith("skew") else field
    scipy_io.mmwrite(folder / "m.mtx", matrix, field=field, symmetry=symmetry)
    if zipped:
        write(folder, gzip.compress((folder / "m.mtx").read_bytes()))
    source = open_matrix_market(folder / "m.mtx", edge_weights="drop")
    assert sorted(read_edges(source)) == sorted(edges)
    assert source.num_nodes == 9


@pytest.mark.parametrize("text", [PATTERN, PATTERN.replace("\n", "\r\n"), PATTERN.replace("1 2", "  1\t 2 ") + "\n"])
@pytest.mark.parametrize("block_bytes", [3, 1 << 20])
def test_spaces_and_line_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, block_bytes: int) -> None:
    monkeypatch.setattr(text_table, "_BLOCK_BYTES", block_bytes)
    source = open_matrix_market(write(tmp_path, text))
    assert read_edges(source) == [(0, 1), (2, 0)]
    assert read_edges(source) == [(0, 1), (2, 0)], "read again"


def test_a_matrix_without_entries(tmp_path: Path) -> None:
    text = "%%MatrixMarket matrix coordinate pattern general\n4 4 0\n"
    report = ingest(open_matrix_market(write(tmp_path, text)), IngestOptions(split="random"), tmp_path / "g.h5")
    assert (report.num_nodes, report.num_edges) == (4, 0)


def test_weights_are_refused_unless_they_are_to_be_left_out(tmp_path: Path) -> None:
    real = "%%MatrixMarket matrix coordinate real symmetric\n%\n3 3 2\n2 1 1.0\n3 1 0.25\n"
    with pytest.raises(
        InputError, match=r"line 5 gives edges weights \(0\.25 at first\), .* --set data\.edge_weights=drop"
    ):
        read_edges(open_matrix_market(write(tmp_path, real)))
    both = [(1, 0), (0, 1), (2, 0), (0, 2)]
    assert read_edges(open_matrix_market(write(tmp_path, real), edge_weights="drop")) == both
    assert read_edges(open_matrix_market(write(tmp_path, real.replace("0.25", "1e0")))) == both
    with pytest.raises(InputError, match="complex or signed weights"):
        open_matrix_market(write(tmp_path, real.replace("symmetric", "skew-symmetric")))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: no Matrix Market file"),
        ("1 2\n3 1\n", "line 1: no Matrix Market file"),
        (PATTERN.replace("coordinate", "array"), r"is a dense matrix \(array\)"),
        (PATTERN.replace("pattern", "boolean"), "boolean general is no kind of matrix"),
        (PATTERN.replace("3 3 2", "3 4 2"), "3 rows and 4 columns: an adjacency matrix is square"),
        (PATTERN.replace("3 3 2", "3 3"), "line 3: '3 3' is no line of rows, columns, entries"),
        (PATTERN.replace("3 3 2", "3 3 5"), "declares 5 entries and holds 2"),
        (PATTERN.replace("3 1", "4 1"), r"line 5: entry \(4, 1\) lies outside the matrix, whose indices are 1 to 3"),
        (PATTERN.replace("3 1", "0 1"), r"line 5: entry \(0, 1\) lies outside"),
        (PATTERN.replace("3 1", "3 x"), "line 5: 'x' is no integer"),
        (PATTERN.replace("3 1", "3 1 7"), "line 5: 3 fields where 2 are expected"),
        (PATTERN.replace("pattern", "real"), "line 4: 2 fields where a real matrix has 3"),
        (PATTERN.replace("pattern", "real").replace("1 2\n3 1", "1 2 1\n3 1 one"), "line 5: 'one' is no number"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_edges(open_matrix_market(write(tmp_path, text)))
