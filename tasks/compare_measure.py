"""Measures cache policies on recorded traces: plain tables of figures, no orchestration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from kernels.topology import Topology
from storage.cache.allocation import Split, allocate
from storage.cache.drift import Segment
from storage.cache.laboratory import (
    list_bound,
    requests_of,
    run_belady,
    run_dual,
    run_fastgl,
    run_replacement,
    run_static,
    serve_both,
)
from storage.cache.plan_choices import OFFSET_BYTES
from storage.cache.policies import (
    DUAL_POLICIES,
    REPLACEMENT_POLICIES,
    STATIC_POLICIES,
    PolicyCase,
    lists_within,
)
from storage.cache.pre_sampling import profile_accesses
from storage.cache.profile import AccessProfile
from storage.cache.trace import AccessTrace, TraceFile, record_trace

OURS, ORACLE, OURS_DUAL, ORACLE_DUAL, BELADY = "smoothed", "static_oracle", "garden_plan", "oracle_plan", "belady"
FASTGL = "fastgl"
FIRST_FIFTH = 0.2
"""Part of a trace that the dynamic cache is chosen on; it is judged on the rest."""
SPLITS = tuple(round(0.05 * step, 2) for step in range(21))
POLICIES = (*STATIC_POLICIES, FASTGL, *REPLACEMENT_POLICIES, *DUAL_POLICIES, BELADY)
"""Names of everything that can be compared; the bounds are always measured."""


@dataclass(frozen=True, slots=True)
class Graph:
    """What is sampled, and how."""

    topology: Topology
    train_nodes: IdArray
    fanouts: tuple[int, ...]
    batch_size: int
    superbatch: int
    threads: int
    replace: bool
    row_bytes: int

    @property
    def data_bytes(self) -> int:
        """Bytes of all feature rows and adjacency lists, offsets included."""
        return self.topology.num_nodes * (self.row_bytes + OFFSET_BYTES) + self.topology.indices.nbytes

    def profile(self, seed: int, epochs: int, heldout_epochs: int = 0) -> AccessProfile:
        """Count accesses as the profile stage does."""
        return profile_accesses(
            self.topology,
            self.train_nodes,
            self.fanouts,
            batch_size=self.batch_size,
            superbatch=self.superbatch,
            seed=seed,
            epochs=epochs,
            heldout_epochs=heldout_epochs,
            replace=self.replace,
            threads=self.threads,
        )

    def case(self, seed: int, epochs: int, heldout: AccessProfile) -> PolicyCase:
        """What a policy may look at, after so many epochs; the bounds look at the held-out ones."""
        counts = {name: getattr(heldout, name) for name in ("heldout_feature_count_N", "heldout_adjacency_count_N")}
        profile = replace(self.profile(seed, epochs), **counts)
        nodes = (self.topology, self.train_nodes, self.batch_size, self.fanouts, self.row_bytes, self.replace)
        return PolicyCase(profile, *nodes, seed)

    def trace(
        self, folder: Path, batches: Sequence[IdArray], seed: int, progress: Callable[[int, int], None]
    ) -> AccessTrace:
        """Record what training asks for; the file that it goes through never stays in the folder."""
        sizes: dict[str, Any] = {"superbatch": self.superbatch, "threads": self.threads, "replace": self.replace}
        path = folder / "trace.h5"
        try:
            record_trace(path, [Segment(self.topology, batches)], self.fanouts, seed=seed, progress=progress, **sizes)
            with TraceFile(path) as file:
                return file.read()
        finally:
            path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One policy at one budget with one seed."""

    policy: str
    kind: str
    budget_bytes: int
    seed: int
    feature_hit_rate: float
    adjacency_hit_rate: float
    saved: float


def measure(
    cases: tuple[PolicyCase, PolicyCase], trace: AccessTrace, budgets: Sequence[int], names: Sequence[str]
) -> Iterator[Row]:
    """Run every policy at every budget on one trace.

    Parameters
    ----------
    cases
        What policies may look at: after all profile epochs, and after one.
    trace : AccessTrace
        Its first half warms replacement policies up and does not count for any.
    budgets
        Bytes; feature-only policies spend all of them on rows, as published.
    names
        Policies; the bounds are measured besides.

    Yields
    ------
    Row
    """
    case, once = cases
    warm = trace.num_batches // 2
    counted = trace.part(warm, trace.num_batches)
    requests = requests_of(case, counted)
    wanted = {*names, OURS, ORACLE, OURS_DUAL, ORACLE_DUAL}
    for budget in budgets:
        for name, policy in STATIC_POLICIES.items():
            if name in wanted:
                outcome = run_static(name, once if policy.epochs == 1 else case, budget, counted)
                yield Row(name, "static", budget, case.seed, outcome.feature_hit_rate, 0.0, 0.0)
        if FASTGL in wanted:
            rate = run_fastgl(once, budget, counted).feature_hit_rate
            yield Row(FASTGL, "static", budget, case.seed, rate, 0.0, 0.0)
        for name in REPLACEMENT_POLICIES:
            if name in wanted:
                rate = run_replacement(name, case.row_bytes, budget, trace, warm).feature_hit_rate
                yield Row(name, "replacement", budget, case.seed, rate, 0.0, 0.0)
        for name in DUAL_POLICIES:
            if name in wanted:
                both = run_dual(name, case, budget, requests)
                rates = (both.feature_hit_rate, both.adjacency_hit_rate, both.saved)
                yield Row(name, "dual", budget, case.seed, *rates)
        best = run_belady(case.row_bytes, budget, counted).feature_hit_rate
        bounds = (best, list_bound(case, budget, counted), 0.0)
        yield Row(BELADY, "bound", budget, case.seed, *bounds)


def splits(case: PolicyCase, budget: int, trace: AccessTrace) -> tuple[list[float], tuple[float, float]]:
    """Share of the bytes of all misses that each of `SPLITS` avoids; share for lists, and that avoided, of our plan."""
    requests = requests_of(case, trace)
    saved = [serve_both(requests, *lists_within(case, budget, share)).saved for share in SPLITS]
    rows, lists = DUAL_POLICIES[OURS_DUAL].choose(case, budget)
    degree_N = case.topology.in_degree()
    list_bytes = int((OFFSET_BYTES + degree_N[lists] * case.topology.indices.itemsize).sum())
    return saved, (list_bytes / max(1, budget), serve_both(requests, rows, lists).saved)


def by_profile_epochs(
    graph: Graph, epochs: Sequence[int], heldout: AccessProfile, budget: int, trace: AccessTrace, seed: int
) -> dict[str, list[float]]:
    """Feature hit rate after each number of profiling epochs, by counting rule."""
    rates: dict[str, list[float]] = {}
    for number in epochs:
        case = graph.case(seed, number, heldout)
        for name in (OURS, "presc", "full_link"):
            rates.setdefault(name, []).append(run_static(name, case, budget, trace).feature_hit_rate)
    return rates


def dynamic_figures(trace: AccessTrace, budget: int, case: PolicyCase) -> dict[str, Any]:
    """Split a budget three ways by the first fifth of a trace; what it avoids of the rest, dynamic cache and none.

    Returns
    -------
    dict
        `share`, `gamma` and `interval_batches` chosen; `tried`, what each share avoids where it was chosen; `static`
        and `static_and_dynamic`, share of the cost of all misses avoided of the rest, swaps paid.
    """
    cut = max(2, round(FIRST_FIFTH * trace.num_batches))
    allocation = allocate(case, budget, trace.part(0, cut))
    options, requests = allocation.options, requests_of(case, trace.part(cut, trace.num_batches))
    static = Split.of(case, budget, 0.0, requests).static_saved
    both = static
    if options.share:
        both = Split.of(case, budget, options.share, requests).avoided(options, trace, cut)
    return {
        "share": options.share,
        "gamma": options.gamma,
        "interval_batches": options.interval_batches,
        "tried": {f"{share:g}": saved for share, saved in allocation.saved_by_share.items()},
        "static": static,
        "static_and_dynamic": both,
    }


def mean_by_policy(rows: Sequence[Row], field: str) -> dict[str, dict[int, float]]:
    """Mean over seeds of one figure, by policy and budget."""
    values: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        values.setdefault(row.policy, {}).setdefault(row.budget_bytes, []).append(getattr(row, field))
    return {
        policy: {budget: float(np.mean(figures)) for budget, figures in budgets.items()}
        for policy, budgets in values.items()
    }


def counts_bytes(count_N: npt.NDArray[np.integer], epochs: int, batches: int) -> float:
    """Bytes of an average mini-batch of a trace, from counts of so many epochs of so many mini-batches."""
    return 4 * float(count_N.sum()) / max(1, epochs * batches)
