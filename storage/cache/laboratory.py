"""The laboratory: any policy, at any budget, on a recorded trace; hit rates that are exact on any machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.cpu.greedy import Candidates, tally
from kernels.cpu.hotness import score_replay
from kernels.cpu.replay import belady_hits, previous_batch_hits, space_time_bound, static_hits
from kernels.cpu.top import top_ids
from storage.cache.hotset import DynamicLayout, DynamicOptions, HotSet
from storage.cache.plan_choices import OFFSET_BYTES
from storage.cache.policies import (
    DUAL_POLICIES,
    REPLACEMENT_POLICIES,
    STATIC_POLICIES,
    PolicyCase,
    chosen_rows,
    presampled,
    replacement_rows,
    rows_for,
)
from storage.cache.trace import AccessTrace

BoolArray = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy served of a trace, or of the part of it that counts."""

    feature_hit_rate: float
    """Share of the requests for rows."""
    adjacency_hit_rate: float = 0.0
    """Share of the reads of lists; 0 where none are cached."""
    saved: float = 0.0
    """Share of the bytes of all misses, of rows and lists, that did not cross."""


@dataclass(frozen=True, slots=True)
class DynamicOutcome:
    """What a static and a dynamic cache together served."""

    feature_hit_rate: float
    """Of both."""
    dynamic_hits: int
    """Requests that the dynamic one served."""
    hits_B: npt.NDArray[np.int64]
    """(B,) of both, for each mini-batch."""
    moved_rows: int
    """Rows that updates brought in while requests counted."""


def serve_rows(trace: AccessTrace, ids: Ids) -> float:
    """Share of the requests for rows that a fixed set serves."""
    return float(row_hits(trace, ids).sum()) / max(1, len(trace.nodes))


def row_hits(trace: AccessTrace, ids: Ids) -> npt.NDArray[np.int64]:
    """(B,) requests of each mini-batch that a fixed set serves."""
    hits_B = np.empty(trace.num_batches, np.int64)
    static_hits(trace.nodes, trace.batch_ptr, _mask(ids, trace.num_nodes), hits_B)
    return hits_B


def run_static(name: str, case: PolicyCase, budget_bytes: int, trace: AccessTrace) -> Outcome:
    """Fill a feature cache once, and count what it serves."""
    return Outcome(serve_rows(trace, chosen_rows(STATIC_POLICIES[name], case, budget_bytes)))


def run_dual(name: str, case: PolicyCase, budget_bytes: int, requests: Candidates) -> Outcome:
    """Fill a feature and an adjacency cache once, and count what they serve of `requests_of` a trace."""
    return serve_both(requests, *DUAL_POLICIES[name].choose(case, budget_bytes))


def requests_of(case: PolicyCase, trace: AccessTrace) -> Candidates:
    """What a trace asks for, and the bytes that each request moves."""
    return Candidates(trace.feature_counts(), trace.adjacency_counts(), case.topology.in_degree(), case.rules)


def serve_both(requests: Candidates, feature_ids: Ids, adjacency_ids: Ids) -> Outcome:
    """Count what a choice of rows and lists serves, and the bytes that it keeps from crossing."""
    masks = (_mask(ids, len(requests.in_degree_N)) for ids in (feature_ids, adjacency_ids))
    row_served, rows, list_served, lists, saved, total = tally(requests, *masks)
    return Outcome(row_served / max(1, rows), list_served / max(1, lists), saved / max(1.0, total))


def run_replacement(name: str, row_bytes: int, budget_bytes: int, trace: AccessTrace, first_counted: int) -> Outcome:
    """Let a replacement policy serve a trace; mini-batches before `first_counted` only warm it up."""
    rows = replacement_rows(budget_bytes, row_bytes, trace.num_nodes)
    cache = REPLACEMENT_POLICIES[name].make(trace.num_nodes, rows)
    cut = trace.batch_ptr[first_counted]
    cache.access(trace.nodes[:cut])
    return Outcome(cache.access(trace.nodes[cut:]) / max(1, len(trace.nodes) - int(cut)))


def run_fastgl(case: PolicyCase, budget_bytes: int, trace: AccessTrace) -> Outcome:
    """Serve by presampled rows and by those of the previous mini-batch (FastGL, ASPLOS 2024).

    The rows of the previous mini-batch stay where they were trained on, which takes bytes too: up to half of all.
    """
    rows, num_nodes = rows_for(budget_bytes, case.row_bytes, trace.num_nodes), trace.num_nodes
    kept_rows = min(rows // 2, int(np.diff(trace.batch_ptr).max(initial=0)))
    is_cached_N = _mask(top_ids(presampled(case), rows - kept_rows), num_nodes)
    hits_B = np.empty(trace.num_batches, np.int64)
    last_N = np.full(num_nodes, -1, np.int64)
    previous_batch_hits(trace.nodes, trace.batch_ptr, is_cached_N, kept_rows, last_N, hits_B)
    return Outcome(float(hits_B.sum()) / max(1, len(trace.nodes)))


def run_belady(row_bytes: int, budget_bytes: int, trace: AccessTrace) -> Outcome:
    """Serve as well as knowing the future allows (Belady 1966, with bypass, contents changing between mini-batches)."""
    hits_B = belady(trace, rows_for(budget_bytes, row_bytes, trace.num_nodes))
    return Outcome(float(hits_B.sum()) / max(1, len(trace.nodes)))


def belady(trace: AccessTrace, rows: int) -> npt.NDArray[np.int64]:
    """(B,) hits of the clairvoyant choice of so many rows; the first contents are free."""
    hits_B = np.empty(trace.num_batches, np.int64)
    belady_hits(trace.nodes, trace.batch_ptr, trace.num_nodes, rows, 0, hits_B)
    return hits_B


def list_bound(case: PolicyCase, budget_bytes: int, trace: AccessTrace) -> float:
    """Share of list reads that no choice of lists between mini-batches exceeds (an upper bound, not reached)."""
    size_N = OFFSET_BYTES + case.topology.in_degree() * case.topology.indices.itemsize
    served = space_time_bound(trace.nodes, trace.batch_ptr, trace.num_dst_BH, size_N, budget_bytes, 0)
    return float(served) / max(1, int(trace.num_dst_BH.sum()))


def run_dynamic(
    static_ids: Ids, layout: DynamicLayout, options: DynamicOptions, trace: AccessTrace, first_counted: int = 0
) -> DynamicOutcome:
    """Let a static and a dynamic cache serve a trace, updates taking effect before the next mini-batch.

    Parameters
    ----------
    static_ids : (C,) int64
        Rows of the static cache.
    layout, options
        Of the dynamic one; its interval must be given in mini-batches.
    trace : AccessTrace
    first_counted : int
        Mini-batches before it only warm the scores up.
    """
    if not options.interval_batches:
        raise ValueError("a replay has no epochs: give interval_batches >= 1")
    is_static_N, is_dynamic_N = _mask(static_ids, trace.num_nodes), np.zeros(trace.num_nodes, np.bool_)
    hot, held, moved, dynamic_hits = HotSet(np.zeros(trace.num_nodes), options.gamma), np.empty(0, np.int64), 0, 0
    hits_B = np.empty(trace.num_batches, np.int64)
    for b in range(trace.num_batches):
        static, dynamic = score_replay(trace.batch(b), is_static_N, is_dynamic_N, hot.score_N, hot.weight)
        hot.advance()
        hits_B[b] = static + dynamic
        dynamic_hits += dynamic if b >= first_counted else 0
        if layout.rows and (b + 1) % options.interval_batches == 0:
            swap = hot.propose(held, layout.rows, layout.rows + layout.spare_rows - len(held))
            is_dynamic_N[swap.outgoing], is_dynamic_N[swap.incoming] = False, True
            held = np.flatnonzero(is_dynamic_N)
            moved += len(swap.incoming) if b >= first_counted else 0
    requests = max(1, len(trace.nodes) - int(trace.batch_ptr[first_counted]))
    return DynamicOutcome(float(hits_B[first_counted:].sum()) / requests, dynamic_hits, hits_B, moved)


def _mask(ids: Ids, num_nodes: int) -> BoolArray:
    mask_N = np.zeros(num_nodes, np.bool_)
    mask_N[ids] = True
    return mask_N
