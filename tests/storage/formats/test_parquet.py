"""Parquet edge lists and tables: types, columns, nulls, damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from storage.errors import InputError
from storage.formats import parquet
from storage.formats.parquet import open_parquet
from storage.graph_store import GraphStore
from storage.ingest import IngestOptions, ingest
from tests.storage.formats.read import read_edges, read_features

RANDOM = IngestOptions(split="random", block_bytes=4096)


def write(path: Path, **columns: object) -> Path:
    pl.DataFrame(columns).write_parquet(path)
    return path


@pytest.mark.parametrize("kind", [pl.Int64, pl.Int32, pl.UInt32, pl.UInt64, pl.Int8])
def test_integer_types(tmp_path: Path, kind: pl.DataType) -> None:
    path = write(tmp_path / "e.parquet", a=pl.Series([0, 2], dtype=kind), b=pl.Series([1, 0], dtype=kind))
    source = open_parquet(path)
    assert read_edges(source) == [(0, 1), (2, 0)]
    assert source.approx_edges == 2


def test_columns_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "e.parquet", w=[0.5, 0.5], dst=[1, 0], src=[0, 2])
    with pytest.raises(InputError, match=r"gives edges further columns \(w\), .* --set data\.edge_weights=drop"):
        open_parquet(path, source_column="src", target_column="dst")
    source = open_parquet(path, source_column="src", target_column="dst", edge_weights="drop")
    assert read_edges(source) == [(0, 1), (2, 0)]
    assert source.notes == {"ignored_columns": 1}
    with pytest.raises(InputError, match="has no column 'u': it has w, dst, src"):
        open_parquet(path, source_column="u")
    with pytest.raises(InputError, match="hold Float64 and Int64: ids are integers or strings"):
        open_parquet(path)
    with pytest.raises(InputError, match="the same column"):
        open_parquet(path, source_column="dst")


@pytest.mark.parametrize("chunk", [1, 7, 100, 1000])
@pytest.mark.parametrize("row_group", [3, 1000])
def test_slices_of_any_size_give_the_same_edges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, row_group: int
) -> None:
    edges = np.random.default_rng(0).integers(0, 50, (200, 2))
    pl.DataFrame(edges, schema=["a", "b"]).write_parquet(tmp_path / "e.parquet", row_group_size=row_group)
    monkeypatch.setattr(parquet, "CHUNK_EDGES", chunk)
    assert read_edges(open_parquet(tmp_path / "e.parquet")) == [tuple(edge) for edge in edges.tolist()]


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical])
def test_names(tmp_path: Path, kind: pl.DataType) -> None:
    path = write(tmp_path / "e.parquet", a=pl.Series(["z", "b"], dtype=kind), b=pl.Series(["b", "a"], dtype=kind))
    ingest(open_parquet(path), RANDOM, tmp_path / "g.h5")
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.read_original_ids().tolist() == ["a", "b", "z"]
        assert store.read_indices().tolist() == [1, 2]


def test_a_null_is_named_by_row(tmp_path: Path) -> None:
    path = write(tmp_path / "e.parquet", a=[0, 1, 2], b=[1, None, 0])
    with pytest.raises(InputError, match="row 1: column 'b' is null"):
        read_edges(open_parquet(path))


def test_an_id_beyond_64_bits_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "e.parquet", a=pl.Series([2**63], dtype=pl.UInt64), b=pl.Series([1], dtype=pl.UInt64))
    with pytest.raises(InputError, match="cannot be read after row 0"):
        read_edges(open_parquet(path))


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(InputError, match="no readable Parquet file"):
        open_parquet(tmp_path / "e.parquet")
    with pytest.raises(InputError, match="has one column: an edge needs two"):
        open_parquet(write(tmp_path / "one.parquet", a=[1]))
    with pytest.raises(InputError, match="does not exist"):
        open_parquet(tmp_path / "none.parquet")


def test_tables_in_parquet(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.parquet", a=[0, 1], b=[1, 2])
    features = write(tmp_path / "x.parquet", f=[0.5, 1.5, 2.5], g=[1, 2, 3])
    labels = write(tmp_path / "y.parquet", y=["cat", "dog", None])
    source = open_parquet(edges, features=features, labels=labels)
    assert read_features(source).tolist() == [[0.5, 1], [1.5, 2], [2.5, 3]]
    assert source.labels is not None
    assert (source.labels.labels_N.tolist(), source.labels.names) == ([0, 1, -1], ("cat", "dog"))
    assert source.num_nodes == 3


def test_nulls_among_features_count_as_nan(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.parquet", a=[0], b=[1])
    source = open_parquet(edges, features=write(tmp_path / "x.parquet", f=[1, None], g=[1, 2]))
    with pytest.raises(InputError, match="row 1, column 0 is nan"):
        ingest(source, RANDOM, tmp_path / "g.h5")
    zero = IngestOptions(split="random", nan_policy="zero")
    assert ingest(source, zero, tmp_path / "g.h5").features_non_finite == 1
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.read_features().tolist() == [[1, 1], [0, 2]]


def test_features_must_be_numbers(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.parquet", a=[0], b=[1])
    with pytest.raises(InputError, match="column 'f' holds String, which is no number"):
        open_parquet(edges, features=write(tmp_path / "x.parquet", f=["a", "b"]))
    with pytest.raises(InputError, match=r"column 'y' holds List\(Int64\): give integers or strings"):
        open_parquet(edges, labels=write(tmp_path / "y.parquet", y=[[1], [2]]))
    with pytest.raises(InputError, match=r"has 2 columns \(y, z\): give one column of labels"):
        open_parquet(edges, labels=write(tmp_path / "y.parquet", y=[1, 2], z=[1, 2]))
