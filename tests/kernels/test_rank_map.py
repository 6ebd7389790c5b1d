from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.rank_map import RankMap


@settings(deadline=None)
@given(st.data(), st.integers(0, 300), st.sampled_from([np.int32, np.int64]))
def test_slots_are_positions_among_the_ids_held(data: st.DataObject, num_nodes: int, dtype: type) -> None:
    held = sorted(data.draw(st.sets(st.integers(0, num_nodes - 1)))) if num_nodes else []
    ranks = RankMap.from_sorted_ids(np.array(held, dtype), num_nodes)
    expected = [held.index(v) if v in held else -1 for v in range(num_nodes)]
    assert ranks.slots(np.arange(num_nodes, dtype=dtype)).tolist() == expected
    assert ranks.num_slots == len(held)
    assert ranks.nbytes == RankMap.nbytes_for(num_nodes)


def test_a_map_of_everything_over_many_words() -> None:
    ids = np.arange(10_000)
    assert np.array_equal(RankMap.from_sorted_ids(ids, 10_000).slots(ids[::-1]), ids[::-1])


def test_a_map_takes_less_than_a_fifth_of_a_byte_a_node() -> None:
    assert RankMap.nbytes_for(0) == 0
    assert RankMap.nbytes_for(1_000_000) == 12 * 15_625


@pytest.mark.parametrize("ids", [[1, 1], [2, 1], [-1, 3], [3, 10], [[1, 2]]])
def test_ids_that_make_no_map_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match=r"rank map"):
        RankMap.from_sorted_ids(np.array(ids), 10)
