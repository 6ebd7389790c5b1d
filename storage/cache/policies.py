"""The policy table: every published way to choose what a cache holds, each a small function with its source.

Static policies rank feature rows once; dual ones split the bytes between rows and adjacency lists; replacement policies
change what they hold at every miss. All are compared at equal bytes, those of maps and lists included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kernels.cpu.eviction import ClockCache, LruCache, SieveCache
from kernels.cpu.frequency import LfuCache, S3FifoCache
from kernels.cpu.greedy import Candidates, Rules, tally
from kernels.cpu.top import top_ids
from kernels.mfg import IdArray
from kernels.rank_map import RankMap
from kernels.rng import Purpose, stream_key, uniform_u64
from kernels.topology import Topology
from storage.cache.costs import LINE_BYTES, MissCosts, whole_lines
from storage.cache.greedy import LISTS, greedy
from storage.cache.hotset import DynamicOptions
from storage.cache.inclusion import expected_accesses
from storage.cache.plan import CachePlan, build_plan, largest_fanout
from storage.cache.plan_choices import OFFSET_BYTES
from storage.cache.profile import AccessProfile, Counting

Score = npt.NDArray[np.integer] | npt.NDArray[np.float64]
REPLACEMENT_ROW_BYTES = 24
"""Bytes that a replacement policy needs a row it holds: an entry of a half-full hash table, and two links of a list."""


@dataclass(frozen=True, slots=True)
class PolicyCase:
    """All that a policy may look at when it chooses."""

    profile: AccessProfile
    """Counts of as many epochs as the policy is to see."""
    topology: Topology
    """The graph, of which the policy sees everything."""
    train_nodes: IdArray
    """Training nodes."""
    batch_size: int
    """Seeds a mini-batch."""
    fanouts: tuple[int, ...]
    """Neighbors a node, from the input layer to the seed layer."""
    row_bytes: int
    """Bytes of a feature row."""
    replace: bool = False
    """Whether neighbors are drawn with replacement."""
    seed: int = 0
    """Of the random choice."""

    @property
    def out_degree_N(self) -> npt.NDArray[np.int64]:
        """(N,) how many lists name each node."""
        return np.bincount(self.topology.indices, minlength=self.topology.num_nodes)

    @property
    def rules(self) -> Rules:
        """What misses cost in bytes that cross, and what is held takes."""
        costs = MissCosts.of_bytes(self.row_bytes)
        sizes = (self.row_bytes, self.topology.indices.itemsize, OFFSET_BYTES)
        worth = (costs.row, costs.adjacency, costs.adjacency_byte)
        return Rules(*sizes, *worth, largest_fanout(self.fanouts), LINE_BYTES)


def random_choice(case: PolicyCase) -> Score:
    """Any rows: the floor below every policy."""
    key = stream_key(Purpose.POLICY, case.seed)
    return (uniform_u64(key, np.arange(case.topology.num_nodes)) >> np.uint64(1)).astype(np.int64) | 1


def out_degree(case: PolicyCase) -> Score:
    """Rows that most lists name (PaGraph, Lin et al., SoCC 2020)."""
    return case.out_degree_N


def in_degree(case: PolicyCase) -> Score:
    """Rows of nodes with the longest lists."""
    return case.topology.in_degree()


def train_neighborhood(case: PolicyCase) -> Score:
    """Training nodes and their neighbors first, by degree, then all others by degree (GNNLab's heuristic)."""
    degree_N, near_N = case.out_degree_N, np.zeros(case.topology.num_nodes, np.bool_)
    near_N[case.train_nodes] = True
    topology = case.topology
    is_near_list_E = np.repeat(near_N, topology.in_degree())
    near_N[topology.indices[is_near_list_E]] = True
    return degree_N + 1 + near_N * (int(degree_N.max(initial=0)) + 1)


def presampled(case: PolicyCase) -> Score:
    """Rows that sampled epochs read most often (PreSC, Yang et al., GNNLab, EuroSys 2022)."""
    return case.profile.feature_count_N


def full_link(case: PolicyCase) -> Score:
    """Rows of nodes that most hops have as source, destination or input (GARDEN Eq. 4, weights of 1)."""
    return case.profile.full_link_count_N


def smoothed(case: PolicyCase) -> Score:
    """Sampled counts drawn toward the inclusion probabilities; our default."""
    return case.profile.smoothed_feature_N


def inclusion(case: PolicyCase) -> Score:
    """Rows by analytic inclusion probability, without a sample (Quiver, Tan et al. 2023)."""
    expected = expected_accesses(case.topology, case.train_nodes, case.fanouts, case.batch_size, replace=case.replace)
    return expected[0].astype(np.float64)


def static_oracle(case: PolicyCase) -> Score:
    """Rows by the mean counts of the held-out epochs: the best that any fixed choice can expect."""
    return case.profile.heldout_feature_count_N


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """Ranks feature rows once."""

    rank: Callable[[PolicyCase], Score]
    """Score of each node: the highest are cached, ties to the lower id, zero never."""
    source: str
    """Where it is from."""
    epochs: int | None = None
    """Profile epochs that it is given; None: all there are, and it may not look at any."""


STATIC_POLICIES: dict[str, StaticPolicy] = {
    "random": StaticPolicy(random_choice, "none"),
    "out_degree": StaticPolicy(out_degree, "PaGraph, SoCC 2020"),
    "in_degree": StaticPolicy(in_degree, "none"),
    "train_neighborhood": StaticPolicy(train_neighborhood, "GNNLab's heuristic, EuroSys 2022"),
    "presc_1": StaticPolicy(presampled, "GNNLab (PreSC#1), EuroSys 2022", epochs=1),
    "presc": StaticPolicy(presampled, "GNNLab (PreSC#E), EuroSys 2022"),
    "full_link": StaticPolicy(full_link, "GARDEN Eq. 4, 2026"),
    "inclusion": StaticPolicy(inclusion, "Quiver, 2023"),
    "smoothed": StaticPolicy(smoothed, "here: PreSC#E drawn toward Quiver's probabilities"),
    "static_oracle": StaticPolicy(static_oracle, "bound: held-out epochs"),
}
"""Policies that fill a feature cache once."""


def rows_for(budget_bytes: int, row_bytes: int, num_nodes: int) -> int:
    """Rows that a static feature cache of so many bytes holds, its rank map included."""
    return min(num_nodes, max(0, budget_bytes - RankMap.nbytes_for(num_nodes)) // row_bytes)


def chosen_rows(policy: StaticPolicy, case: PolicyCase, budget_bytes: int) -> npt.NDArray[np.int64]:
    """Ids of the rows that a static policy caches, ascending."""
    return top_ids(policy.rank(case), rows_for(budget_bytes, case.row_bytes, case.topology.num_nodes))


def plan_for(
    case: PolicyCase,
    profile: AccessProfile,
    budget_bytes: int,
    counting: Counting,
    dynamic: DynamicOptions | None = None,
) -> CachePlan:
    """Plan as the cache stage does, on counts of any profile of the case's graph."""
    return build_plan(
        profile,
        case.topology.in_degree(),
        row_bytes=case.row_bytes,
        id_bytes=case.topology.indices.itemsize,
        device_budget=budget_bytes,
        counting=counting,
        max_fanout=largest_fanout(case.fanouts),
        dynamic=dynamic,
    )


Choice = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Ids of feature rows and of adjacency lists, both ascending."""


def garden_plan(case: PolicyCase, budget_bytes: int) -> Choice:
    """Our plan: both kinds compete by value density on smoothed counts."""
    plan = plan_for(case, case.profile, budget_bytes, "smoothed")
    return plan.feature_ids, plan.adjacency_ids


def full_link_plan(case: PolicyCase, budget_bytes: int) -> Choice:
    """The same competition on full-link counts (GARDEN §IV-B)."""
    plan = plan_for(case, case.profile, budget_bytes, "full_link")
    return plan.feature_ids, plan.adjacency_ids


def oracle_plan(case: PolicyCase, budget_bytes: int) -> Choice:
    """The same competition on the held-out counts."""
    heldout = replace(
        case.profile,
        feature_count_N=case.profile.heldout_feature_count_N,
        adjacency_count_N=case.profile.heldout_adjacency_count_N,
    )
    plan = plan_for(case, heldout, budget_bytes, "input")
    return plan.feature_ids, plan.adjacency_ids


def ducati_split(case: PolicyCase, budget_bytes: int) -> Choice:
    """Each kind by its own count over size, the split where both together keep most bytes (DUCATI, SIGMOD 2023).

    DUCATI fits benefit curves and walks along them; here all hundredths of the budget are tried, which finds its
    optimum exactly. A hit of either kind is worth the mean bytes that one access of its kind moves.
    """
    num_nodes, map_bytes = case.topology.num_nodes, RankMap.nbytes_for(case.topology.num_nodes)
    size_N = OFFSET_BYTES + case.topology.in_degree() * case.topology.indices.itemsize
    counts = case.profile.feature_count_N, case.profile.adjacency_count_N
    list_value = mean_list_bytes(case, counts[1])
    feature_order = np.argsort(-counts[0], kind="stable")
    list_order = np.argsort(-(counts[1] / size_N), kind="stable")
    feature_gain = np.concatenate([[0], np.cumsum(counts[0][feature_order])]) * whole_lines(case.row_bytes)
    list_gain = np.concatenate([[0], np.cumsum(counts[1][list_order])]) * list_value
    list_bytes = np.concatenate([[0], np.cumsum(size_N[list_order])])
    best = (-1.0, 0, 0)
    for percent in range(101):
        room = (budget_bytes - map_bytes - OFFSET_BYTES) * percent // 100 if percent else 0
        rest = budget_bytes - (room + map_bytes + OFFSET_BYTES if percent else 0)
        num_lists = max(0, int(np.searchsorted(list_bytes, room, side="right")) - 1) if room > 0 else 0
        num_rows = rows_for(rest, case.row_bytes, num_nodes)
        best = max(best, (float(feature_gain[num_rows] + list_gain[num_lists]), num_rows, num_lists))
    return np.sort(feature_order[: best[1]]), np.sort(list_order[: best[2]])


def lists_within(case: PolicyCase, budget_bytes: int, list_share: float) -> Choice:
    """The best rows and lists by smoothed counts when a fixed share of the bytes goes to lists, the rest to rows."""
    degree_N, num_nodes = case.topology.in_degree(), case.topology.num_nodes
    row_count_N, list_count_N = case.profile.counts("smoothed")
    list_bytes = round(list_share * budget_bytes)
    of_lists = Candidates(row_count_N, list_count_N, degree_N, case.rules)
    lists = greedy(of_lists, LISTS, list_bytes - RankMap.nbytes_for(num_nodes) - OFFSET_BYTES).lists_N
    rows = top_ids(row_count_N, rows_for(budget_bytes - list_bytes, case.row_bytes, num_nodes))
    return rows, np.flatnonzero(lists)


def mean_list_bytes(case: PolicyCase, adjacency_count_N: npt.NDArray[np.integer]) -> float:
    """Bytes that one read of a list moves in the mean."""
    degree_N, none_N = case.topology.in_degree(), np.zeros(case.topology.num_nodes, np.bool_)
    of_lists = Candidates(np.zeros_like(degree_N), adjacency_count_N, degree_N, case.rules)
    *_, lists, _, moved = tally(of_lists, none_N, none_N)
    return float(moved) / max(1, lists)


@dataclass(frozen=True, slots=True)
class DualPolicy:
    """Splits bytes between rows and lists."""

    choose: Callable[[PolicyCase, int], Choice]
    """Ids of both kinds for a budget in bytes."""
    source: str
    """Where it is from."""


DUAL_POLICIES: dict[str, DualPolicy] = {
    "ducati": DualPolicy(ducati_split, "DUCATI, SIGMOD 2023"),
    "full_link_plan": DualPolicy(full_link_plan, "GARDEN §IV-B, 2026"),
    "garden_plan": DualPolicy(garden_plan, "here"),
    "oracle_plan": DualPolicy(oracle_plan, "bound: held-out epochs"),
}
"""Policies that fill an adjacency and a feature cache."""


class Replacement(Protocol):
    """A policy that decides at every access."""

    def access(self, nodes: IdArray) -> int:
        """Access nodes in order; returns the hits."""


@dataclass(frozen=True, slots=True)
class ReplacementPolicy:
    """Changes what it holds at every miss."""

    make: Callable[[int, int], Replacement]
    """From the numbers of nodes and of rows held."""
    source: str
    """Where it is from."""


REPLACEMENT_POLICIES: dict[str, ReplacementPolicy] = {
    "lru": ReplacementPolicy(LruCache, "least recently used"),
    "lfu": ReplacementPolicy(LfuCache, "least frequently used, constant time (Shah et al. 2010)"),
    "clock": ReplacementPolicy(ClockCache, "CLOCK, Corbató 1968"),
    "sieve": ReplacementPolicy(SieveCache, "SIEVE, NSDI 2024"),
    "s3_fifo": ReplacementPolicy(S3FifoCache, "S3-FIFO, SOSP 2023"),
}
"""Policies that admit every row they miss."""


def replacement_rows(budget_bytes: int, row_bytes: int, num_nodes: int) -> int:
    """Rows that a replacement policy of so many bytes holds."""
    return min(num_nodes, max(0, budget_bytes) // (row_bytes + REPLACEMENT_ROW_BYTES))
