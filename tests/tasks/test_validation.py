"""Validators score the same from memory and from disk, and refuse nodes that do not ascend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernels.nn.model import ModelSpec, build_model
from storage.blocks.io_stats import IoStats
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from tasks.in_memory import InMemory
from tasks.inference import ExactInference
from tasks.metrics import METRICS, Metric
from tasks.objective import build_objective
from tasks.quality import QualityMeter
from tasks.score_rows import ScoresInMemory, ScoresOnDisk
from tasks.tiled_inference import TiledInference
from tasks.validation import ExactValidator
from tests.storage.blocks.recut import store_of
from tests.tasks.training_graphs import NUM_CLASSES, OPTIONS, community_data

MB = 1 << 20
NONE = np.empty(0, np.int64)
DATA = community_data(600)
SPEC = ModelSpec("sage", DATA.rows.shape[1], 16, NUM_CLASSES, 2)


@pytest.mark.parametrize("metrics", [("accuracy",), METRICS], ids=str)
def test_memory_and_disk_score_the_same(tmp_path: Path, metrics: tuple[Metric, ...]) -> None:
    nodes, model = np.arange(0, 600, 2), build_model(SPEC, seed=1)
    objective = build_objective(np.maximum(DATA.labels, 0), nodes, NUM_CLASSES, "balanced")
    expected = ExactInference(DATA.topology, nodes, SPEC).run(model.eval(), DATA.features())
    with QualityMeter(objective, metrics, lambda: ScoresInMemory(MB)) as meter:
        meter.add(expected.logits, nodes)
        quality = meter.quality()
    source = InMemory(DATA.topology, DATA.features())
    inference = source.inference(nodes, SPEC, None, OPTIONS)
    from_memory = ExactValidator(inference, objective, nodes, lambda _: ScoresInMemory(MB)).score(model, metrics)
    assert from_memory.metrics == quality.metrics
    assert from_memory.loss == pytest.approx(quality.loss, rel=1e-6)
    assert from_memory.adjacency_reads == expected.adjacency_reads
    store = store_of(
        tmp_path / "graph.h5",
        4096,
        indptr=DATA.topology.indptr,
        indices=DATA.topology.indices,
        features=DATA.rows,
    )
    with (
        StoredTopology(store, NONE, buffer_bytes=MB) as topology,
        StoredFeatures(store, NONE, buffer_bytes=MB) as features,
    ):
        tiled = TiledInference(topology, features, nodes, SPEC, budget_bytes=2 * MB, directory=tmp_path)
        tiled._tile_bytes = 2000
        validator = ExactValidator(
            tiled, objective, nodes, lambda num_rows: ScoresOnDisk(tmp_path, num_rows, IoStats(), 800)
        )
        for _ in range(2):  # as after each epoch
            from_disk = validator.score(model, metrics)
            assert from_disk.metrics == pytest.approx(quality.metrics, rel=1e-6)
            assert from_disk.loss == pytest.approx(quality.loss, rel=1e-5)


@pytest.mark.parametrize(("nodes", "problem"), [([3, 1], "ascend"), ([1, 1], "ascend"), ([1, 600], r"lie in \[0, 600")])
def test_nodes_that_do_not_ascend_are_refused(tmp_path: Path, nodes: list[int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        InMemory(DATA.topology, DATA.features()).inference(np.array(nodes), SPEC, None, OPTIONS)
    indptr, indices = DATA.topology.indptr, DATA.topology.indices
    store = store_of(tmp_path / "graph.h5", 4096, indptr=indptr, indices=indices, features=DATA.rows)
    with (
        StoredTopology(store, NONE, buffer_bytes=MB) as topology,
        StoredFeatures(store, NONE, buffer_bytes=MB) as features,
        pytest.raises(ValueError, match=problem),
    ):
        TiledInference(topology, features, np.array(nodes), SPEC, budget_bytes=2 * MB, directory=tmp_path)
