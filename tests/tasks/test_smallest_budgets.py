"""Every stage does with the smallest budget that it names, not with a byte less, and takes no more than any above."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.test_budgets_kept import ROOT, SPARE
from tests.tasks.test_memory_peaks import SPARE_BYTES

ALL = ("ingest", "reorder", "profile", "cache", "train", "predict")
SETTINGS = (
    "data.symmetrize=false",
    "data.train_fraction=0.02",
    "layout.block_bytes=64KiB",
    "profile.epochs=1",
    "profile.heldout_epochs=1",
    "sampling.batch_size=100",
    "sampling.superbatch=1",
    "sampling.fanouts=[5, 5]",
    "training.epochs=1",
    "model.hidden=16",
    "cache.device_budget=1MB",
)
ON_DISK = ("storage.mode=storage",)
PLAIN = {"num_nodes": 60_000, "num_edges": 1_000_000}
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "hub": (PLAIN | {"hub": 1_500_000}, ("sampling.fanouts=[5, -1]", *ON_DISK), ALL),
    "hub by hotness": (PLAIN | {"hub": 3_000_000}, ("layout.order=hotness", *ON_DISK), ("reorder", "profile")),
    "in memory": (PLAIN, (), ("cache", "train")),
    "no features": (PLAIN | {"dim": 0}, (), ("ingest", "reorder", "profile", "cache")),
    "wide rows": ({"num_nodes": 8000, "num_edges": 200_000, "dim": 1300}, ON_DISK, ALL),
    "float16": (PLAIN | {"dim": 100, "dtype": "float16"}, ON_DISK, ("ingest", "reorder", "train", "predict")),
    "many classes": ({"num_nodes": 30_000, "num_edges": 300_000, "classes": 500}, ON_DISK, ("train", "predict")),
    "sampled validation": (
        {"num_nodes": 30_000, "num_edges": 300_000, "classes": 200},
        ("training.validation=sampled", *ON_DISK),
        ("train",),
    ),
    "all neighbors": (PLAIN, ("sampling.fanouts=[-1, -1]", "sampling.batch_size=10", *ON_DISK), ("profile", "train")),
    "dropout": (
        {"num_nodes": 8000, "num_edges": 200_000, "dim": 1300},
        ("model.input_dropout=0.3", "model.dropout=0.5", "model.norm=batch", *ON_DISK),
        ("train",),
    ),
    "many nodes": ({"num_nodes": 1_500_000, "num_edges": 2_000_000, "dim": 8}, ON_DISK, ALL),
    "gcn": (PLAIN, ("model.kind=gcn", *ON_DISK), ("train", "predict")),
    "gat": (PLAIN, ("model.kind=gat", "model.heads=4", *ON_DISK), ("train", "predict")),
}


def found_of(folder: Path, asked: dict[str, Any]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.tasks.smallest_budgets", str(folder), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_budgets_far_too_small_are_refused_before_anything_of_the_graphs_size_is_taken(tmp_path: Path) -> None:
    """Labels, splits and the sets of a mini-batch alone take more than these budgets do."""
    graph = {"num_nodes": 600_000, "num_edges": 200_000, "dim": 2}
    stages, settings = ["ingest", "train", "predict"], [*SETTINGS, *ON_DISK]
    found = found_of(tmp_path, {"graph": graph, "overrides": settings, "stages": stages, "factors": None})
    assert {one["stage"] for one in found} == set(stages)
    wrong = [one for one in found if not is_kept(one)]
    assert not wrong, json.dumps(wrong, indent=1)


@pytest.mark.parametrize("case", ["hub", *(pytest.param(case, marks=pytest.mark.full) for case in list(CASES)[1:])])
def test_every_budget_from_the_smallest_on_is_kept(tmp_path: Path, case: str) -> None:
    graph, overrides, stages = CASES[case]
    factors = (1.01, 2, 10) if case != "hub" else (2,)
    asked = {"graph": graph, "overrides": [*SETTINGS, *overrides], "stages": stages, "factors": factors}
    found = found_of(tmp_path, asked)
    assert {one["stage"] for one in found} == set(stages)
    wrong = [one for one in found if not is_kept(one)]
    assert not wrong, json.dumps(wrong, indent=1)


def is_kept(one: dict[str, Any]) -> bool:
    """Whether a budget below the smallest was refused in its name, and what was taken stays within it either way."""
    if "error" in one or one["peak"] > SPARE * one["budget"] + SPARE_BYTES:
        return False
    if "least" not in one:
        return True
    budget, refused, least = one["budget"], one["refused"] or 0, one["least"]
    return bool(budget < refused <= least and (refused == least or budget < least - 1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"budget": 9, "error": "BudgetError: too small"},
        {"budget": 100_000_000, "peak": 150_000_000},
        {"budget": 9, "peak": 100_000_000, "least": 10, "refused": 10},
        {"budget": 9, "peak": 5, "least": 10, "refused": None},
        {"budget": 9, "peak": 5, "least": 10, "refused": 12},
        {"budget": 9, "peak": 5, "least": 20, "refused": 9},
        {"budget": 20, "peak": 5, "least": 21, "refused": 20},
    ],
)
def test_what_is_not_kept_is_found(wrong: dict[str, Any]) -> None:
    assert is_kept({"budget": 9, "peak": 5, "least": 10, "refused": 10})
    assert is_kept({"budget": 9, "peak": 5, "least": 20, "refused": 15})
    assert not is_kept(wrong)
