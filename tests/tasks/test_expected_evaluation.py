"""What exact evaluation is expected to move follows the arithmetic of evaluation itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tasks.expected_evaluation
import tasks.on_disk
from storage.graph_store import GraphStore
from tasks.expected_evaluation import evaluation_traffic, score_traffic
from tasks.on_disk import StorageOptions, open_on_disk
from tasks.roc_auc import RocAuc
from tasks.step_costs import HopShape
from tasks.tile_plan import plan_tiles
from tests.tasks.test_on_disk import MB, NONE, write_data
from tests.tasks.training_graphs import NUM_CLASSES, OPTIONS, community_data, with_many_labels


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


@pytest.mark.parametrize("many", [False, True])
def test_scores_that_are_ranked_pass_by_as_often_as_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, many: bool
) -> None:
    data, path = community_data(3000), tmp_path / "graph.h5"
    data = with_many_labels(data) if many else data
    write_data(path, data)
    options, memory = replace(OPTIONS, metric="roc_auc"), 4000 if many else 2000
    monkeypatch.setattr(tasks.on_disk, "tile_budget", lambda *_: memory)
    monkeypatch.setattr(tasks.expected_evaluation, "tile_budget", lambda *_: memory)
    asked = StorageOptions(host_budget=16 * MB, directory=tmp_path)
    with GraphStore.open(path) as store, open_on_disk(path, NONE, NONE, options, asked) as opened:
        source, nodes = opened.source, opened.splits.valid
        ranked, before = RocAuc(source.score_rows(len(nodes), options)), source.stats.counts()
        scores = np.random.default_rng(0).random((len(nodes), NUM_CLASSES), np.float32)
        labels: Any = opened.labels[nodes]
        ranked.add(scores, labels.astype(np.int8 if many else np.int64))
        assert ranked.value() is not None
        found = source.stats.counts().since(before)
        ranked._rows.close()
        spec = options.model_spec(data.rows.shape[1], NUM_CLASSES)
        read, written = score_traffic(store.info, spec, source.plan)
    assert found.write_bytes == pytest.approx(written, rel=0.1)  # nodes without a label are not ranked
    assert 0.8 * read <= found.read_bytes <= read
    assert read > 2 * written, "they do not fit in memory"
