"""Distinct keys come in ascending order whatever the memory: names and integers, spilled or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import distinct_keys
from storage.distinct_keys import DistinctKeys
from storage.errors import BudgetError
from storage.formats import names
from storage.formats.base import Numbering
from storage.formats.names import Names, collect_names
from storage.node_ids import _IntegerKind

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)


def make_names(folder: Path, columns: list[list[str]], work_bytes: int | None = None) -> Names:
    return collect_names((pl.Series(column, dtype=pl.String) for column in columns), Numbering(folder, work_bytes))


def strings(found: Names) -> list[str]:
    return [name for piece in found.strings() for name in piece]


@settings(deadline=None, max_examples=150)
@given(columns=st.lists(st.lists(TEXT, max_size=30), max_size=8), data=st.data())
def test_names_are_sorted_by_their_bytes(
    tmp_path_factory: pytest.TempPathFactory, columns: list[list[str]], data: st.DataObject
) -> None:
    expected = sorted({name for column in columns for name in column}, key=str.encode)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distinct_keys, "CHUNK_EDGES", data.draw(st.sampled_from([1, 20, 1 << 18])))
        patch.setattr(distinct_keys, "_SAMPLE", data.draw(st.sampled_from([1, 5, 1 << 14])))
        patch.setattr(distinct_keys, "_PIECE_BYTES", data.draw(st.sampled_from([1, 30, 1 << 20])))
        work_bytes = data.draw(st.sampled_from([None, 1, 500, 4000]))
        found = make_names(tmp_path_factory.mktemp("names"), columns, work_bytes)
    assert strings(found) == expected
    assert found.look_up(pl.Series(expected, dtype=pl.String)).tolist() == list(range(len(expected)))
    assert found.look_up(pl.Series(["\0"])).tolist() == [-1]


@settings(deadline=None, max_examples=100)
@given(parts=st.lists(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 50), max_size=40), max_size=8))
@pytest.mark.parametrize("work_bytes", [None, 1, 1000])
def test_integers_are_sorted(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]], work_bytes: int | None
) -> None:
    folder = tmp_path_factory.mktemp("integers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distinct_keys, "CHUNK_EDGES", 10)
        keys: DistinctKeys[Any] = DistinctKeys(_IntegerKind(), folder, work_bytes)
        for part in parts:
            keys.add(np.array(part, np.int64))
        found = [key for piece in keys.ascending() for key in piece.tolist()]
    assert found == sorted({key for part in parts for key in part})
    assert list(folder.iterdir()) == [], "scratch files are gone"


def test_two_names_of_one_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seeds = names._hashes, []

    def weak(column: pl.Series, seed: int) -> Any:
        seeds.append(seed)
        return real(column, seed) % np.uint64(3) if seed < 2 else real(column, seed)

    monkeypatch.setattr(names, "_hashes", weak)
    wanted = [f"name {number}" for number in range(200)]
    found = make_names(tmp_path, [wanted])
    assert found.look_up(pl.Series(sorted(wanted))).tolist() == list(range(200))
    assert max(seeds) == 2


def test_scratch_files_keep_to_their_budget(tmp_path: Path) -> None:
    columns = [pl.Series([f"a rather long name {node}" for node in range(i, i + 5000)]) for i in range(0, 90_000, 2500)]
    whole = Numbering(tmp_path / "whole", 1 << 20)
    small = Numbering(tmp_path / "small", 1 << 20, 1 << 20, 1000)
    for numbering in (whole, small):
        numbering.folder.mkdir()
    with pytest.raises(BudgetError, match=r"disk_budget leaves 1048576: set disk_budget to at least") as caught:
        collect_names(columns, small)
    written = sum(file.stat().st_size for file in small.folder.rglob("*"))
    assert written <= 1 << 20
    least = int(str(caught.value).rpartition(" ")[2]) - 1000
    enough = Numbering(tmp_path / "enough", 1 << 20, least)
    enough.folder.mkdir()
    assert strings(collect_names(columns, enough)) == strings(collect_names(columns, whole))
