"""Test accuracy beside DGL's by 20 paired seeds: `python -m tests.benchmarks.parity cora gcn`; all pairs without names.

Needs dgl, and GARDEN_DATA for the graphs. `make test-full` asserts that each interval lies within a point of zero; this
publishes them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch

from tests.benchmarks.parity_runs import DATASETS, MARGIN, RECIPES, SEEDS, Comparison, read_graph
from tests.benchmarks.report import publish


def main() -> None:
    """Compare the networks named on the graphs named."""
    root, names = Path(os.environ.get("GARDEN_DATA", "data")), sys.argv[1:]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        for dataset in [name for name in DATASETS if name in names] or DATASETS:
            graph = read_graph(root / dataset, dataset, Path(scratch))
            for kind in [kind for kind in RECIPES if kind in names] or RECIPES:
                figures = {"seeds": SEEDS, "margin": MARGIN, **Comparison.of(graph, kind).figures()}
                publish(f"parity_{dataset}_{kind}", {"dataset": dataset, "model": kind, **figures})


if __name__ == "__main__":
    main()
