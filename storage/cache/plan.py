"""Cache plans: which feature rows and adjacency lists the device budget holds, and the hit rates to expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kernels.rank_map import RankMap
from storage.cache.files import ArrayRecord
from storage.cache.knapsack import Int64Array, density_order, fill
from storage.cache.profile import AccessProfile, Counting
from storage.errors import InputError

OFFSET_BYTES = 8
"""Bytes of one offset of a cached adjacency list (`Topology.cached_indptr`, int64)."""

PLAN_NODE_BYTES = 256
"""The most bytes a node that `build_plan` takes beside its arguments: values, sizes, ranks of both kinds of item."""

LINE_BYTES = 64
"""Least bytes that one read of the tier below moves: a cache line of a CPU, two sectors of a GPU."""

CURVE_FRACTION = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Shares of all feature rows at which the curves give the hit rate."""


@dataclass(frozen=True, slots=True, eq=False)
class CachePlan(ArrayRecord):
    """What the device tier holds, byte for byte, and what that is expected to serve."""

    KIND: ClassVar[str] = "cache plan"
    VERSION: ClassVar[int] = 1

    feature_ids: Int64Array
    """(C_f,) nodes whose feature rows are cached, ascending."""
    adjacency_ids: Int64Array
    """(C_a,) nodes whose adjacency lists are cached, ascending."""
    curve_fraction: npt.NDArray[np.float64]
    """(P,) capacity of a feature cache as a share of all rows: the x axis of the curves."""
    curve_plan: npt.NDArray[np.float64]
    """(P,) hit rate of a feature cache of that size under the plan's ranking, on the held-out counts."""
    curve_oracle: npt.NDArray[np.float64]
    """(P,) the same under the static oracle's ranking."""
    device_budget: int
    """Bytes that were to be spent at most."""
    feature_bytes: int
    """Bytes of the cached feature rows."""
    adjacency_bytes: int
    """Bytes of the cached adjacency lists and their offsets."""
    map_bytes: int
    """Bytes of the rank maps of the kinds that are cached."""
    predicted_feature_hit_rate: float
    """Share of the held-out feature requests that the cached rows serve."""
    predicted_adjacency_hit_rate: float
    """Share of the held-out adjacency requests that the cached lists serve."""
    oracle_feature_hit_rate: float
    """The best that `feature_bytes` could serve of the held-out requests: the static oracle."""
    oracle_adjacency_hit_rate: float
    """What `adjacency_bytes` would serve of them if the held-out counts had chosen by the same rule."""

    @property
    def total_bytes(self) -> int:
        """Bytes on the device, maps included; never above `device_budget`."""
        return self.feature_bytes + self.adjacency_bytes + self.map_bytes


@dataclass(frozen=True, slots=True)
class _Items:
    """Candidates of one kind, ids ascending."""

    ids: Int64Array
    value: Int64Array
    size: Int64Array
    fixed_bytes: int
    """Bytes that the kind costs as soon as one item is taken."""


def build_plan(
    profile: AccessProfile,
    in_degree_N: npt.NDArray[np.integer],
    *,
    row_bytes: int,
    id_bytes: int,
    device_budget: int,
    counting: Counting,
    max_fanout: int,
    line_bytes: int = LINE_BYTES,
) -> CachePlan:
    """Split one byte budget between feature rows and adjacency lists (GARDEN §IV-B, offline part).

    Both kinds compete by value density: the bytes that their hits keep from crossing over the
    bytes they hold. Bytes cross in whole lines: a feature hit keeps a row's lines, an adjacency
    hit the line of the offsets and one line an id drawn, at most the lines of the list. Rank maps
    are paid first; a kind whose map does not pay is left out, so the plan is the best of both
    kinds, either one and none. A node that the profile never saw is never cached, so part of a
    large budget may stay spare. Under `full_link` counting features rank by Eq. 4,
    scaled to the sum of the real accesses so that both kinds keep one unit.

    Parameters
    ----------
    profile
        Counts that choose, and held-out counts that predict.
    in_degree_N : (N,) integer
        Length of each adjacency list.
    row_bytes, id_bytes
        Bytes of a feature row and of a stored neighbor id.
    device_budget
        Bytes for rows, lists, offsets and maps together; any size from 0.
    counting
        Counting rule of the features.
    max_fanout
        Largest fanout of the sampler; -1 if a hop takes all neighbors, 0 without hops.
    line_bytes
        Least bytes that one read of the tier below moves.

    Returns
    -------
    CachePlan
        Deterministic: equal densities go to features first, then to the lower id.

    Raises
    ------
    ValueError
        If a size is out of range or the degrees do not match the profile.

    Notes
    -----
    All comparisons are between exact integers. More budget never lowers the value of the plan on
    the counts that chose it. The oracle is given the bytes that the plan gives to each kind.
    """
    _check_arguments(profile, in_degree_N, (row_bytes, id_bytes, line_bytes), device_budget, max_fanout)
    feature_count_N = profile.feature_counts(counting)
    scale = _scale(int(profile.feature_count_N.sum()), int(feature_count_N.sum()))
    rows_bytes_N = np.full(len(in_degree_N), row_bytes, np.int64)
    list_bytes_N = OFFSET_BYTES + in_degree_N.astype(np.int64) * id_bytes
    crossing_N = _list_crossing_bytes(in_degree_N.astype(np.int64), id_bytes, max_fanout, line_bytes)
    features = _items(feature_count_N * scale.numerator * _lines(row_bytes, line_bytes), rows_bytes_N)
    adjacency = _items(profile.adjacency_count_N * scale.denominator * crossing_N, list_bytes_N, OFFSET_BYTES)
    feature_ids, adjacency_ids = _choose(features, adjacency, device_budget)
    feature_bytes, lists_bytes = len(feature_ids) * row_bytes, int(list_bytes_N[adjacency_ids].sum())
    heldout_f_N, heldout_a_N = profile.heldout_feature_count_N, profile.heldout_adjacency_count_N
    num_kinds = (len(feature_ids) > 0) + (len(adjacency_ids) > 0)
    return CachePlan(
        feature_ids=feature_ids,
        adjacency_ids=adjacency_ids,
        curve_fraction=np.array(CURVE_FRACTION),
        curve_plan=_curve(feature_count_N, heldout_f_N),
        curve_oracle=_curve(heldout_f_N, heldout_f_N),
        device_budget=device_budget,
        feature_bytes=feature_bytes,
        adjacency_bytes=lists_bytes + OFFSET_BYTES * (len(adjacency_ids) > 0),
        map_bytes=num_kinds * RankMap.nbytes_for(len(in_degree_N)),
        predicted_feature_hit_rate=_share(heldout_f_N[feature_ids].sum(), heldout_f_N),
        predicted_adjacency_hit_rate=_share(heldout_a_N[adjacency_ids].sum(), heldout_a_N),
        oracle_feature_hit_rate=_hindsight(heldout_f_N, heldout_f_N, rows_bytes_N, feature_bytes),
        oracle_adjacency_hit_rate=_hindsight(heldout_a_N * crossing_N, heldout_a_N, list_bytes_N, lists_bytes),
    )


def largest_fanout(fanouts: Sequence[int]) -> int:
    """Return the `max_fanout` of a sampler: -1 if any hop takes all neighbors, 0 without hops."""
    return -1 if -1 in fanouts else max(fanouts, default=0)


def _check_arguments(
    profile: AccessProfile,
    in_degree_N: npt.NDArray[np.integer],
    sizes: tuple[int, int, int],
    device_budget: int,
    max_fanout: int,
) -> None:
    if len(in_degree_N) != len(profile.feature_count_N):
        raise InputError(
            f"the profile counts {len(profile.feature_count_N)} nodes, the graph has {len(in_degree_N)}: "
            "it is another graph's, make one of this graph"
        )
    if min(sizes) < 1:
        raise ValueError("row_bytes, id_bytes and line_bytes must be >= 1 (got {}, {} and {})".format(*sizes))
    if device_budget < 0:
        raise ValueError(f"device_budget must be >= 0 (got {device_budget})")
    if max_fanout < -1:
        raise ValueError(f"max_fanout must be >= 0, or -1 for all neighbors (got {max_fanout})")


def _scale(num_accesses: int, counted: int) -> Fraction:
    """Factor from counts to accesses, short enough to multiply counts by its terms."""
    return Fraction(num_accesses, counted).limit_denominator(1000) if counted else Fraction(1)


def _lines(size: int, line_bytes: int) -> int:
    """Bytes of the whole lines that `size` bytes fill."""
    return -(-size // line_bytes) * line_bytes


def _list_crossing_bytes(
    in_degree_N: Int64Array, id_bytes: int, max_fanout: int, line_bytes: int
) -> npt.NDArray[np.int64]:
    """Bytes that one sampling of each list moves; nothing is read of an empty list."""
    whole_N = -(-in_degree_N * id_bytes // line_bytes) * line_bytes
    if max_fanout >= 0:
        whole_N = np.minimum(whole_N, np.minimum(in_degree_N, max_fanout) * _lines(id_bytes, line_bytes))
    return np.where(whole_N > 0, whole_N + _lines(OFFSET_BYTES, line_bytes), 0)


def _items(value_N: Int64Array, size_N: Int64Array, fixed_bytes: int = 0) -> _Items:
    """Candidates of one kind: whatever has a value. A value is bytes read, times a small scale: far below 2**63."""
    ids = np.flatnonzero(value_N)
    return _Items(ids, value_N[ids], size_N[ids], fixed_bytes + RankMap.nbytes_for(len(value_N)))


def _choose(features: _Items, adjacency: _Items, budget_bytes: int) -> tuple[Int64Array, Int64Array]:
    """Ids to cache of each kind: the best of both kinds, features only, lists only and nothing."""
    value = np.concatenate([features.value, adjacency.value])
    size = np.concatenate([features.size, adjacency.size])
    is_list = np.arange(len(value)) >= len(features.ids)
    order = density_order(value, size)
    best, best_value = np.empty(0, np.int64), 0
    for kinds in ((features, adjacency), (features,), (adjacency,)):
        room_bytes = budget_bytes - sum(kind.fixed_bytes for kind in kinds)
        allowed = order if len(kinds) == 2 else order[is_list[order] == (kinds[0] is adjacency)]
        taken = allowed[fill(size[allowed], room_bytes)]
        if (taken_value := int(value[taken].sum())) > best_value:
            best, best_value = taken, taken_value
    best = np.sort(best)
    num_features = int(np.searchsorted(best, len(features.ids)))
    return features.ids[best[:num_features]], adjacency.ids[best[num_features:] - len(features.ids)]


def _share(hits: float, count_N: Int64Array) -> float:
    total = int(count_N.sum())
    return float(hits) / total if total else 0.0


def _hindsight(value_N: Int64Array, heldout_N: Int64Array, size_N: Int64Array, budget_bytes: int) -> float:
    """Hit rate on the held-out counts of the choice that those counts themselves would make."""
    order = density_order(value_N, size_N)
    order = order[value_N[order] > 0]
    return _share(heldout_N[order[fill(size_N[order], budget_bytes)]].sum(), heldout_N)


def _curve(rank_count_N: Int64Array, count_N: Int64Array) -> npt.NDArray[np.float64]:
    """Hit rate on `count_N` at each of `CURVE_FRACTION` when rows are taken by `rank_count_N`, never one of count 0."""
    ranked = np.argsort(-rank_count_N, kind="stable")[: np.count_nonzero(rank_count_N)]
    hits = np.concatenate([[0], np.cumsum(count_N[ranked])])
    return _shares_at(hits, [round(fraction * len(count_N)) for fraction in CURVE_FRACTION], int(count_N.sum()))


def _shares_at(hits: Int64Array, num_rows: Sequence[int], total: int) -> npt.NDArray[np.float64]:
    return hits[np.minimum(num_rows, len(hits) - 1)] / max(total, 1)
