from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.cpu.count import count_accesses
from kernels.cpu.gather import gather_rows

DTYPES = [np.uint8, np.float16, np.float32, np.float64, np.int32]


@settings(deadline=None)
@given(
    st.data(),
    st.sampled_from(DTYPES),
    st.integers(0, 70),
    st.lists(st.integers(0, 9), min_size=1, max_size=3).filter(any),
    st.integers(0, 40),
)
def test_gather_equals_reference(data: st.DataObject, dtype: Any, width: int, rows: list[int], num_rows: int) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    tiers = [rng.integers(0, 200, (n, width + 3)).astype(dtype)[:, :width] for n in rows]  # rows lie apart
    filled = [t for t, n in enumerate(rows) if n]
    tier_n = rng.choice(filled, num_rows).astype(np.uint8)
    slot_n = np.array([rng.integers(0, rows[t]) for t in tier_n], np.int64)
    fast, slow = np.zeros((num_rows, width), dtype), np.ones((num_rows, width), dtype)
    gather_rows(tiers, tier_n, slot_n, fast)
    reference.gather_rows(tiers, tier_n, slot_n, slow)
    assert np.array_equal(fast, slow)


def test_bits_are_moved_unchanged() -> None:
    nans = np.arange(0x7FC00001, 0x7FC00041, dtype=np.uint32).view(np.float32).reshape(4, 16)
    out = np.empty((2, 16), np.float32)
    gather_rows([nans], np.zeros(2, np.uint8), np.array([3, 1]), out)
    assert np.array_equal(out.view(np.uint32), nans.view(np.uint32)[[3, 1]])


@pytest.mark.parametrize(("tier", "slot"), [(0, 3), (0, -1), (1, 0), (2, 0)])
def test_rows_that_no_tier_holds_are_refused(tier: int, slot: int) -> None:
    tiers = [np.ones((3, 2)), np.ones((0, 2))]
    tier_n, slot_n = np.array([0, tier], np.uint8), np.array([1, slot])
    with pytest.raises(ValueError, match=rf"row 1 asks for slot {slot} of tier {tier}"):
        gather_rows(tiers, tier_n, slot_n, np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"tiers": [np.ones((3, 2), np.float32)]}, "tier 0 must hold float64"),
        ({"tiers": [np.ones((3, 3))]}, "tier 0 must hold float64 rows of 2"),
        ({"tiers": [np.ones((3, 4))[:, ::2]]}, "rows of tier 0 must be contiguous"),
        ({"tier_n": np.zeros(2, np.int64)}, "uint8"),
        ({"slot_n": np.zeros(3, np.int64)}, "one length"),
        ({"slot_n": np.zeros(4, np.int64)[::2]}, "contiguous"),
        ({"out": np.zeros((2, 4))[:, ::2]}, "out must be"),
        ({"out": np.zeros((3, 2))}, "out must be"),
        ({"out": np.zeros((2, 2), object)}, "cannot be moved as bytes"),
    ],
)
def test_arrays_that_do_not_agree_are_refused(changed: dict[str, Any], match: str) -> None:
    arguments: dict[str, Any] = {
        "tiers": [np.ones((3, 2))],
        "tier_n": np.zeros(2, np.uint8),
        "slot_n": np.zeros(2, np.int64),
        "out": np.zeros((2, 2)),
    }
    gather_rows(**arguments)
    with pytest.raises(ValueError, match=match):
        gather_rows(**arguments | changed)


@settings(deadline=None)
@given(st.lists(st.integers(0, 9)), st.sampled_from([np.int32, np.int64]))
def test_count_equals_reference(ids: list[int], dtype: Any) -> None:
    fast, slow = np.full(10, 5), np.full(10, 5)
    count_accesses(fast, np.array(ids, dtype))
    reference.count_accesses(slow, np.array(ids, dtype))
    assert np.array_equal(fast, slow)
