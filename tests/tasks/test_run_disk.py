"""The disk of a whole run: one budget over all stages, named before the first writes anything, and kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from conf.load import load_config
from storage.errors import BudgetError, MachineError
from tasks.build_cache import build_cache
from tasks.ingest import ingest_graph
from tasks.profile import profile_graph
from tasks.reorder import reorder_graph
from tasks.run_context import RunContext
from tasks.specs import STAGES
from tasks.train import train_model
from tests.spilling import DiskMeter, SpillMeter

TASKS = dict(zip(STAGES, (ingest_graph, reorder_graph, profile_graph, build_cache, train_model), strict=True))
DEMO = (
    "data.demo.nodes=60000", "data.demo.edges=600000", "layout.block_bytes=65536", "cache.device_budget=200kB",
    "training.epochs=1", "model.hidden=48", "sampling.batch_size=50", "sampling.fanouts=[4, 4]",
)  # fmt: skip
FROM_DISK = ("storage.mode=storage", "host_budget=48MB", "training.validation=exact")


def run(state: Path, *overrides: str, until: str = "train") -> RunContext:
    """Run stages as a flow does, with what a flow tells them."""
    parent = MagicMock()
    parent.key = "run"
    context = RunContext(load_config("demo", [*DEMO, f"state_dir={state}", *overrides]), MagicMock(), parent)
    context.until = until
    try:
        for stage in STAGES[: STAGES.index(until) + 1]:
            TASKS[stage].fn(context)
    finally:
        context.close()
    return context


def named(error: pytest.ExceptionInfo[Any]) -> int:
    found = re.search(r"set disk_budget to at least (\d+)", str(error.value))
    assert found, str(error.value)
    return int(found[1])


def files(state: Path) -> list[Path]:
    return [path for path in state.rglob("*") if path.is_file() and ".locks" not in path.parts]


@pytest.mark.parametrize(
    "settings",
    [(), ("layout.keep_ingest=true",), ("host_budget=40MB",), FROM_DISK],
    ids=["in memory", "keeping ingest", "external sort", "from disk"],
)
def test_the_smallest_budget_is_named_before_anything_is_written_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Sequence[str]
) -> None:
    until = "cache" if settings == ("host_budget=40MB",) else "train"
    with pytest.raises(BudgetError, match=r"^ingest needs \d+ bytes of disk .* what later stages take") as caught:
        run(tmp_path / "state", *settings, "disk_budget=1MB", until=until)
    assert files(tmp_path / "state") == []
    enough = named(caught)
    if settings != FROM_DISK:  # from disk, what is sure to do is named: the least is known once mini-batches are
        with pytest.raises(BudgetError, match=r"^ingest needs") as caught:
            run(tmp_path / "state", *settings, f"disk_budget={enough - 1}", until=until)
    meter = DiskMeter(tmp_path / "state", SpillMeter(monkeypatch))
    with meter.watching():
        run(tmp_path / "state", *settings, f"disk_budget={enough}", until=until)
    assert enough / 3 < meter.peak_bytes <= enough


def test_each_stage_counts_what_those_before_it_left(tmp_path: Path) -> None:
    held = 0
    for stage in STAGES[1:]:
        before = run(tmp_path / "state", until=STAGES[STAGES.index(stage) - 1])
        held = sum(outcome.manifest.present_bytes for outcome in before.outcomes.values())
        text = rf"^{stage} needs (\d+) bytes of disk at .* with the {held} that are there"
        with pytest.raises(BudgetError, match=text) as caught:
            run(tmp_path / "state", f"disk_budget={held}", until=stage)
        assert held < named(caught)
    assert held > 5_000_000


def test_a_disk_too_small_for_a_later_stage_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BudgetError) as caught:
        run(tmp_path / "state", "disk_budget=1MB", until="ingest")
    ingest = named(caught)
    monkeypatch.setattr("tasks.budgets.shutil.disk_usage", lambda _: MagicMock(free=ingest))
    run(tmp_path / "one", until="ingest")
    with pytest.raises(MachineError, match=r"^ingest needs \d+ bytes of disk .* with what later stages take and"):
        run(tmp_path / "all")
    assert files(tmp_path / "all") == []
