"""The streaming CSC equals one built from the whole edge list, whatever the chunks and options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.csc import build_csc, count_occurrences
from storage.errors import InputError
from storage.formats.base import EdgeChunk, TypedChunk

Edges = list[tuple[int, int]]


def adjacency(edges: Edges, num_nodes: int, symmetrize: bool, no_loops: bool) -> list[list[int]]:
    """Adjacency lists by plain loops, repeats and all."""
    rows: list[list[int]] = [[] for _ in range(num_nodes)]
    for u, v in edges:
        if u == v and no_loops:
            continue
        rows[v].append(u)
        if symmetrize and u != v:
            rows[u].append(v)
    return rows


def chunks_of(edges: Edges, size: int, dtype: npt.DTypeLike) -> Iterator[EdgeChunk]:
    for start in range(0, len(edges), size):
        src, dst = np.array(edges[start : start + size], dtype).T
        yield src, dst


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[int, Edges]:
    num_nodes = draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    return num_nodes, draw(st.lists(st.tuples(node, node), max_size=60))


@settings(deadline=None)
@given(
    graph=edge_lists(),
    size=st.integers(1, 20),
    dtype=st.sampled_from([np.int32, np.int64]),
    symmetrize=st.booleans(),
    deduplicate=st.booleans(),
    no_loops=st.booleans(),
)
def test_equals_the_reference(
    graph: tuple[int, Edges],
    size: int,
    dtype: npt.DTypeLike,
    symmetrize: bool,
    deduplicate: bool,
    no_loops: bool,
) -> None:
    num_nodes, edges = graph
    csc = build_csc(
        lambda: chunks_of(edges, size, dtype),
        num_nodes,
        symmetrize=symmetrize,
        deduplicate=deduplicate,
        remove_self_loops=no_loops,
    )
    full = adjacency(edges, num_nodes, symmetrize, no_loops)
    expected = [list(dict.fromkeys(row)) for row in full] if symmetrize or deduplicate else full
    assert [csc.indices[a:b].tolist() for a, b in zip(csc.indptr[:-1], csc.indptr[1:], strict=True)] == expected
    assert csc.indices.dtype == np.int32
    loops = sum(u == v for u, v in edges)
    assert csc.counts.rows_read == len(edges)
    assert csc.counts.self_loops_found == loops
    assert csc.counts.self_loops_removed == (loops if no_loops else 0)
    assert csc.counts.reverse_added == (len(edges) - loops if symmetrize else 0)
    assert csc.counts.duplicates_found == sum(len(row) - len(set(row)) for row in full)
    assert csc.counts.duplicates_removed == sum(map(len, full)) - sum(map(len, expected))


@settings(deadline=None)
@given(graph=edge_lists(), size=st.integers(1, 20), no_loops=st.booleans(), seed=st.integers(0, 9))
def test_relations_stay_with_their_edges(graph: tuple[int, Edges], size: int, no_loops: bool, seed: int) -> None:
    num_nodes, edges = graph
    relation = np.random.default_rng(seed).integers(0, 4, len(edges)).astype(np.int32)

    def read_typed() -> Iterator[TypedChunk]:
        for number, (src, dst) in enumerate(chunks_of(edges, size, np.int64)):
            yield src, dst, relation[number * size : (number + 1) * size]

    csc = build_csc(
        lambda: chunks_of(edges, size, np.int64), num_nodes, remove_self_loops=no_loops, read_typed=read_typed
    )
    assert csc.relations is not None
    rows: list[Edges] = [[] for _ in range(num_nodes)]
    for (u, v), kind in zip(edges, relation.tolist(), strict=True):
        if u != v or not no_loops:
            rows[v].append((u, kind))
    bounds = zip(csc.indptr[:-1], csc.indptr[1:], strict=True)
    found = [list(zip(csc.indices[a:b].tolist(), csc.relations[a:b].tolist(), strict=True)) for a, b in bounds]
    assert found == rows


@settings(deadline=None)
@given(edge_lists())
def test_occurrences_are_out_degrees(graph: tuple[int, Edges]) -> None:
    num_nodes, edges = graph
    src = np.array([u for u, _ in edges], np.int32)
    assert count_occurrences(src, num_nodes).tolist() == np.bincount(src, minlength=num_nodes).tolist()


@pytest.mark.parametrize("edge", [(0, 3), (3, 0), (-1, 0), (0, -1), (2**40, 0)])
def test_an_id_out_of_range_is_named_with_its_row(edge: tuple[int, int]) -> None:
    edges = [(0, 1)] * 5 + [edge]
    with pytest.raises(InputError, match=r"row 5: edge .* outside \[0, 3\)") as caught:
        build_csc(lambda: chunks_of(edges, 2, np.int64), 3)
    assert str(edge) in str(caught.value)


@pytest.mark.parametrize("second", [[(0, 1)] * 6, [(0, 1)] * 4, [(0, 1)] * 4 + [(0, 9)]])
def test_edges_that_change_between_the_readings_are_refused(second: Edges) -> None:
    readings = iter([[(0, 1)] * 5, second])
    with pytest.raises(InputError, match="changed while they were read"):
        build_csc(lambda: chunks_of(next(readings), 3, np.int64), 2)


@pytest.mark.parametrize("options", [{}, {"symmetrize": True}, {"remove_self_loops": True}, {"deduplicate": True}])
@pytest.mark.parametrize(
    "second",
    [
        [(1, 1), (0, 2), (2, 2), (2, 0)],
        [(0, 1), (1, 2), (2, 2), (1, 0)],
        [(0, 1), (1, 1), (2, 2), (2, 0)],
        [(0, 1), (0, 1), (2, 2), (2, 0)],
    ],
    ids=["sources swapped", "another source", "rows of other lengths", "an edge in place of another"],
)
def test_as_many_edges_but_others_are_refused(second: Edges, options: dict[str, Any]) -> None:
    readings = iter([[(0, 1), (1, 2), (2, 2), (2, 0)], second])
    with pytest.raises(InputError, match="changed while they were read"):
        build_csc(lambda: chunks_of(next(readings), 3, np.int32), 3, **options)
