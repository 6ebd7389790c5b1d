"""Ids that do not fit a budget are refused with one that will do, found by estimating how many they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kernels.rng import mix64
from storage.distinct import DistinctSketch
from storage.errors import BudgetError
from storage.formats.base import EdgeArrays
from storage.formats.edge_list import open_edge_list
from storage.formats.names import collect_names
from storage.ingest import IngestOptions, ingest
from storage.node_ids import discover_ids


@pytest.mark.parametrize("count", [0, 1, 100, 30_000, 60_000, 1_000_000])
def test_the_estimate_is_near(count: int) -> None:
    sketch = DistinctSketch()
    values = mix64(np.arange(count, dtype=np.uint64))
    for _ in range(2):  # repeats do not count
        sketch.add(values)
    assert sketch.estimate() == pytest.approx(count, rel=0.03, abs=0.5)


def least_budget(error: BudgetError) -> int:
    return int(str(error).partition("set host_budget to at least ")[2].split(",")[0])


@pytest.mark.parametrize("spread", [10**15, 10**6, 3_000])
def test_integers_far_apart(spread: int) -> None:
    ids = np.unique(np.random.default_rng(0).integers(0, spread * 400, 400_000))
    reader = EdgeArrays(ids, ids[::-1].copy())
    with pytest.raises(BudgetError, match=r"numbering about [0-9]+ ids of nodes up to") as caught:
        discover_ids(reader, 100_000)
    least = least_budget(caught.value)
    assert least < 256 << 20
    assert np.array_equal(discover_ids(reader, least).ids_N, ids)


def test_names() -> None:
    columns = [pl.Series([f"a rather long name {node}" for node in range(i, i + 5000)]) for i in range(0, 90_000, 2500)]
    with pytest.raises(BudgetError, match=r"numbering about [0-9]+ names of nodes needs") as caught:
        collect_names(columns, 1 << 20)
    assert collect_names(columns, least_budget(caught.value)).to_list() == collect_names(columns).to_list()


def test_ingest_refuses_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("".join(f"person number {i},person number {i + 1}\n" for i in range(50_000)))
    source = open_edge_list(tmp_path / "edges.csv")
    with pytest.raises(BudgetError, match="or give integer ids"):
        ingest(source, IngestOptions(split="random"), tmp_path / "g.h5", most_id_bytes=1 << 20)
    assert [path.name for path in tmp_path.iterdir()] == ["edges.csv"]
