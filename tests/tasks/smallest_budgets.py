"""Runs each stage of a small graph in this process at budgets from the smallest one up, and prints what it took.

`python -m tests.tasks.smallest_budgets FOLDER CASE`, where CASE is a JSON object: `graph` (arguments of `write_graph`),
`overrides` (a list), `stages` and `factors` (of the smallest budget); without factors only what is refused is tried.
"""

from __future__ import annotations

import ctypes
import gc
import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import polars as pl

from conf.load import load_config
from kernels.cpu.heap import give_back_large_arrays
from storage.errors import BudgetError
from tasks.budgets import Budgets
from tasks.model_reference import open_model
from tasks.predict import write_output
from tasks.run_context import RunContext
from tasks.sources import STORE_FILE
from tests.tasks.budgeted_stages import TASKS, status_bytes

PREDICT = "predict"
_NAMED = re.compile(r"set host_budget to at least (\d+)")
Budget = dict[str, Any]


def write_graph(
    folder: Path,
    num_nodes: int,
    num_edges: int,
    *,
    dim: int = 32,
    dtype: str = "float32",
    classes: int = 7,
    hub: int = 0,
    labelled: float = 1.0,
) -> list[str]:
    """Write a graph, one node of it with many neighbors if asked for; the settings that read it."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    ends = (rng.random((num_edges, 2)) ** 3 * num_nodes).astype(np.int64)
    if hub:
        ends = np.concatenate([ends, np.stack([rng.integers(0, num_nodes, hub), np.full(hub, num_nodes // 2)], axis=1)])
    pl.DataFrame({"source": ends[:, 0], "target": ends[:, 1]}).write_parquet(folder / "edges.parquet")
    labels = rng.integers(0, classes, num_nodes)
    labels[:classes] = np.arange(classes)
    labels[int(labelled * num_nodes) :] = -1
    np.save(folder / "labels.npy", labels)
    files = [f"data.edges={folder / 'edges.parquet'}", f"data.labels={folder / 'labels.npy'}", "data.format=parquet"]
    if not dim:
        files.append("data.features=")
    else:
        np.save(folder / "features.npy", rng.standard_normal((num_nodes, dim), np.float32).astype(dtype))
        files.append(f"data.features={folder / 'features.npy'}")
    return [*files, f"data.num_nodes={num_nodes}"]


class Stages:
    """The stages of one configuration, each at any budget."""

    def __init__(self, folder: Path, overrides: Sequence[str]) -> None:
        self._model, self.peak = folder, 0
        self._folder, self._overrides = folder, [*overrides, f"state_dir={folder / 'state'}", "layout.keep_ingest=true"]

    def context(self, budget: int | None, before: Sequence[str]) -> RunContext:
        """Open the artifacts of the stages before; build those that are not there."""
        parent = MagicMock()
        parent.key = "measured"
        own = [] if budget is None else [f"host_budget={budget}"]
        context = RunContext(load_config("edge_list", [*self._overrides, *own]), MagicMock(), parent)
        for stage in before:
            TASKS[stage].fn(context)
        return context

    def build(self, stage: str) -> None:
        """Build the stage and those before where they are not there."""
        context = self.context(None, [] if stage == PREDICT else _until(stage))
        context.close()
        if stage == "train":
            self._model = context.manifest(stage).directory

    def forget(self, stage: str) -> None:
        """Remove what the stage has built."""
        if stage not in (PREDICT, "train"):  # that one is always built anew
            context = self.context(None, _until(stage))
            context.close()
            shutil.rmtree(context.manifest(stage).directory)

    def peak_bytes(self, stage: str, budget: int) -> int:
        """Growth of this process while the stage is built anew; raises what it raises, and `peak` is what it took."""
        context = self.context(budget, _until("reorder") if stage == PREDICT else _until(stage)[:-1])
        work = partial(self._predict, context) if stage == PREDICT else partial(TASKS[stage].fn, context)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # else it would grow into what was freed before
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak becomes what is held now
        before = status_bytes("VmHWM")
        try:
            work()
        finally:
            self.peak = status_bytes("VmHWM") - before
            context.close()
            if stage in context.outcomes and stage != PREDICT:
                shutil.rmtree(context.manifest(stage).directory)
        return self.peak

    def _predict(self, context: RunContext) -> None:
        store, out = context.manifest("reorder").path(STORE_FILE), self._folder / "rows.npy"
        model = open_model(str(self._model), context.config.state_dir)
        write_output(model, store, out, "hidden", Budgets(context.config.host_budget))
        out.unlink()


def _until(stage: str) -> list[str]:
    return list(TASKS)[: list(TASKS).index(stage) + 1]


def smallest(run: Callable[[int], int]) -> int:
    """The budget that refusals come to, from that of one byte on."""
    budget = 1
    while (named := _refused(run, budget)) is not None:
        assert named > budget, (named, budget)
        budget = named
    return budget


def _refused(run: Callable[[int], int], budget: int) -> int | None:
    """The budget that a refusal names; None where there is none."""
    try:
        run(budget)
    except BudgetError as error:
        found = _NAMED.search(str(error))
        assert found is not None, error
        return int(found[1])
    return None


def _taken(run: Callable[[int], int], budget: int) -> Budget:
    """The peak, or what went wrong: the budgets and stages that follow are measured all the same."""
    try:
        peak = run(budget)
        return {"peak": peak if peak <= budget else run(budget)}  # code loaded for the first time is the libraries' own
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def measure(stages: Stages, stage: str, factors: Sequence[float] | None) -> list[Budget]:
    """What the stage takes below the smallest budget, where it must be refused, at it and above."""
    run = partial(stages.peak_bytes, stage)
    stages.forget(stage)
    least = smallest(run)
    found = list[Budget]()
    for budget in (1, least // 8, least // 4, least // 2, least - 1):
        refused = _refused(run, budget)
        found.append({"stage": stage, "budget": budget, "peak": stages.peak, "least": least, "refused": refused})
        sys.stderr.write(f"{json.dumps(found[-1])}\n")
    for budget in () if factors is None else (least, least + 1, *(int(factor * least) for factor in factors)):
        found.append({"stage": stage, "budget": budget} | _taken(run, budget))
        sys.stderr.write(f"{json.dumps(found[-1])}\n")
    stages.build(stage)
    return found


def main() -> None:
    """Build everything once; then measure."""
    folder, case = Path(sys.argv[1]), json.loads(sys.argv[2])
    give_back_large_arrays()  # as the first stage with a budget does
    files = write_graph(folder / "graph", **case["graph"])
    stages = Stages(folder, [*files, *case["overrides"]])
    last = case["stages"][-1]
    stages.build("train" if last == PREDICT else last)
    found = [one for stage in case["stages"] for one in measure(stages, stage, case["factors"])]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
