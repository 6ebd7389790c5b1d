"""Edges sorted in scratch files make the same store, byte for byte, as edges sorted in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import csc_external
from storage.csc import build_csc, count_occurrences
from storage.csc_external import ExternalCsc, build_external_csc, external_csc_disk_bytes
from storage.edge_spill import EdgeSpill, SpilledRange
from storage.errors import InputError
from storage.formats.base import EdgeChunk, GraphSource, Relations, TypedChunk
from storage.formats.edge_list import open_edge_list
from storage.graph_store import GraphStore
from storage.ingest import IngestOptions, ingest
from storage.scratch_array import ScratchArray
from tests.storage.stores import small_source
from tests.storage.test_csc import Edges, chunks_of, edge_lists


def read(array: ScratchArray | None) -> list[int]:
    assert array is not None
    return [value for chunk in array.chunks() for value in chunk.tolist()]


@settings(deadline=None, max_examples=150)
@given(
    graph=edge_lists(),
    size=st.integers(1, 20),
    work_bytes=st.sampled_from([1, 64, 200, 1000, 1 << 20]),
    symmetrize=st.booleans(),
    deduplicate=st.booleans(),
    remove_self_loops=st.booleans(),
    typed=st.booleans(),
)
def test_equals_the_sort_in_memory(
    tmp_path_factory: pytest.TempPathFactory,
    graph: tuple[int, Edges],
    size: int,
    work_bytes: int,
    typed: bool,
    **options: bool,
) -> None:
    num_nodes, edges = graph
    folder = tmp_path_factory.mktemp("scratch")
    relation = np.random.default_rng(len(edges)).integers(0, 5, len(edges)).astype(np.int32)

    def read_typed() -> Iterator[TypedChunk]:
        for number, (src, dst) in enumerate(chunks_of(edges, size, np.int64)):
            yield src, dst, relation[number * size : (number + 1) * size]

    if typed:
        options = {"remove_self_loops": options["remove_self_loops"]}
    fields: dict[str, Any] = {**options, "read_typed": read_typed if typed else None}
    expected = build_csc(lambda: chunks_of(edges, size, np.int64), num_nodes, **fields)
    found = build_external_csc(
        lambda: chunks_of(edges, size, np.int32),
        num_nodes,
        folder,
        approx_edges=len(edges) // 2,
        work_bytes=work_bytes,
        **fields,
    )
    out_degree = count_occurrences(expected.indices, num_nodes)
    assert np.concatenate(list(found.indptr().chunks)).tolist() == expected.indptr.tolist()
    assert (read(found.indices), found.indices.dtype) == (expected.indices.tolist(), expected.indices.dtype)
    assert read(found.out_degree) == out_degree.tolist()
    assert found.counts == expected.counts
    assert found.isolated_nodes == np.count_nonzero((np.diff(expected.indptr) == 0) & (out_degree == 0))
    if typed:
        assert expected.relations is not None
        assert read(found.relations) == expected.relations.tolist()
    assert {path.name for path in folder.iterdir()} == {"indices", "in-degree", "out-degree", "relations"}


def hub(num_nodes: int, num_edges: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Edges of which half end in one node: no split makes its list fit."""
    rng = np.random.default_rng(3)
    dst = np.where(rng.random(num_edges) < 0.5, 7, rng.integers(0, num_nodes, num_edges))
    return rng.integers(0, num_nodes, num_edges), dst


@pytest.mark.parametrize("deduplicate", [False, True])
def test_a_list_longer_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deduplicate: bool) -> None:
    src, dst = hub(1000, 200_000)
    lists, splits, sorter = list[SpilledRange](), list[SpilledRange](), csc_external._RangeSorter
    append_list, split = sorter._append_list, sorter._split

    def appended(self: csc_external._RangeSorter, part: SpilledRange) -> None:
        lists.append(part)
        append_list(self, part)

    def divided(self: csc_external._RangeSorter, part: SpilledRange) -> list[SpilledRange]:
        splits.append(part)
        return split(self, part)

    monkeypatch.setattr(sorter, "_append_list", appended)
    monkeypatch.setattr(sorter, "_split", divided)
    found = external(tmp_path, src, dst, 1000, work_bytes=100_000, deduplicate=deduplicate)
    expected = build_csc(lambda: [(src, dst)], 1000, deduplicate=deduplicate)
    assert read(found.indices) == expected.indices.tolist()
    assert found.counts == expected.counts
    assert [(part.first, part.num_edges) for part in lists] == [(7, int(np.count_nonzero(dst == 7)))]
    assert splits, "the range with the long list did not fit and was split"


def external(
    folder: Path, src: npt.NDArray[np.int64], dst: npt.NDArray[np.int64], num_nodes: int, **fields: Any
) -> ExternalCsc:
    def chunks() -> Iterator[EdgeChunk]:
        for start in range(0, len(src), 10_000):
            yield src[start : start + 10_000], dst[start : start + 10_000]

    return build_external_csc(chunks, num_nodes, folder, approx_edges=len(src), **fields)


def test_scratch_stays_below_its_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    src, dst = hub(5000, 300_000)
    peak = 0
    append = csc_external._RangeSorter._append

    def watched_append(self: Any, name: str, values: Any) -> None:
        nonlocal peak
        append(self, name, values)
        peak = max(peak, sum(path.stat().st_size for path in tmp_path.iterdir()))

    monkeypatch.setattr(csc_external._RangeSorter, "_append", watched_append)
    external(tmp_path, src, dst, 5000, work_bytes=200_000)
    bound = external_csc_disk_bytes(300_000, 5000)
    assert bound / 2 < peak <= bound


def test_an_id_out_of_range_is_named_with_its_row(tmp_path: Path) -> None:
    edges = [(0, 1)] * 5 + [(0, 3)]
    with pytest.raises(InputError, match=r"row 5: edge \(0, 3\) .* outside \[0, 3\)"):
        build_external_csc(lambda: chunks_of(edges, 2, np.int64), 3, tmp_path, approx_edges=6, work_bytes=1000)


def test_edges_keep_their_order_within_a_file(tmp_path: Path) -> None:
    spill = EdgeSpill(tmp_path, 0, 8, num_nodes=8, columns=2, parts=4, buffer_bytes=1)
    src, dst = np.arange(60_000) % 8, np.arange(60_000) * 5 % 8
    assert spill.add(src, dst)
    ranges: list[SpilledRange] = spill.finish()
    assert [(part.first, part.last) for part in ranges] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    for part in ranges:
        rows = np.concatenate([rows.copy() for rows in part.chunks()])
        here = (dst >= part.first) & (dst < part.last)
        assert np.array_equal(rows, np.stack([dst[here], src[here]], axis=1))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"symmetrize": True, "self_loops": "remove"},
        {"deduplicate": True, "split": "full"},
        {"split": "random", "split_seed": 5},
    ],
)
def test_the_store_is_the_same_file(tmp_path: Path, options: dict[str, Any]) -> None:
    chosen = IngestOptions(block_bytes=4096, **options)
    in_memory = ingest(small_source(), chosen, tmp_path / "memory.h5")
    in_scratch = ingest(small_source(), chosen, tmp_path / "scratch.h5", plan=lambda _: 100)
    assert in_scratch == in_memory
    assert (tmp_path / "scratch.h5").read_bytes() == (tmp_path / "memory.h5").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory.h5", "scratch.h5"]


def test_relations_are_stored_the_same(tmp_path: Path) -> None:
    def typed_chunks() -> Iterator[TypedChunk]:
        for src, dst in small_source().edge_chunks():
            yield src, dst, np.arange(len(src), dtype=np.int32) % 2

    typed = Relations(("a", "b"), typed_chunks)
    for name, work_bytes in (("memory", None), ("scratch", 100)):
        ingest(
            small_source(relations=typed),
            IngestOptions(block_bytes=4096),
            tmp_path / f"{name}.h5",
            plan=lambda _, work_bytes=work_bytes: work_bytes,  # type: ignore[misc]
        )
    assert (tmp_path / "scratch.h5").read_bytes() == (tmp_path / "memory.h5").read_bytes()


@pytest.mark.parametrize("id_text", [str, "node {}".format, lambda node: str(node * 3 + 7), lambda node: str(node**5)])
def test_ids_of_every_kind(tmp_path: Path, id_text: Any) -> None:
    src, dst = hub(300, 5000)
    lines = (f"{id_text(int(u))},{id_text(int(v))}\n" for u, v in zip(src, dst, strict=True))
    (tmp_path / "edges.csv").write_text("".join(lines), encoding="utf-8")
    source: GraphSource = open_edge_list(tmp_path / "edges.csv")
    options = IngestOptions(split="random", block_bytes=4096)
    in_memory = ingest(source, options, tmp_path / "memory.h5")
    assert ingest(source, options, tmp_path / "scratch.h5", plan=lambda _: 1000) == in_memory
    assert (tmp_path / "scratch.h5").read_bytes() == (tmp_path / "memory.h5").read_bytes()
    with GraphStore.open(tmp_path / "scratch.h5") as store:
        assert store.info.num_edges == 5000


def test_a_failure_leaves_no_scratch_behind(tmp_path: Path) -> None:
    source = small_source(edges=_Broken())
    with pytest.raises(InputError, match="the file is broken"):
        ingest(source, IngestOptions(), tmp_path / "g.h5", plan=lambda _: 100)
    assert list(tmp_path.iterdir()) == []


class _Broken:
    def chunks(self) -> Iterator[EdgeChunk]:
        yield np.array([0]), np.array([1])
        raise InputError("the file is broken")

    def locate(self, row: int) -> str:
        return f"row {row}"
