"""What exact evaluation is expected to move follows the arithmetic of evaluation itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tasks.expected_evaluation
import tasks.on_disk
from storage.graph_store import GraphStore
from tasks.expected_evaluation import evaluation_traffic
from tasks.on_disk import StorageOptions, open_on_disk
from tasks.step_costs import HopShape
from tasks.tile_plan import plan_tiles
from tests.tasks.test_on_disk import MB, NONE, write_data
from tests.tasks.training_graphs import NUM_CLASSES, OPTIONS, community_data


def test_tiles_are_expected_to_have_the_memory_that_they_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores, and all else that is beside tiles, are taken off in both."""
    data, path = community_data(3000), tmp_path / "graph.h5"
    write_data(path, data)
    expected, given = set[int](), set[int]()

    def planned(sizes: Any, budget_bytes: int, disk_bytes: int) -> Any:
        expected.add(budget_bytes)
        return plan_tiles(sizes, budget_bytes, disk_bytes)

    monkeypatch.setattr(tasks.expected_evaluation, "plan_tiles", planned)
    monkeypatch.setattr(tasks.on_disk, "TiledInference", lambda *_, budget_bytes, **__: given.add(budget_bytes))
    spec, asked = (
        OPTIONS.model_spec(data.rows.shape[1], NUM_CLASSES),
        StorageOptions(host_budget=16 * MB, directory=tmp_path),
    )
    with GraphStore.open(path) as store, open_on_disk(path, NONE, NONE, OPTIONS, asked) as opened:
        opened.source.inference(np.arange(2000), spec, opened.degrees, OPTIONS)
        evaluation_traffic(
            store, spec, [HopShape(2000, 2900, 12_000), HopShape(2900, 3000, 18_000)], opened.source.plan
        )
    assert len(given) == 1
    assert expected == given
