"""Runs the stages of a configuration in this process and prints, as JSON, the memory and time that each took.

`python -m tests.tasks.budgeted_stages FOLDER CASE`, where CASE is a JSON object:
`warm` (a list; all but the first sample and predict from disk) and `stages` are [preset, overrides, number of stages];
where `warm` is empty, the stages themselves are run once before: all code that they take is loaded then.
`group` is the folder of a control group to join, if any; with `smallest`, a stage that refuses the budget gets the one
it names, and the group's limit follows. Evaluation after training is measured apart from it, as `evaluate`.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

from conf.load import load_config
from conf.schema import PipelineConfig
from kernels.cpu.heap import give_back_large_arrays
from storage.errors import BudgetError, MachineError
from storage.formats.base import GraphSource
from storage.graph_store import GraphStore
from storage.ingest import IngestOptions
from tasks.bounds import SamplingSizes
from tasks.budgets import Budgets
from tasks.build_cache import build_cache
from tasks.ingest import ingest_graph
from tasks.memory import IngestPlan, plan_ingest
from tasks.model_reference import open_model
from tasks.predict import write_output
from tasks.process_io import io_metrics, process_io
from tasks.profile import profile_graph
from tasks.profile_memory import ProfilePlan, profile_from_disk
from tasks.reorder import reorder_graph
from tasks.run_context import RunContext
from tasks.sources import STORE_FILE
from tasks.train import train_model
from tasks.validation import ExactValidator
from tests.cgroups import MemoryGroup

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
_SPARE = 1.1
_TRIES = 6
_A_LITTLE_MORE = 1.02


class PeakMeter:
    """Peak bytes above what was held before; those of evaluation from disk apart."""

    def __init__(self) -> None:
        ctypes.CDLL(None).malloc_trim(0)  # else it would grow into what was freed before
        _forget_peak()
        self._before, self.peak_bytes, self.evaluation_bytes = status_bytes("VmHWM"), 0, 0

    def note(self) -> None:
        """Add to the peak what there was since the last note."""
        self.peak_bytes = max(self.peak_bytes, status_bytes("VmHWM") - self._before)
        _forget_peak()

    def watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Evaluation whose peak is noted apart."""

        def watched_run(*arguments: Any) -> Any:
            self.note()
            outputs = run(*arguments)
            self.evaluation_bytes = max(self.evaluation_bytes, status_bytes("VmHWM") - self._before)
            _forget_peak()
            return outputs

        return watched_run


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak becomes what is held now


def set_budget(context: RunContext, config: PipelineConfig) -> None:
    """Go on under another budget."""
    context.config = config
    context.artifacts.budgets = Budgets(config.host_budget, config.disk_budget)


def within_budget(context: RunContext, work: Callable[[], object], group: MemoryGroup | None) -> None:
    """Run a stage in a group of what is held and the budget; where it refuses, with the smallest one that it names."""
    for _ in range(_TRIES):
        if group is not None and context.config.host_budget is not None:
            gc.collect()  # what a refused try held
            group.limit(group.held_bytes + int(_SPARE * context.config.host_budget))
        try:
            work()
            return
        except (BudgetError, MachineError) as error:  # the group leaves less than the stage needs
            named = re.search(r"at least ([0-9][0-9,]*)|needs ([0-9]+) bytes of memory", str(error))
            if named is None:
                raise
            budget = int((named[1] or named[2]).replace(",", ""))
        # What the kernel keeps for the group's processes is taken off the limit too.
        budget = max(budget, int(_A_LITTLE_MORE * int(context.config.host_budget or 0)))
        set_budget(context, context.config.model_copy(update={"host_budget": budget}))
    raise RuntimeError(f"refused {_TRIES} budgets, each named by the refusal before")


def run_stages(
    folder: Path, case: Case, *, smallest: bool = False, group: MemoryGroup | None = None
) -> dict[str, dict[str, float]]:
    """Run the first stages in a fresh state directory; peak bytes above what was held before, and seconds, by stage."""
    preset, overrides, count = case
    parent = MagicMock()
    parent.key = "measured"
    context = RunContext(load_config(preset, [*overrides, f"state_dir={folder}"]), MagicMock(), parent)
    measured, asked = dict[str, dict[str, float]](), context.config
    works: list[tuple[str, Callable[[], object]]] = [(name, partial(task.fn, context)) for name, task in TASKS.items()]
    works += [(f"{PREDICT} {suffix}", partial(predict, context, folder / f"rows.{suffix}")) for suffix in OUTPUTS]
    for name, work in works[:count]:
        meter, start, io = PeakMeter(), time.perf_counter(), process_io()
        with patch.object(ExactValidator, "score", meter.watched(ExactValidator.score)):
            if smallest:
                within_budget(context, work, group)
            else:
                work()
        meter.note()
        traffic = io_metrics(io, process_io(), 1.0)
        measured[name] = {
            "read_bytes": traffic.get("io/read_bytes", 0),
            "written_bytes": traffic.get("io/written_bytes", 0),
            "peak_bytes": meter.peak_bytes,
            "budget_bytes": int(context.config.host_budget or 0),
            "seconds": round(time.perf_counter() - start, 2),
            "artifact_bytes": context.outcomes[name].manifest.nbytes if name in TASKS else 0,
        }
        if meter.evaluation_bytes:
            measured["evaluate"] = measured[name] | {"peak_bytes": meter.evaluation_bytes}
        sys.stderr.write(f"{name}: {json.dumps(measured[name])}\n")  # a long run that is ended has said so much
        set_budget(context, asked)
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
    return profile_from_disk(store, sampling, 0, **fields)


def _sorted_on_disk(source: GraphSource, options: IngestOptions, _: int) -> IngestPlan:
    """Sort in scratch files though memory would do."""
    return plan_ingest(source, options, 0)


FROM_DISK: dict[str, Any] = {
    "tasks.memory.plan_ingest": _sorted_on_disk,
    "tasks.profile.plan_profile": _smallest,
    "tasks.prediction_rows._in_memory_bytes": lambda *_: 1 << 60,
}


def main() -> None:
    """Warm up, so that libraries and compiled code are there; then measure."""
    folder, case = Path(sys.argv[1]), json.loads(sys.argv[2])
    give_back_large_arrays()  # as the first stage with a budget does; a warm-up has none
    for number, warm in enumerate(case["warm"] or [case["stages"]]):
        with ExitStack() as stack:
            for name, planned in FROM_DISK.items() if number else ():
                stack.enter_context(patch(name, planned))
            run_stages(folder / f"warm-{number}", warm)
        shutil.rmtree(folder / f"warm-{number}")
    group = MemoryGroup.at(Path(case["group"])) if case.get("group") else None
    if group is not None:
        group.add(os.getpid())
    found = run_stages(folder / "measured", case["stages"], smallest=case.get("smallest", False), group=group)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
