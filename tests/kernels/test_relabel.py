from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.cpu import relabel as relabel_module
from kernels.cpu.hash_relabel import relabel_batch
from kernels.cpu.relabel import relabel
from kernels.cpu.stamps import StampTable
from kernels.mfg import SampleTooLargeError

NODES = st.lists(st.integers(0, 20), max_size=15)
BATCHES = st.lists(st.tuples(NODES.map(lambda nodes: list(dict.fromkeys(nodes))), NODES), max_size=4)


@settings(deadline=None)
@given(BATCHES, st.sampled_from([np.int32, np.int64]))
def test_relabel_equals_reference(batches: list[tuple[list[int], list[int]]], dtype: Any) -> None:
    uniq = np.array([v for dst, _ in batches for v in dst], dtype)
    neighbors = np.array([v for _, row in batches for v in row], dtype)
    uniq_ptr = np.cumsum([0, *(len(dst) for dst, _ in batches)])
    edge_ptr = np.cumsum([0, *(len(row) for _, row in batches)])
    slow = reference.relabel(uniq, uniq_ptr, neighbors, edge_ptr)
    stamps = StampTable(21)
    stamps.take(3)
    fast = relabel(uniq, uniq_ptr, neighbors.copy(), edge_ptr, stamps=stamps)
    for a, b in zip(fast, slow, strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)

    src, src_ptr, local = slow
    for i, (dst, row) in enumerate(batches):
        mine = src[src_ptr[i] : src_ptr[i + 1]]
        assert mine.tolist() == list(dict.fromkeys(dst + row))
        assert mine[local[edge_ptr[i] : edge_ptr[i + 1]]].tolist() == row


def test_every_node_may_be_a_source() -> None:
    # The loop stores a neighbor before it knows whether it is new: there must be room for one too many.
    everything, none = np.arange(50), np.array([0, 0])
    src, src_ptr, local = relabel(
        everything[:0], none, np.tile(everything, 3), np.array([0, 150]), stamps=StampTable(50)
    )
    assert np.array_equal(src, everything)
    assert src_ptr.tolist() == [0, 50]
    assert np.array_equal(local, np.tile(everything, 3))


def test_more_sources_than_int32_counts_is_an_error_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relabel_module, "_MAX_LOCAL", 39)
    nodes, none = np.arange(40), np.zeros(2, np.int64)
    relabel(nodes[:0], none, nodes[:39], np.array([0, 39]), stamps=StampTable(50))
    with pytest.raises(
        SampleTooLargeError, match=r"up to 40 sources .*: use a smaller batch_size or fanouts"
    ) as caught:
        relabel(nodes[:0], none, nodes, np.array([0, 40]), stamps=StampTable(50))
    assert caught.value.exit_code == 2


def test_sources_hold_no_memory_beyond_their_own() -> None:
    src, _ = relabel_batch(np.arange(60), np.repeat(np.arange(50, 100), 2), 200)
    assert src.tolist() == list(range(100))
    assert src.base is None
