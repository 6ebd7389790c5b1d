"""Loads an epoch from disk in this process and prints, as JSON, the growth of its memory beside the budget.

`python -m tests.tasks.loader_peak STORE GROUP BUDGET...`: GROUP is the folder of a control group to join, or `-`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kernels.cpu.heap import give_back_large_arrays
from storage.blocks.stored_topology import StoredTopology
from storage.graph_store import write_store
from tasks.api import GraphLoader
from tests.graphs import power_law_graph
from tests.tasks.measured_memory import Meter

OPTIONS: dict[str, Any] = {"fanouts": [5, 5], "batch_size": 20, "seed": 1}
SEEDS = 2000


def write_graph(path: Path, num_nodes: int, num_edges: int, dim: int) -> int:
    """Write a graph whose first feature is the node's id; bytes of its topology and features."""
    indptr, indices = power_law_graph(num_nodes, num_edges)
    rows = np.ones((num_nodes, dim), np.float32)
    rows[:, 0] = np.arange(num_nodes)
    write_store(path, indptr=indptr, indices=indices, features=rows, block_bytes=1 << 16)
    return indptr.nbytes + indices.nbytes + rows.nbytes


def load(path: Path, budget: int) -> None:
    """Load one epoch; every row is that of its node."""
    nodes = np.random.default_rng(0).permutation(np.load(path.with_suffix(".npy"))[0])[:SEEDS]
    with GraphLoader(path, nodes, **OPTIONS, host_budget=budget) as loader:
        assert isinstance(loader.topology, StoredTopology)
        assert loader.memory_bytes <= budget
        for batch in loader.epoch(0):
            assert (batch.rows[:, 0].numpy() == batch.sample.input_nodes).all()


def main() -> None:
    """Warm up, so that libraries and compiled code are there; then measure."""
    path, group, budgets = Path(sys.argv[1]), sys.argv[2], [int(budget) for budget in sys.argv[3:]]
    tiny = path.with_name("tiny.h5")
    write_graph(tiny, 3000, 20_000, 600)
    np.save(tiny.with_suffix(".npy"), [3000])
    give_back_large_arrays()
    load(tiny, 12 << 20)
    if group != "-":
        Path(group, "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    meter = Meter()
    for budget in budgets:
        meter.start(str(budget), budget)
        load(path, budget)
        meter.stop()
    sys.stdout.write(json.dumps({name: grown for name, (_, grown) in meter.peaks.items()}))


if __name__ == "__main__":
    main()
