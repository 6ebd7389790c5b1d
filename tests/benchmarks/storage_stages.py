"""All stages at a share of the data's bytes: the workload's graph as files, from ingest to exact evaluation, limited.

Peak memory above the libraries' own over the budget, of each stage at each share; a stage whose own smallest budget is
above the share gets that one, and the figures say so. The kernel's limit is the budget and a tenth.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.report import ROOT
from tests.benchmarks.storage_workload import (
    CLASSES,
    EXPONENT,
    FANOUTS,
    FEATURE_SEED,
    GRAPH_SEED,
    HIDDEN,
    SEED_SHARE,
    Size,
)
from tests.cgroups import NoControlGroupsError, memory_group
from tests.graphs import power_law_graph

PRESET, STAGES = "igb", 5
TINY, WARM_BUDGET = Size(300, 3000, batch_size=20, features=8), 120_000_000
SPARE = 1.1
_CHUNK_ROWS, _CHUNK_EDGES = 1 << 15, 1 << 22


def write_files(folder: Path, size: Size) -> int:
    """Write the graph in IGB's layout, its features in chunks; bytes of its topology and features."""
    for name in ("paper", "paper__cites__paper"):
        (folder / name).mkdir(parents=True)
    rng, shape = np.random.default_rng(FEATURE_SEED), (size.nodes, size.features)
    features = np.lib.format.open_memmap(folder / "paper/node_feat.npy", "w+", np.float32, shape)
    for first in range(0, size.nodes, _CHUNK_ROWS):
        rows = min(_CHUNK_ROWS, size.nodes - first)
        features[first : first + rows] = rng.standard_normal((rows, size.features), np.float32)
    np.save(folder / "paper/node_label_19.npy", rng.integers(0, CLASSES, size.nodes))
    indptr, indices = power_law_graph(size.nodes, size.edges, seed=GRAPH_SEED, exponent=EXPONENT)
    edges = np.lib.format.open_memmap(folder / "paper__cites__paper/edge_index.npy", "w+", np.int32, (len(indices), 2))
    for first in range(0, len(indices), _CHUNK_EDGES):
        part = slice(first, min(first + _CHUNK_EDGES, len(indices)))
        edges[part, 0] = indices[part]
        edges[part, 1] = np.searchsorted(indptr, np.arange(part.start, part.stop), side="right") - 1
    return size.nodes * (size.features * 4 + 8) + 4 * size.edges


def settings(files: Path, size: Size, budget: int | None) -> list[str]:
    """Overrides of the preset."""
    return [
        f"data.path={files}",
        "data.split=random",
        f"data.train_fraction={SEED_SHARE}",
        "profile.epochs=1",
        "profile.heldout_epochs=1",
        f"sampling.batch_size={size.batch_size}",
        "sampling.superbatch=1",
        f"sampling.fanouts={list(FANOUTS)}",
        "storage.mode=storage",
        f"model.hidden={HIDDEN}",
        "training.epochs=1",
        "cache.device_budget=1MB",
        "host_budget=" if budget is None else f"host_budget={budget}",
    ]


def measure_stages(folder: Path, size: Size, shares: Mapping[str, int], timeout_s: float) -> dict[str, Any]:
    """Figures of all stages at all shares; `peak_rss_over_budget` by stage and share."""
    found: dict[str, Any] = {"peak_rss_over_budget": {}, "smallest_budgets": {}, "stages": {}}
    with tempfile.TemporaryDirectory(dir=folder, prefix="stages-") as name:
        work = Path(name)
        data_bytes = write_files(work / "files", size)
        write_files(work / "tiny", TINY)
        for share_name, share in shares.items():
            budget = data_bytes // share
            measured = _limited(work, size, budget, timeout_s)
            found["stages"][share_name] = measured
            for stage, figures in measured.items():
                used = figures["budget_bytes"]
                found["peak_rss_over_budget"][f"{stage} {share_name}"] = round(figures["peak_bytes"] / used, 3)
                if used > budget:
                    found["smallest_budgets"][f"{stage} {share_name}"] = used
    return found


def _limited(work: Path, size: Size, budget: int, timeout_s: float) -> dict[str, dict[str, Any]]:
    """The stages in a process of their own, inside a control group if one can be made."""
    try:
        with memory_group("garden-stages") as group:
            group.limit(int(SPARE * budget))
            return _run(work, size, budget, timeout_s, str(group.folder))
    except NoControlGroupsError as reason:
        print(f"NOT LIMITED BY THE KERNEL: {reason}", file=sys.stderr)
        return _run(work, size, budget, timeout_s, None)


def _run(work: Path, size: Size, budget: int, timeout_s: float, group: str | None) -> dict[str, dict[str, Any]]:
    case = {
        "warm": [[PRESET, settings(work / "tiny", TINY, warm), STAGES] for warm in (None, WARM_BUDGET)],
        "stages": [PRESET, settings(work / "files", size, budget), STAGES],
        "group": group,
        "smallest": True,
    }
    with tempfile.TemporaryDirectory(dir=work) as state:
        command = [sys.executable, "-m", "tests.tasks.budgeted_stages", state, json.dumps(case)]
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment, timeout=timeout_s, check=False
        )
    if done.returncode:
        raise RuntimeError(f"the stages ended with {done.returncode} (-9: the kernel's limit was reached)")
    measured: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return measured
