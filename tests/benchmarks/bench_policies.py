"""Cache policies on graphs and workloads that were fixed before (`cache_workloads`): shares of the static oracle.

`python -m tests.benchmarks.bench_policies` ends with one JSON line; public graphs are read from the folder
GARDEN_DATA. Hit rates are exact: no figure but the replay speeds depends on the machine.

- `share_of_static_oracle`: feature hit rate of our default over that of the static oracle of 100 held-out epochs, at
  equal bytes of feature cache; `share_of_dual_oracle`: share of the bytes of all misses avoided, over the oracle's, at
  equal bytes of both caches. Means over seeds, measured on training epochs that nothing was chosen on.
- `best_other_policy_share`: that of the best other static policy, with its name; `_dual` likewise.
- `drift_share_of_belady_gap`: how far the static and the dynamic cache together get from the static oracle of the first
  fifth to Belady, on the rest. Interval, gamma and share are chosen on the first fifth.
- `three_way` (of the drifts, and of the shuffled epochs of a power-law graph): the dynamic share that our allocator
  chooses on the first fifth, and what the split avoids of the rest, swaps paid, with it and without it.
- `prediction_error_points`: largest difference of predicted and measured hit rates, features and lists.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kernels.cpu.eviction import LruCache
from kernels.sampler import shuffled_batches
from storage.cache.drift import Segment
from storage.cache.hotset import DynamicOptions
from storage.cache.laboratory import (
    belady,
    list_bound,
    requests_of,
    row_hits,
    run_belady,
    run_dual,
    run_dynamic,
    run_fastgl,
    run_replacement,
    run_static,
    serve_rows,
)
from storage.cache.plan import build_plan, largest_fanout
from storage.cache.policies import DUAL_POLICIES, REPLACEMENT_POLICIES, STATIC_POLICIES, PolicyCase
from storage.cache.pre_sampling import profile_accesses
from storage.cache.profile import AccessProfile
from storage.cache.trace import AccessTrace, TraceFile, record_trace
from tests.benchmarks import cache_workloads as fixed
from tests.benchmarks.cache_drifts import drift_figures, three_way
from tests.benchmarks.cache_workloads import Workload
from tests.benchmarks.report import publish
from tests.cache_tuning import static_part

OURS, OURS_DUAL = "smoothed", "garden_plan"
PROFILE_SWEEP = (1, 2, 4, 8, 16)
STEPS = tuple((3 + step) / 52 for step in range(13))
"""Budgets of Table IV as shares of all bytes: the paper goes from 3 to 15 GB of about 52."""
BATCH_SIZES = (500, 1000, 2000, 4000)
DYNAMIC_SHARE = 0.2
THREADS = 2


def profile_of(workload: Workload, seed: int, epochs: int, heldout: int) -> AccessProfile:
    """Count as the profile stage does."""
    return profile_accesses(
        workload.topology,
        workload.train_nodes,
        fixed.FANOUTS,
        batch_size=workload.batch_size,
        superbatch=4,
        seed=seed,
        epochs=epochs,
        heldout_epochs=heldout,
        replace=False,
        threads=THREADS,
    )


def training_trace(workload: Workload, seed: int, path: Path) -> AccessTrace:
    """Record the training epochs of a seed and read them back."""
    epochs = [
        Segment(workload.topology, shuffled_batches(workload.train_nodes, workload.batch_size, seed=seed, epoch=epoch))
        for epoch in range(fixed.TRAIN_EPOCHS)
    ]
    record_trace(path, epochs, fixed.FANOUTS, seed=seed, threads=THREADS)
    with TraceFile(path) as file:
        return file.read()


def feature_rates(case: PolicyCase, once: PolicyCase, budget: int, trace: AccessTrace) -> dict[str, float]:
    """Hit rates at equal bytes of feature cache, by policy; the first epoch only warms replacement policies up."""
    warm = trace.num_batches // fixed.TRAIN_EPOCHS
    counted = trace.part(warm, trace.num_batches)
    rates = {}
    for name, policy in STATIC_POLICIES.items():
        rates[name] = run_static(name, once if policy.epochs == 1 else case, budget, counted).feature_hit_rate
    for name in REPLACEMENT_POLICIES:
        rates[name] = run_replacement(name, case.row_bytes, budget, trace, warm).feature_hit_rate
    rates["fastgl"] = run_fastgl(once, budget, counted).feature_hit_rate
    rates["belady"] = run_belady(case.row_bytes, budget, counted).feature_hit_rate
    return rates


def predictions(case: PolicyCase, budget: int, trace: AccessTrace) -> tuple[float, float]:
    """Largest error of the predicted hit rates in points, and bytes predicted over bytes held (1: exact)."""
    plan = build_plan(
        case.profile,
        case.topology.in_degree(),
        row_bytes=case.row_bytes,
        id_bytes=case.topology.indices.itemsize,
        device_budget=budget,
        counting="smoothed",
        max_fanout=largest_fanout(case.fanouts),
    )
    rows = serve_rows(trace, plan.feature_ids)
    counts_N = trace.adjacency_counts()
    lists = float(counts_N[plan.adjacency_ids].sum() / counts_N.sum())
    errors = (rows - plan.predicted_feature_hit_rate, lists - plan.predicted_adjacency_hit_rate)
    return 100 * max(map(abs, errors)), plan.total_bytes / budget


def graph_figures(workload: Workload, folder: Path, *, heldout_epochs: int) -> dict[str, Any]:
    """All figures of one graph, as means over seeds, by budget."""
    start = time.perf_counter()
    heldout = profile_of(workload, 1000, 0, heldout_epochs)
    heldout_s = time.perf_counter() - start
    both_bytes = _both_bytes(workload)
    features: dict[str, dict[str, list[float]]] = {}
    duals: dict[str, dict[str, list[float]]] = {}
    errors = []
    for seed in fixed.SEEDS:
        case, once = (
            PolicyCase(
                replace(
                    profile_of(workload, seed, epochs, 0),
                    heldout_feature_count_N=heldout.heldout_feature_count_N,
                    heldout_adjacency_count_N=heldout.heldout_adjacency_count_N,
                ),
                workload.topology,
                workload.train_nodes,
                workload.batch_size,
                fixed.FANOUTS,
                workload.row_bytes,
                seed=seed,
            )
            for epochs in (fixed.PROFILE_EPOCHS, 1)
        )
        trace = training_trace(workload, seed, folder / "trace.h5")
        requests = requests_of(case, trace)
        for share in fixed.BUDGETS:
            budget = int(share * workload.topology.num_nodes * workload.row_bytes)
            for name, rate in feature_rates(case, once, budget, trace).items():
                features.setdefault(str(share), {}).setdefault(name, []).append(rate)
            budget = int(share * both_bytes)
            for name in DUAL_POLICIES:
                saved = run_dual(name, case, budget, requests).saved
                duals.setdefault(str(share), {}).setdefault(name, []).append(saved)
            errors.append(predictions(case, budget, trace)[0])
    return {
        "feature_hit_rate": {share: _means(rates) for share, rates in features.items()},
        "feature_hit_rate_spread": {share: _spreads(rates) for share, rates in features.items()},
        "bytes_saved": {share: _means(rates) for share, rates in duals.items()},
        "prediction_error_points": round(max(errors), 3),
        "list_bound": {
            str(share): round(list_bound(case, int(share * workload.topology.indices.nbytes), trace), 4)
            for share in fixed.BUDGETS
        },
        "accesses_an_epoch": len(trace.nodes) // fixed.TRAIN_EPOCHS,
        "heldout_s": round(heldout_s, 1),
    }


def _means(rates: dict[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.mean(values), 5) for name, values in rates.items()}


def _spreads(rates: dict[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.pstdev(values), 5) for name, values in rates.items()}


def epochs_figures(workload: Workload, folder: Path, heldout_N: np.ndarray) -> dict[str, dict[str, float]]:
    """Feature hit rate at 10 % by profiling epochs (GARDEN Table III), plain and smoothed counts and full-link ones."""
    trace = training_trace(workload, 0, folder / "trace.h5")
    budget = int(0.1 * workload.topology.num_nodes * workload.row_bytes)
    rates: dict[str, dict[str, float]] = {}
    for epochs in PROFILE_SWEEP:
        profile = replace(profile_of(workload, 0, epochs, 0), heldout_feature_count_N=heldout_N)
        case = PolicyCase(
            profile, workload.topology, workload.train_nodes, workload.batch_size, fixed.FANOUTS, workload.row_bytes
        )
        for name in ("presc", "smoothed", "full_link", "static_oracle"):
            rate = run_static(name, case, budget, trace).feature_hit_rate
            rates.setdefault(name, {})[str(epochs)] = round(rate, 5)
    return rates


def case_of(workload: Workload, seed: int, epochs: int) -> PolicyCase:
    """What a policy may look at, without held-out epochs."""
    nodes = (workload.topology, workload.train_nodes, workload.batch_size, fixed.FANOUTS, workload.row_bytes)
    return PolicyCase(profile_of(workload, seed, epochs, 0), *nodes)


def step_figures(workload: Workload, trace: AccessTrace) -> dict[str, list[float]]:
    """Share of bytes saved at twelve equal steps of the budget (GARDEN Table IV)."""
    case, both_bytes = case_of(workload, 0, fixed.PROFILE_EPOCHS), _both_bytes(workload)
    requests = requests_of(case, trace)
    return {
        name: [round(run_dual(name, case, int(share * both_bytes), requests).saved, 5) for share in STEPS]
        for name in ("ducati", OURS_DUAL)
    }


def batch_size_figures(workload: Workload, folder: Path) -> dict[str, dict[str, float]]:
    """Feature hit rate at 10 % by batch size (GARDEN Fig. 13a)."""
    budget = int(0.1 * workload.topology.num_nodes * workload.row_bytes)
    rates: dict[str, dict[str, float]] = {}
    for batch_size in BATCH_SIZES:
        resized = replace(workload, batch_size=batch_size)
        trace, case = training_trace(resized, 0, folder / "trace.h5"), case_of(resized, 0, fixed.PROFILE_EPOCHS)
        for name, rate in (
            ("smoothed", run_static("smoothed", case, budget, trace).feature_hit_rate),
            ("presc", run_static("presc", case, budget, trace).feature_hit_rate),
            ("ducati", run_dual("ducati", case, budget, requests_of(case, trace)).feature_hit_rate),
            ("fastgl", run_fastgl(case, budget, trace).feature_hit_rate),
        ):
            rates.setdefault(name, {})[str(batch_size)] = round(rate, 5)
    return rates


def ablation_figures(workload: Workload, trace: AccessTrace) -> dict[str, dict[str, float]]:
    """Feature hit rates of the parts (GARDEN Fig. 14), at equal bytes and with the dynamic cache's bytes on top."""
    budget = int(0.1 * workload.topology.num_nodes * workload.row_bytes)
    case, per_epoch = case_of(workload, 0, fixed.PROFILE_EPOCHS), trace.num_batches // fixed.TRAIN_EPOCHS
    rates: dict[str, dict[str, float]] = {}
    for name, score_N in (
        ("naive", case.profile.feature_count_N),
        ("full_link", case.profile.full_link_count_N),
        ("smoothed", case.profile.smoothed_feature_N),
    ):
        for kind, total in (("equal_bytes", budget), ("bytes_on_top", round(budget / (1 - DYNAMIC_SHARE)))):
            ids, layout = static_part(score_N, total, workload.row_bytes, DYNAMIC_SHARE)
            options = DynamicOptions(DYNAMIC_SHARE, interval_batches=per_epoch)
            rate = run_dynamic(ids, layout, options, trace, per_epoch).feature_hit_rate
            rates.setdefault(f"{name}_dynamic", {})[kind] = round(rate, 5)
        counted = trace.part(per_epoch, trace.num_batches)
        static = serve_rows(counted, static_part(score_N, budget, workload.row_bytes, 0.0)[0])
        rates[name] = {"equal_bytes": round(static, 5)}
    return rates


def paper_figures(workload: Workload, folder: Path) -> dict[str, Any]:
    """The paper's own tables and figures, on one graph."""
    trace = training_trace(workload, 0, folder / "trace.h5")
    return {
        "steps": step_figures(workload, trace),
        "ablation": ablation_figures(workload, trace),
        "batch_sizes": batch_size_figures(workload, folder),
        "three_way": three_way(case_of(workload, 0, fixed.PROFILE_EPOCHS), trace),
    }


def _both_bytes(workload: Workload) -> int:
    """Bytes of all rows and lists."""
    return workload.topology.num_nodes * (workload.row_bytes + 8) + workload.topology.indices.nbytes


def replay_speed(trace: AccessTrace) -> dict[str, float]:
    """Accesses a second of one core, in millions, at a tenth of the rows."""
    tenth = np.arange(0, trace.num_nodes, 10)
    bodies: dict[str, Any] = {"static": lambda: row_hits(trace, tenth)}
    for name, policy in REPLACEMENT_POLICIES.items():
        bodies[name] = lambda policy=policy: policy.make(trace.num_nodes, len(tenth)).access(trace.nodes)
    bodies["belady"] = lambda: belady(trace, len(tenth))
    LruCache(10, 2).access(trace.nodes[:1] * 0)
    speeds = {}
    for name, body in bodies.items():
        body()
        start = time.process_time()
        body()
        speeds[name] = round(len(trace.nodes) / (time.process_time() - start) / 1e6, 1)
    return speeds


def headline(graphs: dict[str, Any], drifts: dict[str, Any]) -> dict[str, Any]:
    """The figures that the gates are about."""
    shares: dict[str, Any] = {
        "share_of_static_oracle": {},
        "share_of_dual_oracle": {},
        "best_other_policy_share": {},
        "best_other_dual_policy_share": {},
    }
    static = [name for name in STATIC_POLICIES if name not in (OURS, "static_oracle")]
    dual = [name for name in DUAL_POLICIES if name not in (OURS_DUAL, "oracle_plan")]
    for graph, figures in graphs.items():
        for share, rates in figures["feature_hit_rate"].items():
            oracle, saved = rates["static_oracle"], figures["bytes_saved"][share]
            best, best_dual = max(static, key=rates.__getitem__), max(dual, key=saved.__getitem__)
            for key, value in (
                ("share_of_static_oracle", round(rates[OURS] / oracle, 4)),
                ("share_of_dual_oracle", round(saved[OURS_DUAL] / saved["oracle_plan"], 4)),
                ("best_other_policy_share", [best, round(rates[best] / oracle, 4)]),
                ("best_other_dual_policy_share", [best_dual, round(saved[best_dual] / saved["oracle_plan"], 4)]),
            ):
                shares[key].setdefault(graph, {})[share] = value
    shares["drift_share_of_belady_gap"] = {
        name: {share: values["share_of_belady_gap"] for share, values in figures.items() if share != "three_way"}
        for name, figures in drifts.items()
    }
    errors = [figures["prediction_error_points"] for figures in graphs.values()]
    return shares | {"prediction_error_points": max(errors, default=None)}


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--graphs", nargs="*", default=list(fixed.GRAPHS), choices=list(fixed.GRAPHS))
    parser.add_argument("--drifts", nargs="*", default=list(fixed.DRIFTS), choices=list(fixed.DRIFTS))
    parser.add_argument("--heldout", type=int, default=fixed.HELDOUT_EPOCHS, help="epochs of the static oracle")
    parser.add_argument("--keep", type=Path, help="write what was measured to this file instead of publishing it")
    parser.add_argument("--kept", type=Path, nargs="*", default=[], help="files of --keep to publish with the rest")
    asked = parser.parse_args()
    graphs, drifts, extras = (dict[str, Any]() for _ in range(3))
    for path in asked.kept:
        kept = json.loads(path.read_text(encoding="utf-8"))
        graphs, drifts, extras = graphs | kept["graphs"], drifts | kept["drifts"], extras | kept["extras"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for graph in asked.graphs:
            workload = fixed.GRAPHS[graph]()
            graphs[graph] = graph_figures(workload, folder, heldout_epochs=asked.heldout)
            if graph == "power_law_300k":
                heldout_N = profile_of(workload, 1000, 0, asked.heldout).heldout_feature_count_N
                extras["by_profile_epochs"] = {graph: epochs_figures(workload, folder, heldout_N)}
                extras["paper"] = {graph: paper_figures(workload, folder)}
                extras["replay_million_accesses_s"] = replay_speed(training_trace(workload, 0, folder / "trace.h5"))
            print(graph, graphs[graph], flush=True)
        for drift in asked.drifts:
            drifts[drift] = drift_figures(fixed.DRIFTS[drift](), folder)
            print(drift, drifts[drift], flush=True)
    if asked.keep is not None:
        asked.keep.write_text(json.dumps({"graphs": graphs, "drifts": drifts, "extras": extras}), encoding="utf-8")
    else:
        publish("bench_policies", headline(graphs, drifts) | {"graphs": graphs, "drifts": drifts} | extras)


if __name__ == "__main__":
    main()
