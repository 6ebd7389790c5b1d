"""Cache plans: which feature rows and adjacency lists the device budget holds, and the hit rates to expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from kernels.cpu.greedy import Candidates, Rules, list_bytes, tally
from kernels.cpu.top import top_sum
from kernels.rank_map import RankMap
from storage.cache.costs import LINE_BYTES, MissCosts
from storage.cache.files import ArrayRecord
from storage.cache.greedy import LISTS, greedy, sums_by_rank
from storage.cache.hotset import DynamicLayout, DynamicOptions
from storage.cache.plan_choices import OFFSET_BYTES, Choice, best_choice, choices_of, share_of
from storage.cache.profile import AccessProfile, CountArray, Counting, StoredProfile
from storage.cache.spare import fill_spare

Int64Array = npt.NDArray[np.int64]

_NODE_BYTES = 10  # while the plan is made: what is taken, and the window of a search
_ID_BYTES = 8
_FIXED_BYTES = 4 << 20

CURVE_FRACTION = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Shares of all feature rows at which the curves give the hit rate."""


@dataclass(frozen=True, slots=True, eq=False)
class CachePlan(ArrayRecord):
    """What the device tier holds, byte for byte, and what that is expected to serve."""

    KIND: ClassVar[str] = "cache plan"
    VERSION: ClassVar[int] = 2

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
    dynamic_bytes: int
    """Bytes of the dynamic cache, spare rows and maps included."""
    dynamic_rows: int
    """Rows that the dynamic cache holds at most."""
    dynamic_gamma: float
    """What is left of a score after one mini-batch."""
    dynamic_interval_batches: int
    """Mini-batches from one update to the next; 0 updates at the end of each epoch."""
    dynamic_epochs: int
    """Epochs after which updates stop."""
    predicted_feature_hit_rate: float
    """Share of the held-out feature requests that the cached rows serve."""
    predicted_adjacency_hit_rate: float
    """Share of the held-out adjacency requests that the cached lists serve."""
    oracle_feature_hit_rate: float
    """The best that `feature_bytes` could serve of the held-out requests: the static oracle."""
    oracle_adjacency_hit_rate: float
    """What `adjacency_bytes` would serve of them if the held-out counts had chosen by the same rule."""
    predicted_saved: float
    """Share of the cost of all held-out misses that the plan avoids."""
    rows_only_saved: float
    """The same, had all static bytes gone to feature rows."""
    lists_only_saved: float
    """The same, had they gone to adjacency lists."""

    @property
    def total_bytes(self) -> int:
        """Bytes on the device, maps included; never above `device_budget`."""
        return self.feature_bytes + self.adjacency_bytes + self.map_bytes + self.dynamic_bytes

    @property
    def dynamic_options(self) -> DynamicOptions:
        """How the dynamic cache is kept up."""
        return DynamicOptions(
            gamma=self.dynamic_gamma, interval_batches=self.dynamic_interval_batches, epochs=self.dynamic_epochs
        )


def build_plan(
    profile: AccessProfile | StoredProfile,
    in_degree_N: npt.NDArray[np.integer],
    *,
    row_bytes: int,
    id_bytes: int,
    device_budget: int,
    counting: Counting,
    max_fanout: int,
    line_bytes: int = LINE_BYTES,
    costs: MissCosts | None = None,
    dynamic: DynamicOptions | None = None,
    use_spare: bool = False,
) -> CachePlan:
    """Split one byte budget between feature rows, adjacency lists and a dynamic cache (GARDEN §IV-B).

    The dynamic cache takes its share first. Rows and lists compete for the rest by value density: the cost of the
    misses that they keep away over the bytes they hold. Without given costs a miss costs the bytes that cross, in whole
    lines: a feature hit keeps a row's lines, an adjacency hit the line of the offsets and one line an id drawn, at most
    the lines of the list. Rank maps are paid first; a kind whose map does not pay is left out, so the plan is the best
    of both kinds, either one and none. A node of which the counts expect nothing is never cached, so part of a large
    budget may stay spare. Under `full_link` counting features rank by Eq. 4, scaled to the sum of the real accesses so
    that both kinds keep one unit.

    Parameters
    ----------
    profile
        Counts that choose, and held-out counts that predict; of a stored one, some are in memory at a time.
    in_degree_N : (N,) integer
        Length of each adjacency list.
    row_bytes, id_bytes
        Bytes of a feature row, 0 where nodes have none, and of a stored neighbor id.
    device_budget
        Bytes for rows, lists, offsets, maps and the dynamic cache together; any size from 0.
    counting
        Counting rule.
    max_fanout
        Largest fanout of the sampler; -1 if a hop takes all neighbors, 0 without hops.
    line_bytes
        Least bytes that one read of the tier below moves, a power of two.
    costs
        What a miss costs; None: bytes that cross.
    dynamic
        Share and upkeep of the dynamic cache; None: there is none.
    use_spare
        Fill what is left with further rows, then lists, of the lowest ids: in degree order those most likely asked for.

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
    More budget never lowers the value of the plan on the counts that chose it. The oracle is given the bytes that the
    plan gives to each kind. Takes 10 bytes a node beside its arguments and the ids it returns; a stored profile takes
    two counts a node.
    """
    _check_arguments((row_bytes, id_bytes, line_bytes), device_budget, max_fanout)
    dynamic, degree_N = dynamic or DynamicOptions(), np.ascontiguousarray(in_degree_N)
    layout = DynamicLayout.within(int(dynamic.share * device_budget), row_bytes, len(degree_N))
    costs = costs or MissCosts.of_bytes(row_bytes, line_bytes)
    worth = (costs.row, costs.adjacency, costs.adjacency_byte)
    rules = Rules(row_bytes, id_bytes, OFFSET_BYTES, *worth, max_fanout, line_bytes)
    choices, feature_count_N = choices_of(profile, counting, degree_N, rules, device_budget - layout.nbytes)
    heldout = Candidates(*profile.heldout_counts(), degree_N, rules)
    curve_plan = _curve(feature_count_N, heldout.feature_count_N)
    del feature_count_N
    return CachePlan(
        **_held_and_predicted(heldout, choices, device_budget - layout.nbytes if use_spare else 0),
        curve_fraction=np.array(CURVE_FRACTION),
        curve_plan=curve_plan,
        curve_oracle=_curve(heldout.feature_count_N, heldout.feature_count_N),
        device_budget=device_budget,
        dynamic_bytes=layout.nbytes,
        dynamic_rows=layout.rows,
        dynamic_gamma=dynamic.gamma,
        dynamic_interval_batches=dynamic.interval_batches,
        dynamic_epochs=dynamic.epochs,
    )


def plan_bytes(num_nodes: int, device_budget: int, row_bytes: int) -> int:
    """Return the most bytes that `build_plan` takes beside its arguments, the ids it returns included."""
    rows = min(num_nodes, device_budget // row_bytes) if row_bytes else 0
    lists = min(num_nodes, device_budget // OFFSET_BYTES)
    return _NODE_BYTES * num_nodes + _ID_BYTES * (rows + lists) + _FIXED_BYTES


def largest_fanout(fanouts: Sequence[int]) -> int:
    """Return the `max_fanout` of a sampler: -1 if any hop takes all neighbors, 0 without hops."""
    return -1 if -1 in fanouts else max(fanouts, default=0)


def _check_arguments(sizes: tuple[int, int, int], device_budget: int, max_fanout: int) -> None:
    if sizes[0] < 0 or min(sizes[1:]) < 1:
        raise ValueError("row_bytes must be >= 0, id_bytes and line_bytes >= 1 (got {}, {} and {})".format(*sizes))
    if sizes[2] & (sizes[2] - 1):
        raise ValueError(f"line_bytes must be a power of two (got {sizes[2]})")
    if device_budget < 0:
        raise ValueError(f"device_budget must be >= 0 (got {device_budget})")
    if max_fanout < -1:
        raise ValueError(f"max_fanout must be >= 0, or -1 for all neighbors (got {max_fanout})")


def _held_and_predicted(heldout: Candidates, choices: Sequence[Choice], filled_bytes: int) -> dict[str, Any]:
    """Ids and bytes of the best choice; what it serves of the held-out requests, and the oracle with as many bytes."""
    taken, alone = best_choice(choices, heldout)
    fill_spare(taken, heldout, filled_bytes)
    feature_ids, adjacency_ids = np.flatnonzero(taken.rows_N), np.flatnonzero(taken.lists_N)
    lists_bytes, num_kinds = int(list_bytes(heldout, taken.lists_N)), (len(feature_ids) > 0) + (len(adjacency_ids) > 0)
    row_hits, rows, list_hits, lists, saved, total = tally(heldout, taken.rows_N, taken.lists_N)
    del taken  # before the oracle chooses: it needs as much
    oracle_lists = np.sum(heldout.adjacency_count_N, where=greedy(heldout, LISTS, lists_bytes).lists_N)
    return {
        "feature_ids": feature_ids,
        "adjacency_ids": adjacency_ids,
        "feature_bytes": len(feature_ids) * heldout.rules.row_bytes,
        "adjacency_bytes": lists_bytes + OFFSET_BYTES * (len(adjacency_ids) > 0),
        "map_bytes": num_kinds * RankMap.nbytes_for(len(heldout.in_degree_N)),
        "predicted_feature_hit_rate": share_of(row_hits, rows),
        "predicted_adjacency_hit_rate": share_of(list_hits, lists),
        "oracle_feature_hit_rate": share_of(top_sum(heldout.feature_count_N, len(feature_ids)), rows),
        "oracle_adjacency_hit_rate": share_of(int(oracle_lists), lists),
        "predicted_saved": share_of(saved, total),
        "rows_only_saved": alone[0],
        "lists_only_saved": alone[1],
    }


def _curve(rank_count_N: CountArray, count_N: CountArray) -> npt.NDArray[np.float64]:
    """Hit rate on `count_N` at each of `CURVE_FRACTION` when rows are taken by `rank_count_N`, never one of count 0."""
    num_rows = np.array([round(fraction * len(count_N)) for fraction in CURVE_FRACTION], np.int64)
    return sums_by_rank(rank_count_N, count_N, num_rows) / max(int(count_N.sum()), 1)
