"""One billion edges within 2 GB: an R-MAT graph is ingested, laid out, profiled, and trained on for one epoch.

`python -m tests.benchmarks.bench_billion [--scale 25 --edges 1073741824 --budget 2GB]` ends with one JSON line: for
each stage seconds, peak memory above the libraries' own, bytes read and written; and the CPU seconds that others used
meanwhile, for the machine may be shared: seconds are upper bounds then, bytes and peaks are exact. The stages run
inside a memory control group whose limit is the budget and 10 %, so that the page cache cannot help; where none can be
made, the line says so.
`--share 20` runs a graph of a twentieth of the edges, on a sixteenth of the nodes; the budget above what stages hold
however small the graph is shrinks with the nodes. At full size it takes about 45 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from pydantic import ByteSize, TypeAdapter

from tests.benchmarks.report import ROOT, publish
from tests.cgroups import MemoryGroup, NoControlGroupsError, memory_group

PRESET = "rmat_billion"
SCALE, EDGES, BUDGET = 25, 1 << 30, 2_000_000_000
FIXED_BYTES = 80_000_000
"""What the stages hold however small the graph is: blocks, chunks, a mini-batch of 1000 seeds."""
SPARE = 1.1
STAGES = ("ingest", "reorder", "profile", "cache", "train")


def main() -> None:
    """Run, and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=SCALE)
    parser.add_argument("--edges", type=int, default=EDGES)
    parser.add_argument("--budget", type=TypeAdapter(ByteSize).validate_python, default=BUDGET)
    parser.add_argument("--share", type=int, default=1, help="a graph and a budget so many times smaller")
    parser.add_argument("--stages", type=int, default=len(STAGES), help="how many of the stages to run")
    parser.add_argument("--directory", type=Path, default=None, help="where to work; default: the temporary directory")
    args = parser.parse_args()
    scale = args.scale - round(math.log2(args.share))
    edges = args.edges // args.share
    budget = FIXED_BYTES + ((args.budget - FIXED_BYTES) >> (args.scale - scale))
    figures = measure(scale, edges, budget, args.stages, args.directory)
    name = "bench_billion" if args.budget == BUDGET else f"bench_billion_{args.budget / 1e9:g}gb"
    publish(name if args.share == 1 else f"{name}_{args.share}", figures)


def measure(scale: int, edges: int, budget: int, stages: int, directory: Path | None) -> dict[str, Any]:
    """Run the stages in a process of its own, inside a control group if one can be made."""
    folder = Path(tempfile.mkdtemp(prefix="garden-billion-", dir=directory))
    busy_s, own_s = machine_cpu_s(), children_cpu_s()
    figures: dict[str, Any] = {"nodes": 1 << scale, "edges": edges, "budget_bytes": budget}
    try:
        try:
            with memory_group("garden-billion") as group:
                group.limit(int(SPARE * budget))
                figures |= run(folder, scale, edges, budget, stages, group)
                figures["peak_group_bytes"] = group.peak_bytes
        except NoControlGroupsError as reason:
            print(f"NOT LIMITED BY THE KERNEL: {reason}", flush=True)
            figures |= run(folder, scale, edges, budget, stages, None) | {"group": str(reason)}
    finally:
        shutil.rmtree(folder)
    own_s = children_cpu_s() - own_s
    return figures | {"cpu_s": round(own_s), "cpu_s_of_others": round(machine_cpu_s() - busy_s - own_s)}


def machine_cpu_s() -> float:
    """CPU seconds used on this machine since it started."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def children_cpu_s() -> float:
    """CPU seconds of the processes that have ended here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(folder: Path, scale: int, edges: int, budget: int, stages: int, group: MemoryGroup | None) -> dict[str, Any]:
    """Warm up on a tiny graph in memory and out of it, then measure."""
    tiny = settings(8, 2000, None)
    case = {
        "warm": [[PRESET, tiny, stages], [PRESET, settings(8, 2000, 80_000_000), stages]],
        "stages": [PRESET, settings(scale, edges, budget), stages],
        "group": str(group.folder) if group else None,
    }
    command = [sys.executable, "-m", "tests.tasks.budgeted_stages", str(folder), json.dumps(case)]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    if done.returncode:
        raise SystemExit(f"the stages ended with {done.returncode} (-9: the kernel's limit was reached)")
    measured: dict[str, dict[str, float]] = json.loads(done.stdout)
    over = {name: round(stage["peak_bytes"] / budget, 3) for name, stage in measured.items()}
    return {"stages": measured, "peak_rss_over_budget": over}


def settings(scale: int, edges: int, budget: int | None) -> list[str]:
    """Overrides of the preset."""
    size = [f"data.rmat.scale={scale}", f"data.rmat.edges={edges}"]
    return [*size, "host_budget=" if budget is None else f"host_budget={budget}"]


if __name__ == "__main__":
    main()
