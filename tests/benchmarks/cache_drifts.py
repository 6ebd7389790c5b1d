"""Workloads that drift: how far a dynamic cache gets from the static oracle of the first fifth to Belady."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from storage.cache.allocation import Split, allocate
from storage.cache.laboratory import belady, requests_of, run_dynamic, run_replacement, serve_rows
from storage.cache.plan_choices import OFFSET_BYTES
from storage.cache.policies import REPLACEMENT_POLICIES, PolicyCase, rows_for
from storage.cache.pre_sampling import profile_accesses
from storage.cache.trace import AccessTrace, TraceFile, record_trace
from tests.benchmarks import cache_workloads as fixed
from tests.benchmarks.cache_workloads import DriftWorkload
from tests.cache_tuning import static_part, tune_dynamic

_THREADS, _SPLIT_BUDGET = 2, 0.1


def drift_figures(workload: DriftWorkload, folder: Path) -> dict[str, Any]:
    """The static oracle of the first fifth, both caches, and Belady, on the rest of a workload that drifts."""
    record_trace(folder / "trace.h5", workload.segments, fixed.FANOUTS, seed=0, threads=_THREADS)
    with TraceFile(folder / "trace.h5") as file:
        trace = file.read()
    figures = {str(share): _at_budget(workload.row_bytes, trace, share) for share in fixed.DRIFT_BUDGETS}
    return figures | {"three_way": three_way(_shuffled_case(workload), trace)}


def _at_budget(row_bytes: int, trace: AccessTrace, share: float) -> dict[str, Any]:
    """Rows alone, at a share of their bytes."""
    cut, budget = round(fixed.FIRST_FIFTH * trace.num_batches), int(share * trace.num_nodes * row_bytes)
    first, rest = trace.part(0, cut), trace.part(cut, trace.num_batches)
    options, score_N = tune_dynamic(budget, row_bytes, first).options, first.feature_counts()
    static = serve_rows(rest, static_part(score_N, budget, row_bytes, 0.0)[0])
    both = static
    if options.share:
        ids, layout = static_part(score_N, budget, row_bytes, options.share)
        both = run_dynamic(ids, layout, options, trace, cut).feature_hit_rate
    best = float(belady(rest, rows_for(budget, row_bytes, trace.num_nodes)).sum()) / len(rest.nodes)
    return {
        "static_oracle_of_first_fifth": round(static, 5),
        "static_and_dynamic": round(both, 5),
        "belady": round(best, 5),
        "share_of_belady_gap": round((both - static) / (best - static), 4),
        "chosen": {"share": options.share, "gamma": options.gamma, "interval_batches": options.interval_batches},
        **{
            name: round(run_replacement(name, row_bytes, budget, trace, cut).feature_hit_rate, 5)
            for name in REPLACEMENT_POLICIES
        },
    }


def _shuffled_case(workload: DriftWorkload) -> PolicyCase:
    """What a profile of the first graph sees, whose seeds come in no order."""
    first = workload.segments[0]
    train = np.unique(np.concatenate([batch for segment in workload.segments for batch in segment.batches]))
    batch_size = len(first.batches[0])
    sizes: dict[str, Any] = {"batch_size": batch_size, "superbatch": 4, "epochs": fixed.PROFILE_EPOCHS}
    sizes |= {"heldout_epochs": 1, "replace": False, "threads": _THREADS}
    profile = profile_accesses(first.topology, train, fixed.FANOUTS, seed=0, **sizes)
    return PolicyCase(profile, first.topology, train, batch_size, fixed.FANOUTS, workload.row_bytes)


def three_way(case: PolicyCase, trace: AccessTrace) -> dict[str, Any]:
    """The split of a tenth of all bytes between rows, lists and a dynamic cache, chosen on the first fifth."""
    cut = round(fixed.FIRST_FIFTH * trace.num_batches)
    data_bytes = trace.num_nodes * (case.row_bytes + OFFSET_BYTES) + case.topology.indices.nbytes
    budget = int(_SPLIT_BUDGET * data_bytes)
    chosen = allocate(case, budget, trace.part(0, cut))
    options, requests = chosen.options, requests_of(case, trace.part(cut, trace.num_batches))
    static = Split.of(case, budget, 0.0, requests).static_saved
    both = Split.of(case, budget, options.share, requests).avoided(options, trace, cut) if options.share else static
    return {
        "chosen": {"share": options.share, "gamma": options.gamma, "interval_batches": options.interval_batches},
        "first_fifth": {f"{share:g}": round(saved, 5) for share, saved in chosen.saved_by_share.items()},
        "rest_static": round(static, 5),
        "rest_with_dynamic": round(both, 5),
    }
