"""Ids found in edges equal NumPy's unique, and map to their positions, dense or sparse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import node_ids
from storage.errors import InputError
from storage.formats.base import EdgeArrays, Numbering
from storage.id_hash import HashIndex
from storage.id_set import IdSet
from storage.node_ids import discover_ids, number_integers
from storage.scratch_array import ScratchArray

IDS = st.integers(0, 40) | st.integers(0, 2**63 - 1) | st.integers(10_000, 10_050)


def read(array: ScratchArray) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, array.dtype), *array.chunks()])


@settings(deadline=None)
@given(st.lists(st.tuples(IDS, IDS), max_size=80), st.booleans())
def test_numbers_are_positions_among_the_sorted_ids(
    tmp_path_factory: pytest.TempPathFactory, edges: list[tuple[int, int]], all_far: bool
) -> None:
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T
    with pytest.MonkeyPatch.context() as patch:
        if all_far:
            patch.setattr(node_ids, "_MOST_BITS_BYTES", 0)
        numbered = number_integers(EdgeArrays(src, dst), Numbering(tmp_path_factory.mktemp("ids")))
    expected = np.unique(np.concatenate([src, dst]))
    assert numbered.num_nodes == len(expected)
    original = np.arange(len(expected)) if numbered.original_ids is None else read(numbered.original_ids)
    assert original.tolist() == expected.tolist()
    for got_src, got_dst in numbered.edges.chunks():
        assert original[got_src].tolist() == src.tolist()
        assert original[got_dst].tolist() == dst.tolist()


@pytest.mark.parametrize("stride", [1, 3, 10**9 + 7])
@pytest.mark.parametrize("work_bytes", [None, 1 << 16])
def test_ids_that_grow_are_all_there(tmp_path: Path, stride: int, work_bytes: int | None) -> None:
    ids = np.random.default_rng(0).permutation(50_000) * stride
    numbered = number_integers(EdgeArrays(ids, ids[::-1]), Numbering(tmp_path, work_bytes))
    assert numbered.num_nodes == 50_000
    assert (numbered.original_ids is None) == (stride == 1)
    (src, _), *_ = numbered.edges.chunks()
    assert np.array_equal(src, ids // stride)


def test_a_negative_id_is_named_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 2: id -5 is negative"):
        discover_ids(EdgeArrays(np.array([0, 1, 2]), np.array([1, 1, -5])), Numbering(tmp_path))


@pytest.mark.parametrize("ids", [[5, 2**62], [5, 9], [7]])
def test_what_is_not_there_has_no_node(tmp_path: Path, ids: list[int]) -> None:
    found = discover_ids(EdgeArrays(np.array(ids), np.array(ids)), Numbering(tmp_path))
    strangers = np.array([0, 4, 6, 8, 10, 2**62 - 1, 2**63 - 1])
    assert found.look_up(strangers).tolist() == [-1] * len(strangers)
    assert found.look_up(np.array(ids)).tolist() == list(range(len(ids)))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(st.integers(0, 300) | st.integers(0, 2**20), max_size=30), max_size=12))
def test_a_set_grows_and_loses_no_id(chunks: list[list[int]]) -> None:
    found, expected = IdSet(), sorted({id_ for chunk in chunks for id_ in chunk})
    for chunk in chunks:
        found.add(np.array(chunk, np.int64))
    assert [id_ for ids in found.ascending() for id_ in ids.tolist()] == expected
    assert (found.count(), found.largest) == (len(expected), max(expected, default=-1))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=300), st.lists(st.integers(0, 2**64 - 1), max_size=9))
def test_the_index_finds_every_hash(keys: list[int], others: list[int]) -> None:
    hashes = np.array(keys, np.uint64)
    index = HashIndex(lambda: iter([hashes[:7], hashes[7:]]), len(hashes))
    assert index.look_up(hashes).tolist() == list(range(len(keys)))
    expected = [keys.index(key) if key in keys else -1 for key in others]
    assert index.look_up(np.array(others, np.uint64)).tolist() == expected
    assert not index.has_repeats
    assert not keys or HashIndex(lambda: iter([hashes, hashes[-1:]]), len(hashes) + 1).has_repeats
