"""Time and memory of planning a cache for many nodes: synthetic counts, each size in a process of its own.

`python -m tests.benchmarks.bench_plan [--nodes 1000000 10000000 100000000]` ends with one JSON line: seconds, CPU
seconds of all threads, and the peak of resident memory above the inputs in bytes a node, as a whole and beyond the ids
returned, at a tenth of all bytes and with room for everything.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from storage.cache.plan import CachePlan, build_plan
from storage.cache.profile import AccessProfile
from tests.benchmarks.report import ROOT, publish

NODES = (1_000_000, 10_000_000, 100_000_000)
SHARES = (0.1, 1.0)
ROW_BYTES, ID_BYTES, MEAN_DEGREE, MAX_FANOUT = 400, 4, 12, 15
_PIECE = 1 << 22


def inputs(num_nodes: int) -> tuple[AccessProfile, np.ndarray]:
    """Counts of rank^-0.8 in a drawn order within pieces, and degrees; one array stands for several counts."""
    rng = np.random.default_rng(0)
    count_N = (3e6 * (np.arange(num_nodes, dtype=np.float32) + 10) ** np.float32(-0.8)).astype(np.int32)
    for first in range(0, num_nodes, _PIECE):
        rng.shuffle(count_N[first : first + _PIECE])
    smoothed_N, degree_N = count_N * 256, rng.integers(0, 2 * MEAN_DEGREE + 1, num_nodes, dtype=np.int32)
    chosen_by = (count_N, count_N, count_N, smoothed_N, smoothed_N)
    return AccessProfile(*chosen_by, count_N, count_N, epochs=4, heldout_epochs=20, num_batches=100), degree_N


def plan(profile: AccessProfile, degree_N: np.ndarray, budget_bytes: int) -> CachePlan:
    """Plan as the cache stage does."""
    sizes: dict[str, Any] = {"row_bytes": ROW_BYTES, "id_bytes": ID_BYTES, "max_fanout": MAX_FANOUT}
    return build_plan(profile, degree_N, device_budget=budget_bytes, counting="smoothed", **sizes)


def measure_here(num_nodes: int, share: float) -> dict[str, float]:
    """Plan once, in a process that has done nothing else."""
    plan(*inputs(1000), 10**5)  # compiles
    profile, degree_N = inputs(num_nodes)
    data_bytes = num_nodes * (ROW_BYTES + 8 + ID_BYTES * MEAN_DEGREE)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is counted anew
    resident, start, cpu_s = _memory_bytes("VmRSS"), time.perf_counter(), time.process_time()
    planned = plan(profile, degree_N, int(share * data_bytes))
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu_s
    peak, returned = _memory_bytes("VmHWM") - resident, planned.feature_ids.nbytes + planned.adjacency_ids.nbytes
    return {
        "seconds": round(seconds, 2),
        "cpu_s": round(cpu_s, 2),
        "peak_bytes_a_node": round(peak / num_nodes, 2),
        "beyond_returned_bytes_a_node": round((peak - returned) / num_nodes, 2),
        "rows": len(planned.feature_ids),
        "lists": len(planned.adjacency_ids),
    }


def _memory_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def measure(num_nodes: int, share: float) -> dict[str, float]:
    """Plan in a process of its own, whose peak memory is this plan's."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_plan", "--here", str(num_nodes), str(share)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--nodes", type=int, nargs="*", default=NODES)
    parser.add_argument("--here", nargs=2, metavar=("NODES", "SHARE"), help="measure one plan in this very process")
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(measure_here(int(asked.here[0]), float(asked.here[1]))))
        return
    publish("bench_plan", {f"{n:,} nodes, {share:.0%}": measure(n, share) for n in asked.nodes for share in SHARES})


if __name__ == "__main__":
    main()
