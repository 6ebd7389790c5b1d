"""Ids found in edges equal NumPy's unique, and map to their positions, dense or sparse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import id_set
from storage.errors import InputError
from storage.formats.base import EdgeArrays
from storage.id_hash import HashIndex
from storage.id_set import IdSet
from storage.node_ids import discover_ids, number_integers

IDS = st.integers(0, 40) | st.integers(0, 2**63 - 1) | st.integers(10_000, 10_050)


@settings(deadline=None)
@given(st.lists(st.tuples(IDS, IDS), max_size=80))
def test_numbers_are_positions_among_the_sorted_ids(edges: list[tuple[int, int]]) -> None:
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T
    numbered = number_integers(EdgeArrays(src, dst))
    expected = np.unique(np.concatenate([src, dst]))
    assert numbered.num_nodes == len(expected)
    original = np.arange(len(expected)) if numbered.original_ids is None else numbered.original_ids
    assert original.tolist() == expected.tolist()
    for got_src, got_dst in numbered.edges.chunks():
        assert original[got_src].tolist() == src.tolist()
        assert original[got_dst].tolist() == dst.tolist()


@pytest.mark.parametrize("stride", [1, 3, 10**9 + 7])
def test_tables_that_grow_lose_no_id(stride: int) -> None:
    ids = np.random.default_rng(0).permutation(50_000) * stride
    numbered = number_integers(EdgeArrays(ids, ids[::-1]))
    assert numbered.num_nodes == 50_000
    assert (numbered.original_ids is None) == (stride == 1)
    (src, _), *_ = numbered.edges.chunks()
    assert np.array_equal(src, ids // stride)


def test_a_negative_id_is_named_with_its_row() -> None:
    with pytest.raises(InputError, match="row 2: id -5 is negative"):
        discover_ids(EdgeArrays(np.array([0, 1, 2]), np.array([1, 1, -5])))


def test_the_index_says_what_is_not_there() -> None:
    assert HashIndex(np.array([5, 2**62])).look_up(np.array([2**62, 7, 5])).tolist() == [1, -1, 0]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(IDS | st.integers(0, 2**20), max_size=30), max_size=12), st.sampled_from([0, 64, 1 << 20]))
def test_a_set_changes_its_form_and_loses_no_id(chunks: list[list[int]], small_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_set, "_SMALL_BYTES", small_bytes)
        found = IdSet()
        for chunk in chunks:
            found.add(np.array(chunk, np.int64))
        assert found.sorted().tolist() == sorted({id_ for chunk in chunks for id_ in chunk})


def test_far_ids_go_over_to_bits_once_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_set, "_SMALL_BYTES", 1 << 12)
    ids = np.random.default_rng(0).permutation(1 << 20)
    found = IdSet()
    sizes = []
    for start in range(0, len(ids), 1000):
        found.add(ids[start : start + 1000])
        sizes.append(found.nbytes)
    assert sizes[0] == 8 * 4096, "a hash table"
    assert max(sizes) == sizes[-1] == (1 << 20) // 8, "bits as soon as they take less"
    assert np.array_equal(found.sorted(), np.arange(1 << 20))
