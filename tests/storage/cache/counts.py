"""Hand-made and drawn access profiles for the plan's tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from storage.cache.inclusion import SMOOTHED_UNIT
from storage.cache.profile import AccessProfile


def profile_of(
    feature: npt.ArrayLike,
    adjacency: npt.ArrayLike,
    *,
    full_link: npt.ArrayLike | None = None,
    smoothed: npt.ArrayLike | None = None,
    heldout_feature: npt.ArrayLike | None = None,
    heldout_adjacency: npt.ArrayLike | None = None,
) -> AccessProfile:
    """A profile of these counts, as narrow as the real ones; what is not given is as the counts that choose."""
    most = SMOOTHED_UNIT * max(int(np.max(column, initial=0)) for column in (feature, adjacency))
    dtype = np.int32 if most < 2**31 else np.int64

    def counts(given: npt.ArrayLike | None, default: npt.ArrayLike) -> npt.NDArray[np.integer]:
        return np.array(default if given is None else given, dtype)

    return AccessProfile(
        feature_count_N=counts(feature, feature),
        full_link_count_N=counts(full_link, feature),
        adjacency_count_N=counts(adjacency, adjacency),
        smoothed_feature_N=counts(smoothed, SMOOTHED_UNIT * np.asarray(feature)),
        smoothed_adjacency_N=counts(None, SMOOTHED_UNIT * np.asarray(adjacency)),
        heldout_feature_count_N=counts(heldout_feature, feature),
        heldout_adjacency_count_N=counts(heldout_adjacency, adjacency),
        epochs=1,
        heldout_epochs=1,
        num_batches=1,
    )


@st.composite
def plan_cases(draw: st.DrawFn, *, max_nodes: int = 40) -> dict[str, Any]:
    """Arguments of `build_plan`: any counts, degrees, sizes and budgets."""
    num_nodes = draw(st.integers(0, max_nodes))

    def column(most: int) -> npt.NDArray[np.int64]:
        element = st.just(0) | st.integers(0, most)
        return np.array(draw(st.lists(element, min_size=num_nodes, max_size=num_nodes)), np.int64)

    profile = profile_of(
        column(9),
        column(9),
        full_link=column(30),
        smoothed=column(2000),
        heldout_feature=column(9),
        heldout_adjacency=column(9),
    )
    return {
        "profile": profile,
        "in_degree_N": column(40),
        "row_bytes": draw(st.integers(1, 40)),
        "id_bytes": draw(st.sampled_from([4, 8])),
        "device_budget": draw(st.integers(0, 100) | st.integers(0, 6000)),
        "counting": draw(st.sampled_from(["smoothed", "input", "full_link"])),
        "max_fanout": draw(st.integers(-1, 12)),
        "line_bytes": draw(st.sampled_from([1, 32, 64])),
    }
