"""Measures the peak of training steps in this process and prints it, as JSON, beside what was promised.

python -m tests.tasks.measured_steps '[{"kind": "sage", ...}, ...]'
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from kernels.cpu.heap import give_back_large_arrays
from kernels.mfg import Mfg
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import ModelSpec, build_model
from kernels.tiered_rows import TieredRows
from tasks.step_costs import HopShape, step_bytes
from tests.tasks.measured_memory import Meter

SIZES = (250, 2_000, 12_000, 40_000)
"""Nodes of a mini-batch, seeds first; a case may name others."""
EDGES_A_NODE = 10


def hops(sizes: tuple[int, ...], edges_a_node: int) -> list[Mfg]:
    """Hops with sources anywhere, from the seeds outward."""
    rng, found = np.random.default_rng(0), []
    for num_dst, num_src in pairwise(sizes):
        indptr = np.arange(num_dst + 1, dtype=np.int64) * edges_a_node
        found.append(Mfg(indptr, rng.integers(0, num_src, indptr[-1]).astype(np.int32), num_src))
    return found


def step(spec: ModelSpec, mfgs: list[Mfg], rows: TieredRows, degrees: NodeDegrees, precision: str) -> None:
    """One step, as `tasks.training_epoch.EpochTrainer` takes it."""
    model = build_model(spec, seed=0)
    model.train()
    optimizer = torch.optim.Adam(model.parameters())
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        logits = model(mfgs, rows, degrees, dropout_identity=(0, 0, 0))
    torch.nn.functional.cross_entropy(logits.float(), torch.zeros(len(logits), dtype=torch.int64)).backward()
    optimizer.step()


def measure(case: dict[str, Any]) -> tuple[int, int]:
    """What was promised, and the peak."""
    dtype, precision = np.dtype(case.pop("dtype", "float32")), case.pop("precision", "float32")
    sizes = tuple(case.pop("sizes", SIZES))
    spec = ModelSpec(**{"in_dim": 128, "hidden": 128, "num_classes": 16, "num_layers": 3} | case)
    mfgs = hops(sizes, EDGES_A_NODE) if spec.needs_graph else []
    count = sizes[-1] if mfgs else sizes[-2]
    features = np.ones((count, spec.in_dim), dtype)
    degrees = NodeDegrees(np.ones(count, np.int32), np.ones(count, np.int32))
    rows = TieredRows([features], np.zeros(count, np.uint8), np.arange(count))
    shapes = [HopShape(hop.num_dst, hop.num_src, hop.num_edges) for hop in mfgs]
    meter, promised = Meter(), step_bytes(spec, shapes, count, are_integers=dtype.kind != "f")
    for name in ("warm", "measured"):
        meter.start(name, promised)
        step(spec, mfgs, TieredRows([features], rows.tier_n, rows.slot_n), degrees, precision)
        meter.stop()
    return meter.peaks["measured"]


def main() -> None:
    """Measure each case of the JSON list given."""
    give_back_large_arrays()
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps([measure(case) for case in json.loads(sys.argv[1])]))


if __name__ == "__main__":
    main()
