"""Feature tiers beside plain indexing, and the cost of a profile and a plan, on a drawn power-law graph.

`python -m tests.benchmarks.bench_tiers [--nodes 1000000]` ends with one JSON line. One gathering thread; figures are
nanoseconds a row, the best of several rounds over the same super-batches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from kernels.mfg import IdArray
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.topology import Topology
from storage.cache.plan import CachePlan, build_plan
from storage.cache.pre_sampling import profile_accesses
from storage.cache.profile import AccessProfile
from storage.cache.tiers import FeatureTiers
from tests.benchmarks.report import publish
from tests.graphs import power_law_graph

FANOUTS, BATCH, GROUP, ROUNDS = (10, 10), 1000, 4, 15
WIDTHS, BUDGET_SHARES = (64, 128), (0.0, 0.02, 0.1)


def best_of(bodies: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Least seconds of each body; rounds run all bodies in turn, so that what else the machine does hits all alike."""
    rounds = [{name: timed_s(body) for name, body in bodies.items()} for _ in range(1 + ROUNDS)]
    return {name: min(times[name] for times in rounds[1:]) for name in bodies}


def timed_s(body: Callable[[], object]) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    body()
    return time.perf_counter() - start


def super_batches(topology: Topology, train: IdArray, count: int) -> list[list[IdArray]]:
    """Input nodes of the first super-batches of a training epoch."""
    sampler = NeighborSampler(topology, FANOUTS, seed=0, purpose=Purpose.TRAIN)
    batches = shuffled_batches(train, BATCH, seed=0, epoch=0)[: count * GROUP]
    firsts = range(0, len(batches), GROUP)
    sampled = [sampler.sample(batches[first : first + GROUP], epoch=0, first_batch=first) for first in firsts]
    return [[sample.input_nodes for sample in group.samples] for group in sampled]


def gather_figures(groups: list[list[IdArray]], width: int, plans: dict[float, CachePlan]) -> dict[str, Any]:
    """Nanoseconds a row: direct indexing, then the tiers in super-batches and batch by batch, for each plan."""
    num_nodes = int(max(ids.max() for group in groups for ids in group)) + 1
    host_ND = np.random.default_rng(0).random((num_nodes, width), np.float32)
    host = torch.from_numpy(host_ND)
    batches = [ids for group in groups for ids in group]
    bodies: dict[str, Callable[[], object]] = {
        "take": lambda: [np.take(host_ND, ids, axis=0) for ids in batches],
        "torch_index_select": lambda: [torch.index_select(host, 0, torch.from_numpy(ids)) for ids in batches],
    }
    for share, plan in plans.items():
        tiers = FeatureTiers(host_ND, plan.feature_ids[plan.feature_ids < num_nodes])
        bodies[f"group_{share}"] = partial(lambda t: [list(t.gather_group(group)) for group in groups], tiers)
        bodies[f"single_{share}"] = partial(lambda t: [t.gather(ids) for ids in batches], tiers)
    num_rows = sum(map(len, batches))
    return {name: round(best / num_rows * 1e9, 1) for name, best in best_of(bodies).items()}


def profile_of(topology: Topology, train: IdArray, threads: int) -> AccessProfile:
    """Ten epochs that choose and ten held out."""
    sizes: dict[str, Any] = {"batch_size": BATCH, "superbatch": GROUP, "epochs": 10, "heldout_epochs": 10}
    return profile_accesses(topology, train, FANOUTS, seed=0, replace=False, threads=threads, **sizes)


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    num_nodes = parser.parse_args().nodes
    torch.set_num_threads(1)
    topology = Topology.in_memory(*power_law_graph(num_nodes, 10 * num_nodes))
    train = np.random.default_rng(1).permutation(num_nodes)[: num_nodes // 25]
    profile_of(topology, train[:1000], 1)
    profile_s = {threads: round(timed_s(partial(profile_of, topology, train, threads)), 2) for threads in (1, 2)}
    profile = profile_of(topology, train, 2)
    groups, gather, plan_s = super_batches(topology, train, 3), {}, 0.0
    for width in WIDTHS:
        build = partial(build_plan, row_bytes=width * 4, id_bytes=topology.indices.itemsize, max_fanout=max(FANOUTS))
        plans = {}
        for share in BUDGET_SHARES:
            budget, start = int(share * num_nodes * width * 4), time.perf_counter()
            plans[share] = build(profile, topology.in_degree(), device_budget=budget, counting="input")
            plan_s = max(plan_s, time.perf_counter() - start)
        gather[width] = gather_figures(groups, width, plans)
    publish("bench_tiers", {"profile_s": profile_s, "plan_s": round(plan_s, 2), "gather_ns_row": gather})


if __name__ == "__main__":
    main()
