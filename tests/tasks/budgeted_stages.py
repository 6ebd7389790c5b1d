"""Runs the stages of a configuration in this process and prints, as JSON, the memory and time that each took.

`python -m tests.tasks.budgeted_stages FOLDER CASE`, where CASE is a JSON object:
`warm` (a list; all but the first sample and predict from disk) and `stages` are [preset, overrides, number of stages];
`group` is the folder of a control group to join, if any.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

from conf.load import load_config
from kernels.cpu.heap import give_back_large_arrays
from storage.graph_store import GraphStore
from tasks.bounds import SamplingSizes
from tasks.budgets import Budgets
from tasks.build_cache import build_cache
from tasks.ingest import ingest_graph
from tasks.model_reference import open_model
from tasks.predict import write_output
from tasks.process_io import io_metrics, process_io
from tasks.profile import profile_graph
from tasks.profile_memory import ProfilePlan, plan_profile
from tasks.reorder import reorder_graph
from tasks.run_context import RunContext
from tasks.sources import STORE_FILE
from tasks.train import train_model

TASKS = {
    "ingest": ingest_graph,
    "reorder": reorder_graph,
    "profile": profile_graph,
    "cache": build_cache,
    "train": train_model,
}
PREDICT, OUTPUTS = "predict", ("parquet", "npy")
"""What may follow the stages: hidden representations of all nodes, as tables and as rows alone."""
Case = tuple[str, list[str], int]


def run_stages(folder: Path, case: Case) -> dict[str, dict[str, float]]:
    """Run the first stages in a fresh state directory; peak bytes above what was held before, and seconds, by stage."""
    preset, overrides, count = case
    parent = MagicMock()
    parent.key = "measured"
    context = RunContext(load_config(preset, [*overrides, f"state_dir={folder}"]), MagicMock(), parent)
    measured = {}
    works = [(name, partial(task.fn, context)) for name, task in TASKS.items()]
    works += [(f"{PREDICT} {suffix}", partial(predict, context, folder / f"rows.{suffix}")) for suffix in OUTPUTS]
    for name, work in works[:count]:
        ctypes.CDLL(None).malloc_trim(0)  # else it would grow into what was freed before
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak becomes what is held now
        before, start, io = status_bytes("VmHWM"), time.perf_counter(), process_io()
        work()
        traffic = io_metrics(io, process_io(), 1.0)
        measured[name] = {
            "read_bytes": traffic.get("io/read_bytes", 0),
            "written_bytes": traffic.get("io/written_bytes", 0),
            "peak_bytes": status_bytes("VmHWM") - before,
            "seconds": round(time.perf_counter() - start, 2),
            "artifact_bytes": context.outcomes[name].manifest.nbytes if name in TASKS else 0,
        }
        sys.stderr.write(f"{name}: {json.dumps(measured[name])}\n")  # a long run that is ended has said so much
    context.close()
    return measured


def predict(context: RunContext, out: Path) -> None:
    """Apply the model that was trained to the graph it was trained on."""
    model, budget = context.manifest("train").directory, context.config.host_budget
    store = context.manifest("reorder").path(STORE_FILE)
    write_output(open_model(str(model), context.config.state_dir), store, out, "hidden", Budgets(budget))


def status_bytes(field: str) -> int:
    """A field of this process's status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _smallest(store: GraphStore, sampling: SamplingSizes, _: int, **fields: int) -> ProfilePlan:
    """Sample from disk though all would fit."""
    return plan_profile(store, sampling, 0, **fields)


FROM_DISK: dict[str, Any] = {
    "tasks.profile.plan_profile": _smallest,
    "tasks.prediction_rows._in_memory_bytes": lambda *_: 1 << 60,
}


def main() -> None:
    """Warm up, so that libraries and compiled code are there; then measure."""
    folder, case = Path(sys.argv[1]), json.loads(sys.argv[2])
    give_back_large_arrays()  # as the first stage with a budget does; a warm-up has none
    for number, warm in enumerate(case["warm"]):
        with ExitStack() as stack:
            for name, planned in FROM_DISK.items() if number else ():
                stack.enter_context(patch(name, planned))
            run_stages(folder / f"warm-{number}", warm)
    if case.get("group"):
        Path(case["group"], "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    sys.stdout.write(json.dumps(run_stages(folder / "measured", case["stages"])))


if __name__ == "__main__":
    main()
