"""One byte budget split three ways: rows, lists and a dynamic cache, which gets a share where a trace shows drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels.cpu.greedy import Candidates, tally
from storage.cache.hotset import DynamicLayout, DynamicOptions
from storage.cache.laboratory import requests_of, run_dynamic, serve_both
from storage.cache.plan import CachePlan
from storage.cache.policies import PolicyCase, plan_for
from storage.cache.trace import AccessTrace

SHARES, GAMMAS, INTERVALS = (0.25, 0.5, 0.75), (0.5, 0.8, 0.9, 0.99, 0.999), (1, 5, 20)
"""What is tried."""
LEAST_GAIN = 0.005
"""Share of the cost of all misses that a dynamic cache must avoid beyond the static split, to be kept."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """How a budget is split, and what other splits would have avoided where it was chosen."""

    options: DynamicOptions
    """Share, decay and interval of the dynamic cache; share 0: none."""
    saved_by_share: Mapping[float, float]
    """Share of the cost of all misses that the best settings of each dynamic share avoid, its swaps paid; 0 too."""


def allocate(
    case: PolicyCase,
    budget_bytes: int,
    trace: AccessTrace,
    *,
    shares: Sequence[float] = SHARES,
    gammas: Sequence[float] = GAMMAS,
    intervals: Sequence[int] = INTERVALS,
) -> Allocation:
    """Choose how much of a budget a dynamic cache gets, from what the three kinds avoid of the cost of misses.

    For each share the rest of the bytes is planned as ever: rows and lists by density of avoided cost, on the profile's
    counts. The first half of the trace warms the dynamic cache up, the second judges: hits on rows and lists avoid
    their costs, each row that an update brings in costs a miss. Where seeds do not drift, no share gains: none is kept.

    Parameters
    ----------
    case : PolicyCase
        Profile, graph and costs.
    budget_bytes : int
    trace : AccessTrace
        The first part of what will be run; what it is judged by afterwards must not be among it.
    shares, gammas, intervals
        What to try.

    Returns
    -------
    Allocation
        Of equal ones the smaller share.
    """
    half = trace.num_batches // 2
    requests = requests_of(case, trace.part(half, trace.num_batches))
    tried = list[tuple[float, DynamicOptions]]()
    for share in (0.0, *shares):
        split = Split.of(case, budget_bytes, share, requests)
        settings = [DynamicOptions(share, gamma, interval) for gamma in gammas for interval in intervals]
        tried += [(split.avoided(options, trace, half), options) for options in settings if share]
        tried += [] if share else [(split.static_saved, DynamicOptions())]
    saved_by_share: dict[float, float] = {}
    for saved, options in tried:
        saved_by_share[options.share] = max(saved, saved_by_share.get(options.share, saved))
    saved, options = max(tried, key=lambda one: (one[0], -one[1].share))
    is_kept = saved >= saved_by_share[0.0] + LEAST_GAIN
    return Allocation(options if is_kept else DynamicOptions(), saved_by_share)


@dataclass(frozen=True, slots=True)
class Split:
    """A budget split three ways, and what its static part avoids of some requests."""

    plan: CachePlan
    """Rows, lists, and the rows of the dynamic cache."""
    layout: DynamicLayout
    """Of the dynamic cache."""
    static_saved: float
    """Share of the cost of all misses that rows and lists avoid."""
    row_share: float
    """That of one missed row."""

    @classmethod
    def of(cls, case: PolicyCase, budget_bytes: int, share: float, requests: Candidates) -> Split:
        """Plan rows and lists beside a dynamic cache of a share of the bytes; `requests_of` a trace judge them."""
        plan = plan_for(case, case.profile, budget_bytes, "smoothed", DynamicOptions(share))
        nothing_N = requests.in_degree_N < 0
        total = tally(requests, nothing_N, nothing_N)[5]
        return cls(
            plan,
            DynamicLayout(plan.dynamic_rows, case.row_bytes, case.topology.num_nodes),
            serve_both(requests, plan.feature_ids, plan.adjacency_ids).saved,
            case.rules.row_worth / max(1.0, total),
        )

    def avoided(self, options: DynamicOptions, trace: AccessTrace, first_counted: int) -> float:
        """Share of the cost of all misses that all three avoid of a trace from one mini-batch on, swaps paid."""
        if not self.layout.rows:
            return self.static_saved
        served = run_dynamic(self.plan.feature_ids, self.layout, options, trace, first_counted)
        return self.static_saved + self.row_share * (served.dynamic_hits - served.moved_rows)
