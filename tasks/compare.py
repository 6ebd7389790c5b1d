"""Compares cache policies on one graph: records training accesses, replays them, draws, and recommends."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from conf.compare import CompareConfig
from conf.schema import PipelineConfig
from kernels.distinct import distinct
from kernels.mfg import IdArray
from kernels.sampler import shuffled_batches
from kernels.topology import Topology
from storage.atomic import write_text
from storage.cache.drift import moving_community, time_ordered
from storage.cache.profile import AccessProfile
from storage.cache.trace import AccessTrace
from storage.errors import InputError
from storage.graph_store import GraphStore
from tasks.bounds import PROFILE_COUNTS, count_bytes, profile_bytes, topology_bytes
from tasks.budgets import SMALL_FILES_BYTES, Estimate, available_memory
from tasks.compare_advice import recommend
from tasks.compare_measure import (
    BELADY,
    ORACLE,
    OURS,
    OURS_DUAL,
    POLICIES,
    SPLITS,
    Graph,
    Row,
    by_profile_epochs,
    counts_bytes,
    dynamic_figures,
    mean_by_policy,
    measure,
    splits,
)
from tasks.compare_plots import plot_marginal_gain, plot_policies, plot_profile_epochs, plot_splits
from tasks.device_budget import with_settled_budget
from tasks.progress import progress
from tasks.run_context import RunContext
from tasks.sources import STORE_FILE
from tasks.specs import REORDER
from tasks.training_config import stand_in_bytes

_logger = logging.getLogger(__name__)
Facts = dict[str, Any]

COMPARE = "compare"
"""What the logs call this."""
RECOMMENDED_FILE = "recommended.yaml"
"""Name of the recommended configuration in the run's folder."""
_WINDOWS = 4
_TRACE_SHARE = 8  # a replay holds its trace, its next uses, and counts: an eighth of the memory for the nodes alone
_WORK_BYTES = 200  # a node: profiles of several lengths, degrees, orders of the DUCATI split


def check_policies(names: Sequence[str]) -> None:
    """Refuse a policy that there is not.

    Raises
    ------
    InputError
        If a name is unknown.
    """
    for name in names:
        if name not in POLICIES:
            raise InputError(f"unknown policy {name!r}: there are {', '.join(POLICIES)}")


def compare_on_graph(run: RunContext, asked: CompareConfig) -> Facts:
    """Measure all policies on the laid-out store of a run, and leave table, pictures and recommendation.

    Returns
    -------
    dict
        JSON values: every figure, the recommendation in a sentence, and where the configuration lies.

    Raises
    ------
    InputError
        If a policy is unknown, or the graph has nothing to train on, one mini-batch, or nothing to order seeds by.
    BudgetError, MachineError
        If it would need too much memory.
    """
    check_policies(asked.policies)
    run.directory.mkdir(parents=True, exist_ok=True)
    with GraphStore.open(run.manifest(REORDER).path(STORE_FILE)) as store:
        run.config = with_settled_budget(run.config, run.backend, store)
        seeds, sampling = store.info.split_sizes["train"], run.config.sampling
        most_epochs = max(run.config.profile.epochs, *asked.profile_epochs)
        counts = 2 * PROFILE_COUNTS * count_bytes(seeds, sampling, most_epochs, asked.heldout_epochs)
        memory = topology_bytes(store) + profile_bytes(store.info, sampling, seeds, counts)
        memory += _WORK_BYTES * store.info.num_nodes
        run.artifacts.budgets.check(COMPARE, Estimate(memory, SMALL_FILES_BYTES), run.directory)
        graph = _graph(store, run.config)
        order = seed_order(store, asked, graph.train_nodes)
    check_batches(graph, asked)
    left = int(run.config.host_budget or available_memory()) - memory
    heldout = graph.profile(run.config.seed, 0, asked.heldout_epochs)
    budgets = _budgets(graph, run.config, asked)
    rows, traces = _measure_all(run, asked, graph, heldout, budgets, order, max(1 << 20, left // _TRACE_SHARE))
    case = graph.case(run.config.seed, run.config.profile.epochs, heldout)
    own = stand_in_bytes(run.config)
    facts = _figures(asked, graph, heldout, budgets, rows, own or budgets[-1])
    facts["splits"] = dict(zip(("saved", "chosen"), splits(case, own or budgets[-1], traces), strict=True))
    facts["dynamic"] = dynamic_figures(traces, own or budgets[-1], case)
    facts["by_profile_epochs"] = by_profile_epochs(
        graph, asked.profile_epochs, heldout, own or budgets[-1], traces, run.config.seed
    )
    recommended, facts["recommendation"] = recommend(run.config, facts)
    _publish(run, rows, facts, recommended)
    return facts


def _graph(store: GraphStore, config: PipelineConfig) -> Graph:
    train = store.read_split("train")
    if not len(train):
        raise InputError(f"{store.path} has no training nodes: check data.split, its fractions and the labels")
    sampling = config.sampling
    return Graph(
        Topology.in_memory(*store.read_adjacency()),
        train,
        tuple(sampling.fanouts),
        sampling.batch_size,
        sampling.superbatch,
        sampling.threads,
        sampling.replace,
        max(1, store.info.feature_row_bytes),
    )


def check_batches(graph: Graph, asked: CompareConfig) -> None:
    """Refuse a workload that cannot be parted into what a cache is chosen on and what it is judged on.

    Raises
    ------
    InputError
        If it has one mini-batch.
    """
    per_epoch = -(-len(graph.train_nodes) // graph.batch_size)
    epochs = asked.trained_epochs if asked.workload == "shuffled" else 1
    if asked.workload != "moving_community" and epochs * per_epoch < 2:
        raise InputError(
            f"the workload {asked.workload!r} has one mini-batch, of {len(graph.train_nodes)} training nodes, and a "
            "comparison needs two: lower sampling.batch_size, or train on more nodes"
        )


def seed_order(store: GraphStore, asked: CompareConfig, train_nodes: IdArray) -> Any:
    """Times or communities of the nodes, where the seeds are to come by them.

    Raises
    ------
    InputError
        If the graph has none.
    """
    if asked.workload == "shuffled":
        return None
    if asked.workload == "time_order":
        ids = store.read_original_ids()
        if ids.dtype.kind not in "iu":
            raise InputError("the nodes of this graph have text for ids, which says nothing about their order in time")
        return ids
    if store.info.is_multi_label:
        raise InputError("nodes with several labels are in no one community: compare another workload")
    labels_N = store.read_labels()
    if not (labels_N[train_nodes] >= 0).any():
        raise InputError("no training node has a label, which is what communities are: compare another workload")
    return labels_N


def _batches(graph: Graph, asked: CompareConfig, order: Any, seed: int, num_batches: int) -> list[IdArray]:
    """Seeds of the mini-batches of a seed's trace."""
    if asked.workload == "time_order":
        return time_ordered(graph.train_nodes, order, graph.batch_size)[:num_batches]
    if asked.workload == "moving_community":
        known = graph.train_nodes[order[graph.train_nodes] >= 0]
        width = max(1, len(distinct(order[known])) // _WINDOWS)
        return moving_community(known, order, graph.batch_size, num_batches, width=width, seed=seed)
    epochs = range(asked.trained_epochs)
    batches = [shuffled_batches(graph.train_nodes, graph.batch_size, seed=seed, epoch=epoch) for epoch in epochs]
    return [batch for epoch in batches for batch in epoch][:num_batches]


def _budgets(graph: Graph, config: PipelineConfig, asked: CompareConfig) -> list[int]:
    """Bytes to try, ascending: the shares asked for, and the budget of the configuration."""
    own = stand_in_bytes(config)
    return sorted({round(share * graph.data_bytes) for share in asked.budgets} | ({own} if own else set()))


def _measure_all(
    run: RunContext,
    asked: CompareConfig,
    graph: Graph,
    heldout: AccessProfile,
    budgets: Sequence[int],
    order: Any,
    most_bytes: int,
) -> tuple[list[Row], AccessTrace]:
    """Rows of all seeds, and the trace of the last."""
    per_epoch = -(-len(graph.train_nodes) // graph.batch_size)
    batch_bytes = counts_bytes(heldout.heldout_feature_count_N, asked.heldout_epochs, per_epoch)
    wanted = asked.trained_epochs * per_epoch
    num_batches = max(2, min(wanted, int(most_bytes / max(1.0, batch_bytes))))
    if num_batches < wanted:
        _logger.warning("compare: %d of %d mini-batches are recorded, for want of memory", num_batches, wanted)
    rows = list[Row]()
    names = asked.policies or POLICIES
    for seed in range(run.config.seed, run.config.seed + asked.seeds):
        with progress(COMPARE, "mini-batches") as advance:
            batches = _batches(graph, asked, order, seed, num_batches)
            trace = graph.trace(run.directory, batches, seed, advance)
        cases = graph.case(seed, run.config.profile.epochs, heldout), graph.case(seed, 1, heldout)
        rows += measure(cases, trace, budgets, names)
        _logger.info("compare: seed %d, %d accesses replayed", seed, len(trace.nodes))
    return rows, trace


def _figures(
    asked: CompareConfig,
    graph: Graph,
    heldout: AccessProfile,
    budgets: Sequence[int],
    rows: Sequence[Row],
    own: int,
) -> Facts:
    by_policy = mean_by_policy(rows, "feature_hit_rate")
    saved = mean_by_policy([row for row in rows if row.kind == "dual"], "saved")
    return {
        "workload": asked.workload,
        "seeds": asked.seeds,
        "data_bytes": graph.data_bytes,
        "budgets": list(budgets),
        "device_budget": own,
        "profile_epochs": list(asked.profile_epochs),
        "feature_hit_rate": {name: [rates[budget] for budget in budgets] for name, rates in by_policy.items()},
        "saved": {name: [rates[budget] for budget in budgets] for name, rates in saved.items()},
    }


def _publish(run: RunContext, rows: Sequence[Row], facts: Facts, recommended: PipelineConfig) -> None:
    """Leave one MLflow run a policy, the table, the pictures and the configuration."""
    folder = run.directory
    for name in dict.fromkeys(row.policy for row in rows):
        of_policy = [row for row in rows if row.policy == name]
        with run.tracking.child_run(run.parent, name, {"policy": name, "kind": of_policy[0].kind}) as child:
            for figure in ("feature_hit_rate", "adjacency_hit_rate", "saved"):
                for budget, value in mean_by_policy(of_policy, figure)[name].items():
                    child.log_metrics({f"compare/{figure}": value}, step=budget)
    write_text(folder / "policies.json", json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    write_text(folder / "policies.md", table(facts))
    plain = json.loads(recommended.model_dump_json())
    write_text(folder / RECOMMENDED_FILE, f"# {facts['recommendation']}\n" + yaml.safe_dump(plain, sort_keys=False))
    facts["recommended_file"] = str(folder / RECOMMENDED_FILE)
    for path in (folder / "policies.json", folder / "policies.md", folder / RECOMMENDED_FILE):
        run.parent.log_artifact(path, COMPARE)
    for path in _draw(folder, facts):
        run.picture(path)


def _draw(folder: Path, facts: Facts) -> list[Path]:
    paths = [folder / f"{name}.png" for name in ("policies", "marginal_gain", "profile_epochs", "splits")]
    rates, budgets, own = facts["feature_hit_rate"], facts["budgets"], facts["device_budget"]
    duals = set(facts["saved"])
    compared = {name: values for name, values in rates.items() if name not in (ORACLE, BELADY) and name not in duals}
    bounds = {"static oracle": rates[ORACLE], "Belady": rates[BELADY]}
    plot_policies(budgets, compared, bounds, OURS, paths[0])
    plot_marginal_gain(budgets, facts["saved"][OURS_DUAL], own, paths[1])
    oracle = rates[ORACLE][budgets.index(own)]
    plot_profile_epochs(facts["profile_epochs"], facts["by_profile_epochs"], oracle, paths[2])
    tried = {float(share): value for share, value in facts["dynamic"]["tried"].items()}
    dynamic = (tried, facts["dynamic"]["share"])
    plot_splits(SPLITS, facts["splits"]["saved"], facts["splits"]["chosen"], dynamic, paths[3])
    return paths


def table(facts: Facts) -> str:
    """Write all hit rates as Markdown, the best policy first."""
    budgets = facts["budgets"]
    head = ["| policy | " + " | ".join(f"{budget / 1e6:,.1f} MB" for budget in budgets) + " |"]
    head.append("| --- |" + " ---: |" * len(budgets))
    parts = [f"# Cache policies\n\n{facts['recommendation']}\n"]
    titles = {"feature_hit_rate": "Feature requests served, %", "saved": "Bytes of all misses avoided, %"}
    for name, title in titles.items():
        ordered = sorted(facts[name].items(), key=lambda item: -float(np.mean(item[1])))
        lines = [
            f"| {policy} | " + " | ".join(f"{100 * value:.2f}" for value in values) + " |" for policy, values in ordered
        ]
        parts.append("\n".join([f"## {title}\n", *head, *lines]) + "\n")
    return "\n".join(parts)
