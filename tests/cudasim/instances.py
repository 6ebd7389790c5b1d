"""The kernels that tests run, by source: each source is built once for all of them."""

from __future__ import annotations

import itertools

from kernels.cuda.sample import group_shape

IDS = ("i32", "i64")
FANOUTS = (1, 2, 5, 20)
"""Fanouts of the drawn tests: rows alone in a lane, groups that fill a warp and not, several draws a lane."""


def _parted(ids: str, fanout: int, *, position: str = "u32", replace: str = "false", numbered: str = "false") -> str:
    shape = group_shape(fanout)
    return f"sample_parted<{ids}, {position}, {fanout}, {shape.lanes}, {shape.rounds}, {replace}, {numbered}>"


def _each(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}<{ids}>" for name in names for ids in IDS)


_SAMPLE = (
    *(_parted(ids, k, replace=r) for ids, k, r in itertools.product(IDS, FANOUTS, ("false", "true"))),
    *(_parted(ids, 2, replace=r, numbered="true") for ids, r in itertools.product(IDS, ("false", "true"))),
    *(_parted(ids, 5, position="u64") for ids in IDS),
    *(f"sample_grouped<{ids}, u32, 5, {r}, {d}>" for ids, r, d in itertools.product(IDS, ("false", "true"), (0, 16))),
    *(f"copy_lists<{ids}, 8, false, {n}>" for ids, n in itertools.product(IDS, ("false", "true"))),
    *(f"copy_lists<{ids}, 5, true, false>" for ids in IDS),
    *(f"sample_wide<{ids}, {r}, {n}>" for ids, r, n in itertools.product(IDS, ("false", "true"), ("false", "true"))),
    *(f"sample_edges<{ids}, u32, 5, false>" for ids in IDS),
    *_each(("sample_warp_rows",)),
)

INSTANCES: dict[str, tuple[str, ...]] = {
    "plan": (*_each(("plan_rows",)), "batch_bounds", "expand_rows"),
    "classify": ("flag_full", *_each(("scatter_classes",)), "list_classes", "classify_atomic"),
    "unique": (*_each(("insert_nodes",)), "mark_first", *_each(("place_nodes",))),
    "sample": _SAMPLE,
    "gather": (
        *_each(("resolve_rows", "list_missed", "count_accesses", "add_scores")),
        "flag_missed",
        "point_to_staged",
        *(f"gather_rows<{word}, {1 << power}>" for word in ("uint4", "u64", "u32", "u8") for power in range(6)),
        "row_addresses",
        "count_tiers",
    ),
    "aggregate": (
        *(f"sum_rows<float, {stored}, {lanes}>" for stored in ("float", "u8", "half_bits") for lanes in (8, 32)),
        *(f"sum_rows<double, double, {lanes}>" for lanes in (8, 32)),
        "permute_edges",
    ),
    "attention": ("attend_rows", "score_gradients", "source_gradients"),
    "dropout": ("drop_elements",),
}
"""Expressions of each source."""
