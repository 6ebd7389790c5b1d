"""Training from disk within a budget of disk: spilled rows and samples keep to what it leaves, and change nothing."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import storage.blocks.hyperbatch
from kernels.nn.model import ModelSpec, build_model
from kernels.rng import Purpose
from kernels.sampler import shuffled_batches
from storage.blocks.drawn_hop import DrawnHop
from storage.blocks.io_stats import IoStats
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from storage.errors import BudgetError
from tasks.inference_sizes import inference_disk_bytes
from tasks.metrics import METRICS
from tasks.objective import OneClass
from tasks.on_disk import StorageOptions, open_on_disk
from tasks.score_rows import ScoreFile, ScoresOnDisk
from tasks.tiled_inference import TiledInference
from tasks.training_types import TrainOptions
from tasks.validation import ExactValidator
from tests.spilling import SpillMeter
from tests.storage.blocks.recut import store_of
from tests.tasks.test_on_disk import MB, NONE, equal_outcomes, skewed_data, train_on_disk, write_data
from tests.tasks.training_graphs import NUM_CLASSES, OPTIONS, Data, community_data

TAKEN = 5_000_000
"""Stands for what else the budget covers."""


def wide_data(num_nodes: int = 1200) -> Data:
    """Rows so wide that the smallest memory holds none of them."""
    data = community_data(num_nodes)
    return replace(data, rows=np.random.default_rng(0).standard_normal((num_nodes, 600)).astype(np.float32))


def named(error: pytest.ExceptionInfo[BudgetError], budget: str) -> int:
    found = re.search(rf"set {budget} to at least (\d+)", str(error.value))
    assert found, str(error.value)
    return int(found[1])


def smallest_memory(path: Path, options: TrainOptions, **storage: Any) -> int:
    with pytest.raises(BudgetError) as caught:
        train_on_disk(path, options, budget=MB, **storage)
    return named(caught, "host_budget")


@pytest.mark.parametrize("metric", ["accuracy", "roc_auc"])
@pytest.mark.parametrize("hyperbatch", [None, 1, 6])
def test_the_smallest_disk_budget_is_named_does_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hyperbatch: int | None, metric: Any
) -> None:
    """Scores of validation over sampled neighbors lie beside what is spilled."""
    data, options = wide_data(), replace(OPTIONS, batch_size=60, epochs=1, input_dropout=0.0, validation="sampled")
    options = replace(options, metric=metric)
    write_data(tmp_path / "graph.h5", data)
    expected, storage = data.train(options), {"hyperbatch": hyperbatch, "disk_taken": TAKEN}
    path, meter = tmp_path / "graph.h5", SpillMeter(monkeypatch)
    memory = smallest_memory(path, options, **storage, disk_budget=20_000)
    with pytest.raises(BudgetError, match="disk_budget leaves") as caught:
        train_on_disk(path, options, budget=memory, disk_budget=TAKEN + 20_000, **storage)
    assert not meter.peak_bytes, "refused before anything is written"
    enough = named(caught, "disk_budget")
    for disk_budget in (enough, enough + MB):
        meter.peak_bytes = 0
        found = train_on_disk(path, options, budget=memory, disk_budget=disk_budget, **storage)
        equal_outcomes(found, expected)
        assert 0 < meter.peak_bytes <= disk_budget - TAKEN
    with pytest.raises(BudgetError, match="disk_budget leaves"):
        train_on_disk(path, options, budget=memory, disk_budget=enough - 1, **storage)


def test_samples_wait_on_disk_where_the_budget_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they take memory: more of it is asked for."""
    data, options = community_data(3000), replace(OPTIONS, batch_size=20, epochs=1, fanouts=(10, 10))
    write_data(tmp_path / "graph.h5", data)
    path, expected, meter = tmp_path / "graph.h5", data.train(options), SpillMeter(monkeypatch)
    memory = []
    for disk_budget, spills in ((20_000_000, True), (800_000, False)):
        storage: dict[str, Any] = {"disk_budget": disk_budget, "hyperbatch": 60}
        memory.append(smallest_memory(path, options, **storage))
        asked = StorageOptions(host_budget=memory[-1], directory=tmp_path, **storage)
        with open_on_disk(path, NONE, NONE, options, asked) as opened:
            assert opened.source.plan.spills_samples == spills
        meter.peak_bytes = 0
        equal_outcomes(train_on_disk(path, options, budget=memory[-1], **storage), expected)
        assert meter.peak_bytes <= disk_budget
    assert memory[0] < memory[1]


@pytest.mark.parametrize(("free", "waits"), [(2_400_000, False), (1 << 30, True)], ids=["nearly full", "roomy"])
def test_without_a_budget_the_disk_is_kept_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, free: int, waits: bool
) -> None:
    """Neighbors wait there only where rows and samples leave room: they would take 9 MB."""
    data, options = community_data(3000), replace(OPTIONS, batch_size=20, epochs=1, fanouts=(10, 10))
    path, meter, waited = tmp_path / "graph.h5", SpillMeter(monkeypatch), list[int]()
    write_data(path, data)
    memory = smallest_memory(path, options, hyperbatch=60)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))

    class Counted(DrawnHop):
        """A hop whose neighbors wait."""

        def __init__(self, *arguments: Any) -> None:
            waited.append(1)
            super().__init__(*arguments)

    monkeypatch.setattr(storage.blocks.hyperbatch, "DrawnHop", Counted)
    asked = StorageOptions(host_budget=memory, directory=tmp_path, hyperbatch=60)
    batches = shuffled_batches(data.splits.train, options.batch_size, seed=0, epoch=0)
    with (
        open_on_disk(path, NONE, NONE, options, asked) as opened,
        opened.source.loader(options, Purpose.TRAIN) as loader,
        loader.epoch(batches, epoch=0) as stream,
    ):
        assert sum(batch.sample.num_seed_rows for batch in stream) == len(data.splits.train)
    assert 0 < meter.peak_bytes <= free
    assert bool(waited) == waits


def test_mini_batches_of_very_different_sizes_keep_to_the_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that came first are small: what a later one is refused for names a budget that does for all."""
    data, options = skewed_data(4000, 600), replace(OPTIONS, batch_size=2, epochs=1, fanouts=(10, 10))
    data = replace(data, rows=np.tile(data.rows, (1, 40)))
    write_data(tmp_path / "graph.h5", data)
    path, meter = tmp_path / "graph.h5", SpillMeter(monkeypatch)
    memory, expected = smallest_memory(path, options), data.train(options)
    memory *= 2
    disk_budget = 1
    for _ in range(3):
        meter.peak_bytes = 0
        try:
            found = train_on_disk(path, options, budget=memory, disk_budget=disk_budget)
            break
        except BudgetError as error:
            assert meter.peak_bytes <= disk_budget
            refusal = re.search(r"set disk_budget to at least (\d+)", str(error))
            assert refusal, str(error)
            disk_budget = int(refusal[1])
    else:
        pytest.fail("a budget that was named did not do")
    assert meter.peak_bytes <= disk_budget
    assert [report.loss for report in found.history] == [report.loss for report in expected.history]


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat", "mlp"])
@pytest.mark.parametrize("widths", [(30, 8, NUM_CLASSES), (8, 40, NUM_CLASSES), (8, 40, 50)], ids=str)
def test_layers_files_take_what_is_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, widths: tuple[int, int, int]
) -> None:
    data, meter = community_data(600), SpillMeter(monkeypatch)
    rows = np.random.default_rng(0).standard_normal((600, widths[0])).astype(np.float32)
    store = store_of(
        tmp_path / "graph.h5", 4096, indptr=data.topology.indptr, indices=data.topology.indices, features=rows
    )
    spec, scores = ModelSpec(kind, *widths, 3), ScoreFile(600, widths[2] + 1)
    with (
        StoredTopology(store, NONE, buffer_bytes=MB) as topology,
        StoredFeatures(store, NONE, buffer_bytes=MB) as features,
    ):
        degrees = data.degrees if kind == "gcn" else None
        inference = TiledInference(topology, features, None, spec, degrees=degrees, budget_bytes=MB, directory=tmp_path)
        for _ in inference.stream(build_model(spec, seed=0)):
            pass
        assert meter.peak_bytes == inference_disk_bytes(spec, 600)
        validator = ExactValidator(
            inference,
            OneClass(np.arange(600) % widths[2], None),
            np.arange(600),
            lambda num_rows: ScoresOnDisk(tmp_path, num_rows, IoStats(), MB),
        )
        validator.score(build_model(spec, seed=0), METRICS)
    assert meter.peak_bytes == inference_disk_bytes(spec, 600, scores)
    assert (meter.peak_bytes > inference_disk_bytes(spec, 600)) == (widths[2] == 50), "scores beside wide rows"


def test_evaluation_that_the_budget_does_not_hold_is_refused(tmp_path: Path) -> None:
    data, options = community_data(2000), replace(OPTIONS, epochs=1, hidden=64, batch_size=8)
    write_data(tmp_path / "graph.h5", data)
    scores = ScoreFile(len(data.splits.test), NUM_CLASSES + 1)
    evaluated = inference_disk_bytes(options.model_spec(8, NUM_CLASSES), 2000, scores)
    path, storage = tmp_path / "graph.h5", {"disk_taken": TAKEN}
    with pytest.raises(BudgetError, match="set disk_budget to at least") as caught:
        train_on_disk(path, options, disk_budget=TAKEN + evaluated - 1, **storage)
    assert named(caught, "disk_budget") == TAKEN + evaluated
    train_on_disk(path, options, disk_budget=TAKEN + evaluated, **storage)
