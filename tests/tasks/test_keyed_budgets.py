"""String ids, features and labels by id keep within a tenth of the data: resident memory, and the page cache too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cgroups import NoControlGroupsError, memory_group
from tests.keyed_graphs import NameIds, gapped_ids, settings, string_ids, write_keyed_graph

ROOT = Path(__file__).parents[2]
SPARE = 1.1
"""Ten percent for what nobody counts."""
SHARE = 10
PREPARE, ALL = 3, 5
"""Stages to the end of the profile, and to that of training with exact evaluation."""
OPTIONS = (
    "data.train_fraction=0.02",
    "data.valid_fraction=0.02",
    "profile.epochs=1",
    "profile.heldout_epochs=1",
    "sampling.batch_size=100",
    "sampling.superbatch=1",
    "sampling.fanouts=[5, 5]",
    "storage.mode=storage",
    "model.hidden=16",
    "training.epochs=1",
    "cache.device_budget=1MB",
)


def assert_kept(folder: Path, suffix: str, stages: int, budget: int, ids: NameIds = string_ids) -> None:
    """All stages in a process of its own, in a control group that allows the budget and ten percent."""
    write_keyed_graph(folder / "tiny", suffix, 3000, 30_000, 8, ids=ids)
    tiny, graph = ([*settings(folder / name, suffix), *OPTIONS] for name in ("tiny", "graph"))
    case: dict[str, Any] = {
        "warm": [["edge_list", [*tiny, f"host_budget={warm or ''}"], stages] for warm in (None, 200_000_000)],
        "stages": ["edge_list", [*graph, f"host_budget={budget}"], stages],
    }
    try:
        with memory_group("garden-keyed") as group:
            group.limit(int(SPARE * budget))
            measured = run(folder / "state", case | {"group": str(group.folder)})
            assert group.peak_bytes > budget / 2, "the group was charged for what was done in it"
    except NoControlGroupsError as reason:
        pytest.skip(f"NOT TESTED: {reason}")
    over = {stage: figures["peak_bytes"] / budget for stage, figures in measured.items()}
    assert all(share <= SPARE for share in over.values()), over


def run(state: Path, case: dict[str, Any]) -> dict[str, dict[str, float]]:
    command = [sys.executable, "-m", "tests.tasks.budgeted_stages", str(state), json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=900, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    measured: dict[str, dict[str, float]] = json.loads(done.stdout)
    return measured


def test_string_ids_and_tables_by_id_keep_a_tenth(tmp_path: Path) -> None:
    data_bytes = write_keyed_graph(tmp_path / "graph", ".parquet", 400_000, 1_500_000, 400)
    assert_kept(tmp_path, ".parquet", PREPARE, data_bytes // SHARE)


@pytest.mark.full
@pytest.mark.parametrize("ids", [string_ids, gapped_ids])
def test_ids_of_any_kind_are_trained_on_within_a_tenth(tmp_path: Path, ids: NameIds) -> None:
    """With a fifth of the nodes labelled: the outputs of all others would take more."""
    data_bytes = write_keyed_graph(tmp_path / "graph", ".parquet", 1_000_000, 6_000_000, 256, ids=ids, labelled=0.2)
    assert_kept(tmp_path, ".parquet", ALL, data_bytes // SHARE, ids)


@pytest.mark.full
def test_text_tables_keep_their_budget(tmp_path: Path) -> None:
    write_keyed_graph(tmp_path / "graph", ".csv", 200_000, 1_500_000, 100)
    assert_kept(tmp_path, ".csv", PREPARE, 80_000_000)
