"""Training from disk: the samples, losses and metrics of training in memory, whatever the budget and the blocks."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from conf.load import load_config
from kernels.cpu.heap import reused_heap
from kernels.mfg import SuperBatch
from kernels.nn.model import ModelSpec, build_model
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.tiered_rows import TieredRows
from kernels.topology import Topology
from storage.blocks.gathering import Gatherer, GatherOptions
from storage.blocks.hyperbatch import HyperbatchSampler, SamplingMemory
from storage.blocks.reader import BlockReader
from storage.blocks.row_file import RowFile
from storage.blocks.spill_room import ENDLESS, SpillRoom
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from storage.cache.plan import CachePlan
from storage.errors import BudgetError, ChecksumMismatchError, InputError, MachineError
from storage.graph_store import FEATURES, INDICES, GraphStore, write_store
from tasks import train_on_disk as train_stage
from tasks import training_epoch
from tasks.batch_check import check_bytes
from tasks.batch_sizes import BatchSizes
from tasks.hyperbatch_loader import HyperbatchLoader
from tasks.hyperbatch_options import HyperbatchOptions
from tasks.inference import ExactInference
from tasks.on_disk import StorageOptions, open_on_disk
from tasks.score_rows import ScoreFile
from tasks.scoring_memory import scoring_bytes
from tasks.storage_memory import StoragePlan, plan_storage
from tasks.storage_need import in_hand
from tasks.tiled_inference import TiledInference
from tasks.trainer import train_from
from tasks.training_reports import TrainResult
from tasks.training_types import TrainOptions
from tests.graphs import power_law_graph
from tests.storage.blocks.recut import store_of
from tests.storage.blocks.test_gathering import owner
from tests.storage.blocks.test_hyperbatch import same
from tests.tasks import killed_on_disk
from tests.tasks.test_tiled_inference import outputs_of
from tests.tasks.training_graphs import NUM_CLASSES, OPTIONS, Data, community_data, with_many_labels

MB = 1 << 20
NONE = np.empty(0, np.int64)


def write_data(path: Path, data: Data, **changes: Any) -> None:
    parts = data.splits
    contents = {
        "indptr": data.topology.indptr,
        "indices": data.topology.indices,
        "features": data.rows,
        "labels": data.labels,
        "splits": {"train": parts.train, "valid": parts.valid, "test": parts.test},
        "block_bytes": 4096,
    }
    write_store(path, **(contents | changes))


def train_on_disk(
    path: Path, options: TrainOptions, cached: Any = NONE, *, budget: int = 64 * MB, **storage: Any
) -> TrainResult:
    asked = StorageOptions(host_budget=budget, directory=path.parent, **storage)
    with open_on_disk(path, cached, cached, options, asked) as data:
        arguments = (data.source, data.labels, data.splits, data.degrees, options)
        return train_from(*arguments, num_classes=data.num_classes)


def equal_outcomes(one: TrainResult, other: TrainResult) -> None:
    """Losses and weights to the bit; exact evaluation adds its sums in another order."""
    assert [report.loss for report in one.history] == [report.loss for report in other.history]
    for name, tensor in one.state_dict.items():
        assert torch.equal(tensor, other.state_dict[name]), name
    for a, b in zip(one.history, other.history, strict=True):
        assert a.valid_accuracy == b.valid_accuracy
        assert a.valid_loss == pytest.approx(b.valid_loss, rel=1e-5)
        assert a.adjacency_reads == b.adjacency_reads
    assert one.test_metrics == pytest.approx(other.test_metrics, rel=1e-6)


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat", "mlp"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
def test_losses_and_weights_are_those_of_training_in_memory(tmp_path: Path, kind: Any, dtype: Any) -> None:
    data = community_data(dtype=dtype)
    write_data(tmp_path / "graph.h5", data)
    fanouts = () if kind == "mlp" else OPTIONS.fanouts
    options = replace(OPTIONS, kind=kind, fanouts=fanouts, epochs=2, input_dropout=0.0)
    expected = data.with_adjacency_cache(20).train(options, cached=20)
    equal_outcomes(train_on_disk(tmp_path / "graph.h5", options, np.arange(20)), expected)


@pytest.mark.parametrize(
    "storage",
    [{"hyperbatch": 1}, {"hyperbatch": 3}, {"hyperbatch": 100}, {"keep": "mean"}, {"budget": 11 * MB}],
    ids=str,
)
def test_hyperbatches_caches_and_budgets_change_nothing(tmp_path: Path, storage: dict[str, Any]) -> None:
    data = community_data()
    write_data(tmp_path / "graph.h5", data)
    options = replace(OPTIONS, accumulate=2, validation="sampled")
    equal_outcomes(train_on_disk(tmp_path / "graph.h5", options, **storage), data.train(options))


def test_many_labels_and_threads(tmp_path: Path) -> None:
    data = with_many_labels(community_data())
    write_data(tmp_path / "graph.h5", data)
    options = replace(OPTIONS, epochs=2, threads=3, metric="macro_f1")
    equal_outcomes(train_on_disk(tmp_path / "graph.h5", options), data.train(options))


def test_goes_on_from_a_checkpoint_of_either_mode(tmp_path: Path) -> None:
    data = community_data()
    write_data(tmp_path / "graph.h5", data)
    expected = data.train(OPTIONS)
    for first_on_disk in (True, False):
        path = tmp_path / f"checkpoint-{first_on_disk}.pt"
        half, whole = (replace(OPTIONS, epochs=epochs, checkpoint_path=path) for epochs in (2, OPTIONS.epochs))
        # The number of epochs is part of what a checkpoint belongs to, so the half run is stopped after two.
        with pytest.raises(KeyboardInterrupt):
            stop_after(2, tmp_path / "graph.h5", data, whole, on_disk=first_on_disk)
        resumed = data.train(whole) if first_on_disk else train_on_disk(tmp_path / "graph.h5", whole)
        assert resumed.resumed_epochs == half.epochs
        equal_outcomes(resumed, expected)


def stop_after(epochs: int, path: Path, data: Data, options: TrainOptions, *, on_disk: bool) -> None:
    def stop(report: Any) -> None:
        if report.epoch == epochs - 1:
            raise KeyboardInterrupt

    if not on_disk:
        data.train(options, on_epoch=stop)
        return
    with open_on_disk(path, NONE, NONE, options, StorageOptions(host_budget=64 * MB, directory=path.parent)) as found:
        arguments = (found.source, found.labels, found.splits, found.degrees, options)
        train_from(*arguments, num_classes=found.num_classes, on_epoch=stop)


@pytest.mark.parametrize("budget", [1 << 20, 5 << 20])
def test_a_budget_too_small_names_one_that_does(tmp_path: Path, budget: int) -> None:
    data = community_data()
    write_data(tmp_path / "graph.h5", data)
    with pytest.raises(BudgetError, match="set host_budget to at least") as caught:
        train_on_disk(tmp_path / "graph.h5", OPTIONS, budget=budget)
    enough = int(str(caught.value).split("at least ")[1].split(",")[0])
    equal_outcomes(train_on_disk(tmp_path / "graph.h5", OPTIONS, budget=enough), data.train(OPTIONS))


@pytest.mark.parametrize(
    ("threads", "block_bytes", "ways"),
    [
        (2, 4096, "smaller sampling.batch_size or fanouts"),
        (400, 4096, "smaller sampling.batch_size or fanouts or fewer sampling.threads"),
        (2, 16 * MB, "smaller sampling.batch_size or fanouts or a smaller layout.block_bytes"),
    ],
)
def test_a_budget_too_small_names_what_takes_the_memory(
    tmp_path: Path, threads: int, block_bytes: int, ways: str
) -> None:
    write_data(tmp_path / "graph.h5", community_data(), block_bytes=block_bytes)
    with pytest.raises(BudgetError, match=f"or use {ways}$"):
        train_on_disk(tmp_path / "graph.h5", replace(OPTIONS, threads=threads), budget=MB)


@pytest.mark.parametrize("budget", ["host_budget=1GB", "host_budget="])
def test_free_memory_is_blamed_where_it_is_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str
) -> None:
    write_data(tmp_path / "graph.h5", community_data())
    run: Any = SimpleNamespace(config=load_config("demo", ["storage.mode=storage", budget]))
    monkeypatch.setattr(train_stage, "available_memory", lambda: 4 * MB)
    monkeypatch.setattr(CachePlan, "load", lambda _: SimpleNamespace(feature_ids=NONE, adjacency_ids=NONE))
    paths = (tmp_path / "graph.h5", tmp_path / "plan.h5")
    with pytest.raises(MachineError, match="of those that are free may be taken: free some"):
        train_stage.train_on_disk(run, *paths, OPTIONS, print, data_digest="", directory=tmp_path / "spill")


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("validation", ["exact", "sampled"])
@pytest.mark.parametrize("metric", ["accuracy", "roc_auc"])
def test_outputs_of_scored_nodes_take_no_memory(tmp_path: Path, split: str, validation: Any, metric: Any) -> None:
    """A split of many nodes and many classes: what is scored at once is in the budget, and pieces of a file.

    They take the place of mini-batches where none live beside them.
    """
    data, num_classes, few = community_data(3000), 2000, 9
    labels = data.labels.copy()
    labels[0] = num_classes - 1
    options = replace(OPTIONS, validation=validation, metric=metric)

    def smallest(nodes: Any) -> int:
        splits = {"train": data.splits.train, "valid": data.splits.valid[:few], "test": data.splits.test[:few]}
        write_data(tmp_path / "graph.h5", data, labels=labels, splits=splits | {split: nodes})
        with pytest.raises(BudgetError) as caught:
            train_on_disk(tmp_path / "graph.h5", options, budget=1)
        assert caught.value.needed is not None
        return caught.value.needed

    nodes = np.arange(len(labels))
    scored = scoring_bytes(len(nodes), num_classes, many_labels=False)
    file, ids = ScoreFile(len(nodes), num_classes + 1), 2 * 8 * len(nodes)
    more = smallest(nodes) - smallest(nodes[:few])
    times = 2 if validation == "sampled" else 1  # for validation beside mini-batches, and for the test
    assert more <= times * (scored + file.memory_bytes) + ids < 8 * num_classes * len(nodes) // 3
    if (split, validation) == ("valid", "sampled"):
        little = scoring_bytes(few, num_classes, many_labels=False)
        assert more >= scored - little + (file.memory_bytes // 2 if metric == "roc_auc" else 0), "beside mini-batches"


@pytest.mark.parametrize("validation", ["exact", "sampled"])
@pytest.mark.parametrize("many", [False, True])
def test_curves_are_those_of_training_in_memory(tmp_path: Path, validation: Any, many: bool) -> None:
    """Validation that ranks scores: from the smallest budget on, and the test does so too."""
    data = with_many_labels(community_data()) if many else community_data()
    write_data(tmp_path / "graph.h5", data)
    options = replace(OPTIONS, epochs=2, metric="roc_auc", validation=validation)
    with pytest.raises(BudgetError) as caught:
        train_on_disk(tmp_path / "graph.h5", options, budget=1)
    assert caught.value.needed is not None
    found, expected = train_on_disk(tmp_path / "graph.h5", options, budget=caught.value.needed), data.train(options)
    equal_outcomes(found, expected)
    valid = [(one.valid_metric, other.valid_metric) for one, other in zip(found.history, expected.history, strict=True)]
    assert all(one is not None and one == pytest.approx(other, rel=1e-6) for one, other in valid)
    assert [path.name for path in tmp_path.iterdir()] == ["graph.h5"]


def test_steps_reuse_the_memory_that_is_planned_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epoch by epoch from disk, for evaluation needs it in between; a graph in memory has no budget to keep."""
    data, options, asked = community_data(400), replace(OPTIONS, epochs=2), list[int]()

    def spied(nbytes: int) -> AbstractContextManager[None]:
        asked.append(nbytes)
        return reused_heap(nbytes)

    monkeypatch.setattr(training_epoch, "reused_heap", spied)
    write_data(tmp_path / "graph.h5", data)
    storage = StorageOptions(host_budget=64 * MB, directory=tmp_path)
    with open_on_disk(tmp_path / "graph.h5", NONE, NONE, options, storage) as opened:
        arguments = (opened.source, opened.labels, opened.splits, opened.degrees, options)
        train_from(*arguments, num_classes=opened.num_classes)
        planned = opened.source.plan.parts["training step"]
    assert asked == [planned, planned]
    assert planned > 0
    data.train(options)
    assert asked[2:] == [0, 0]


def skewed_data(num_nodes: int, num_train: int) -> Data:
    """Few nodes with many neighbors: mini-batches of few seeds differ in size many times."""
    data, rng = community_data(num_nodes), np.random.default_rng(0)
    degree_N = np.minimum(rng.zipf(1.6, num_nodes), 500)
    indptr = np.concatenate([[0], np.cumsum(degree_N)]).astype(np.int64)
    topology = Topology.in_memory(indptr, rng.integers(0, num_nodes, indptr[-1]).astype(np.int32))
    return replace(data, topology=topology, splits=replace(data.splits, train=data.splits.train[:num_train]))


@pytest.mark.parametrize("budget", [64 * MB, 8 << 30])
@pytest.mark.parametrize("batch_size", [2, 16])
def test_mini_batches_of_very_different_sizes(tmp_path: Path, batch_size: int, budget: int) -> None:
    data, options = skewed_data(4000, 600), replace(OPTIONS, batch_size=batch_size, epochs=1, fanouts=(10, 10))
    write_data(tmp_path / "graph.h5", data)
    equal_outcomes(train_on_disk(tmp_path / "graph.h5", options, budget=budget), data.train(options))


@pytest.mark.parametrize("spills", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("memory", [None, SamplingMemory(1, 1), SamplingMemory(60_000, 60_000)], ids=str)
def test_samples_on_disk_and_hyperbatches_that_end_early_change_nothing(
    tmp_path: Path, memory: SamplingMemory | None, *, waits: bool, spills: bool
) -> None:
    memory = None if memory is None else replace(memory, directory=tmp_path if waits else None)
    data = skewed_data(4000, 300)
    write_data(tmp_path / "graph.h5", data)
    store, before = GraphStore.open(tmp_path / "graph.h5"), open_spills()
    batches = np.array_split(data.splits.train, 30)
    expected = NeighborSampler(data.topology, (10, 10), seed=0, purpose=Purpose.TRAIN)
    with (
        StoredTopology(store, NONE, buffer_bytes=MB) as topology,
        StoredFeatures(store, NONE, buffer_bytes=MB) as features,
    ):
        sampler = HyperbatchSampler(topology, (10, 10), seed=0, purpose=Purpose.TRAIN)
        options = HyperbatchOptions(8, GatherOptions(4096, MB, tmp_path), memory, spills)
        with HyperbatchLoader(sampler, features, options).epoch(batches, epoch=1) as stream:
            found = list(stream)
            wanted = expected.sample(batches, epoch=1, first_batch=0)
            same(SuperBatch(tuple(one.sample for one in found), wanted.adjacency_reads), wanted)
            assert stream.stats.adjacency_reads == wanted.adjacency_reads
        for one in found:
            assert isinstance(one.rows, TieredRows)
            assert np.array_equal(one.rows.gather(), data.rows[one.sample.input_nodes])
        assert open_spills() == before


def plan_for(path: Path, budget: int, largest: int, **options: Any) -> StoragePlan:
    """Shares for mini-batches of 20,000 nodes, if they may get so many times as large."""
    store, sizes = GraphStore.open(path), BatchSizes(20_000, 60_000, 10_000, 4, 200_000)
    return plan_storage(
        store, budget, sizes, num_batches=100, kept_bytes=0, evaluation_bytes=0,
        threads=2, largest=sizes.times(largest), shared_nodes=5000, **options,
    )  # fmt: skip


def test_room_for_larger_mini_batches_is_kept_for_those_in_flight(tmp_path: Path) -> None:
    """Kept for each one of a hyperbatch, the samples would take twice the memory."""
    rows = np.zeros((200_000, 64), np.float32)
    indptr, indices = power_law_graph(200_000, 2_000_000)
    write_store(tmp_path / "graph.h5", indptr=indptr, indices=indices, features=rows, block_bytes=1 << 16)
    budget = 200 * MB
    plain, roomy = (plan_for(tmp_path / "graph.h5", budget, largest, hyperbatch=20) for largest in (1, 4))
    assert max(plain.total, roomy.total) <= budget
    assert roomy.parts["rows at hand"] == pytest.approx(2 * plain.parts["rows at hand"], rel=1e-3)
    assert (roomy.hyperbatch, roomy.spills_samples) == (plain.hyperbatch, plain.spills_samples)
    assert roomy.parts["samples"] == plain.parts["samples"]
    tight = plan_for(tmp_path / "graph.h5", 48 * MB, 1)
    assert tight.spills_samples
    room = SpillRoom(2 * (20_000 * 256 + 4096))  # rows of two mini-batches
    assert not plan_for(tmp_path / "graph.h5", 48 * MB, 1, room=room).spills_samples


@pytest.mark.parametrize("spills", [False, True])
@pytest.mark.parametrize("hyperbatch", [None, 20])
def test_a_mini_batch_in_hand_takes_nothing_of_those_that_wait(
    tmp_path: Path, hyperbatch: int | None, *, spills: bool
) -> None:
    """What its rows take beyond their share is what nobody else uses meanwhile."""
    rows, (indptr, indices) = np.zeros((2000, 64), np.float32), power_law_graph(2000, 20_000)
    write_store(tmp_path / "graph.h5", indptr=indptr, indices=indices, features=rows)
    room = ENDLESS if spills else SpillRoom(2 * (160_000 * 256 + 4096))
    plan = plan_for(tmp_path / "graph.h5", 130 * MB, 8, hyperbatch=hyperbatch, room=room)
    accepted = 0
    for percent in range(100, 800, 2):
        found = BatchSizes(20_000, 60_000, 10_000, 4, 200_000).times(percent / 100)
        needed = in_hand(found, 2, 256)
        try:
            check_bytes(plan, found, threads=2, row_bytes=256)
        except BudgetError:
            break
        accepted = percent
        spare = plan.budget - plan.total
        assert sum(needed.values()) <= sum(plan.parts[name] for name in needed) + spare
    assert 100 <= accepted < 798


def test_every_budget_from_the_smallest_on_does(tmp_path: Path) -> None:
    """Where offsets would be held whole, and nothing would be left of the budget, they stay on disk."""
    num_nodes = 700_000
    indptr, indices = np.arange(num_nodes + 1) * 2, np.arange(2 * num_nodes, dtype=np.int32) // 2
    rows = np.zeros((num_nodes, 1), np.float32)
    write_store(tmp_path / "graph.h5", indptr=indptr, indices=indices, features=rows, block_bytes=1 << 14)
    for nodes in (*range(20_000, 60_000, 1000), 80_000, 100_000, 120_000):
        sizes = BatchSizes(nodes, 3 * nodes, nodes // 3, 4, nodes * 4, nodes * 100)
        with GraphStore.open(tmp_path / "graph.h5") as store:
            plan = partial(
                plan_storage, store, sizes=sizes, num_batches=500, kept_bytes=0, evaluation_bytes=MB, threads=2,
                hyperbatch=16, largest=sizes.times(4),
            )  # fmt: skip
            with pytest.raises(BudgetError) as caught:
                plan(1)
            smallest = int(str(caught.value).split("at least ")[1].split(",")[0])
            for budget in range(smallest, 2 * smallest, MB):
                assert plan(budget).total <= budget


@pytest.mark.parametrize("hyperbatch", [None, 1])
def test_a_mini_batch_larger_than_planned_names_a_budget_that_does(tmp_path: Path, hyperbatch: int | None) -> None:
    data, options = skewed_data(20_000, 400), replace(OPTIONS, batch_size=4, epochs=1, fanouts=(100, 100))
    data = replace(
        data, rows=np.tile(data.rows, (1, 16))
    )  # more than what evaluation leaves while nothing is evaluated
    write_data(tmp_path / "graph.h5", data)
    with pytest.raises(BudgetError) as caught:
        train_on_disk(tmp_path / "graph.h5", options, budget=1 * MB, hyperbatch=hyperbatch)
    smallest = int(str(caught.value).split("at least ")[1].split(",")[0])
    with pytest.raises(BudgetError, match="the first ones were smaller") as caught:
        train_on_disk(tmp_path / "graph.h5", options, budget=smallest, hyperbatch=hyperbatch)
    enough = int(str(caught.value).split("at least ")[1].split(",")[0])
    found = train_on_disk(tmp_path / "graph.h5", options, budget=enough, hyperbatch=hyperbatch)
    equal_outcomes(found, data.train(options))


HUB_EDGES = 2_000_000
LATE = 30


def data_with_hub(options: TrainOptions, *, is_seed: bool) -> Data:
    """A graph of lists of two entries, but for one of 8 MB: of a late seed, or of a neighbor of that seed alone."""
    data = community_data(4000)
    data = replace(data, splits=replace(data.splits, train=data.splits.train[: 2 * LATE]))
    seed = int(shuffled_batches(data.splits.train, 1, seed=options.seed, epoch=0)[LATE][0])
    hub = seed if is_seed else int(np.setdiff1d(np.arange(4000), data.splits.train)[-1])
    degree_N = np.full(4000, 2)
    degree_N[hub] = HUB_EDGES
    indptr = np.concatenate([[0], np.cumsum(degree_N)])
    indices = np.random.default_rng(0).integers(0, 4000, indptr[-1]).astype(np.int32)
    indices[np.flatnonzero(indices == hub)] = (hub + 1) % 4000
    if not is_seed:
        indices[indptr[seed]] = hub
    return replace(data, topology=Topology.in_memory(indptr, indices))


@pytest.mark.parametrize("fanouts", [(-1, -1), (1_500_000, 2)])
def test_a_hub_that_comes_late_is_refused_before_its_list_is_read(tmp_path: Path, fanouts: tuple[int, ...]) -> None:
    """Drawn and numbered its list would take six times its bytes, in a budget of what tiny mini-batches need."""
    options = replace(OPTIONS, batch_size=1, epochs=1, fanouts=fanouts, patience=None)
    write_data(tmp_path / "graph.h5", data_with_hub(options, is_seed=False))
    with pytest.raises(BudgetError) as caught:
        train_on_disk(tmp_path / "graph.h5", options, budget=1)
    assert caught.value.needed is not None
    peaks = list[int]()
    for _ in range(2):  # the first time code is loaded
        tracemalloc.start()
        with pytest.raises(BudgetError, match="the first ones were smaller"):
            train_on_disk(tmp_path / "graph.h5", options, budget=caught.value.needed)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= caught.value.needed


@pytest.mark.parametrize("fanouts", [(-1, -1), (2, -1)])
def test_a_seed_with_a_long_list_is_foreseen_however_late_it_comes(tmp_path: Path, fanouts: tuple[int, ...]) -> None:
    options = replace(OPTIONS, batch_size=1, epochs=1, fanouts=fanouts, patience=None)
    data = data_with_hub(options, is_seed=True)
    write_data(tmp_path / "graph.h5", data)
    with pytest.raises(BudgetError) as caught:
        train_on_disk(tmp_path / "graph.h5", options, budget=1)
    assert caught.value.needed is not None
    assert caught.value.needed > 4 * HUB_EDGES
    equal_outcomes(train_on_disk(tmp_path / "graph.h5", options, budget=caught.value.needed), data.train(options))


def test_a_graph_without_labels_is_refused(tmp_path: Path) -> None:
    write_data(tmp_path / "graph.h5", community_data(), labels=None)
    with pytest.raises(InputError, match="no labels"):
        train_on_disk(tmp_path / "graph.h5", OPTIONS)


def test_damage_ends_training_with_the_place(tmp_path: Path) -> None:
    data, path = community_data(), tmp_path / "graph.h5"
    write_data(path, data)
    with path.open("r+b") as file:
        file.seek(GraphStore.open(path).extent(FEATURES).offset + 5000)
        file.write(b"?")
    with pytest.raises(ChecksumMismatchError, match="block 1 of features/x"):
        train_on_disk(path, OPTIONS)


def open_spills() -> int:
    """Descriptors of files without a name."""
    links = list(Path("/proc/self/fd").iterdir())
    return sum("(deleted)" in str(link.readlink()) for link in links if link.is_symlink())


@pytest.mark.parametrize("leaves_after", [0, 1, 3, 5])
def test_an_epoch_left_early_closes_its_spill_files(tmp_path: Path, leaves_after: int) -> None:
    data = community_data(1000)
    write_data(tmp_path / "graph.h5", data)
    store, train = GraphStore.open(tmp_path / "graph.h5"), data.splits.train
    before = open_spills()
    with (
        StoredTopology(store, NONE, buffer_bytes=MB) as topology,
        StoredFeatures(store, NONE, buffer_bytes=MB) as features,
    ):
        sampler = HyperbatchSampler(topology, (4, 4), seed=0, purpose=Purpose.TRAIN)
        options = HyperbatchOptions(4, GatherOptions(4096, MB, tmp_path))
        loader, batches = HyperbatchLoader(sampler, features, options), np.array_split(train, 12)
        stream = loader.epoch(batches, epoch=0)
        with stream:
            mini_batches = iter(stream)
            for _ in range(leaves_after):
                next(mini_batches)
            while not open_spills() > before:
                time.sleep(0.01)
        assert open_spills() == before


def test_no_more_caches_are_held_than_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one hyperbatch is gathered, the cache of one other at most, however long the consumer waits."""
    data, caches, gather, alive = community_data(1000), list[weakref.ref[Any]](), Gatherer._gather, list[int]()
    write_data(tmp_path / "graph.h5", data)

    def counted(gatherer: Gatherer, *arguments: Any) -> Any:
        deadline = time.monotonic() + 1
        while sum(cache() is not None for cache in caches) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)  # the thread that reads may not have let go yet
        alive.append(sum(cache() is not None for cache in caches))
        group = gather(gatherer, *arguments)
        caches.append(weakref.ref(owner(group._cache_CD)))
        return group

    monkeypatch.setattr(Gatherer, "_gather", counted)
    store = GraphStore.open(tmp_path / "graph.h5")
    with (
        StoredTopology(store, NONE, buffer_bytes=MB) as topology,
        StoredFeatures(store, NONE, buffer_bytes=MB) as features,
    ):
        sampler = HyperbatchSampler(topology, (4, 4), seed=0, purpose=Purpose.TRAIN)
        loader = HyperbatchLoader(sampler, features, HyperbatchOptions(2, GatherOptions(MB, MB, tmp_path)))
        with loader.epoch(np.array_split(data.splits.train, 12), epoch=0) as stream:
            mini_batches = iter(stream)
            for _ in range(12):
                next(mini_batches)
                time.sleep(0.02)  # others are gathered meanwhile
    assert len(alive) == 6
    assert max(alive) <= 1


@pytest.mark.parametrize("slow", [FEATURES, INDICES])
def test_a_slow_disk_does_not_keep_who_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str) -> None:
    """Half a minute of reading lies before the first mini-batch, one block after the other."""
    data, read, reading = community_data(1000), BlockReader.read_into, threading.Event()
    contents = {"indptr": data.topology.indptr, "indices": data.topology.indices, "features": data.rows}
    store = store_of(tmp_path / "graph.h5", 64, **contents)

    def slowly(reader: BlockReader, *arguments: Any) -> None:
        if reader.extent.name == slow:
            reading.set()
            time.sleep(0.1)
        read(reader, *arguments)

    monkeypatch.setattr(BlockReader, "read_into", slowly)
    before = open_spills()
    with (
        StoredTopology(store, NONE, buffer_bytes=128) as topology,
        StoredFeatures(store, NONE, buffer_bytes=128) as features,
    ):
        sampler = HyperbatchSampler(topology, (4, 4), seed=0, purpose=Purpose.TRAIN)
        loader = HyperbatchLoader(sampler, features, HyperbatchOptions(4, GatherOptions(4096, MB, tmp_path)))
        with loader.epoch(np.array_split(data.splits.train, 8), epoch=0) as stream:
            assert reading.wait(20)
            start = time.monotonic()
        assert time.monotonic() - start < 4
        assert not any(thread.is_alive() for thread in stream._threads)
        assert open_spills() == before


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat", "mlp"])
@pytest.mark.parametrize("hidden", [8, 24])
@pytest.mark.parametrize("block_bytes", [24, 4096])
def test_tiled_inference_equals_exact_inference(tmp_path: Path, kind: Any, hidden: int, block_bytes: int) -> None:
    """Rows of 36 bytes that straddle blocks, hubs, tiles of few nodes, layers that narrow and widen."""
    rng = np.random.default_rng(3)
    data = community_data()
    rows = rng.standard_normal((len(data.rows), 9)).astype(np.float32)
    data = replace(data, rows=rows)
    store = store_of(
        tmp_path / "graph.h5", block_bytes, indptr=data.topology.indptr, indices=data.topology.indices, features=rows
    )
    spec = ModelSpec(kind, 9, hidden, NUM_CLASSES, 3)
    model = build_model(spec, seed=2)
    nodes = np.sort(rng.permutation(len(rows))[:120])
    degrees = data.degrees if kind == "gcn" else None
    expected = ExactInference(data.topology, nodes, spec, degrees=degrees).run(model, data.features())
    with (
        StoredTopology(store, NONE, buffer_bytes=9 * block_bytes, indptr_buffer_bytes=4 * block_bytes) as topology,
        StoredFeatures(store, NONE, buffer_bytes=9 * block_bytes) as features,
    ):
        for tile_bytes in (2000, 40_000, 1 << 22):
            options: dict[str, Any] = {"degrees": degrees, "budget_bytes": 2 * MB, "directory": tmp_path}
            inference = TiledInference(topology, features, nodes, spec, **options)
            inference._tile_bytes = tile_bytes
            found = outputs_of(inference, model)
            assert torch.allclose(found, expected.logits, rtol=1e-4, atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["graph.h5"]


@pytest.mark.parametrize("failing", [1, 2])
def test_inference_that_fails_closes_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """Two layers of 8 to 16 to 4: the first file holds a layer's output, the second one projected rows."""
    data, spec = community_data(), ModelSpec("gcn", 8, 16, NUM_CLASSES, 2)
    write_data(tmp_path / "graph.h5", data)
    store, before, calls, finish = GraphStore.open(tmp_path / "graph.h5"), open_spills(), [], RowFile.finish

    def fails(file: RowFile) -> None:
        calls.append(file)  # kept, or it would be closed when nobody refers to it
        if len(calls) == failing:
            raise ChecksumMismatchError("damaged")
        finish(file)

    monkeypatch.setattr(RowFile, "finish", fails)
    with (
        StoredTopology(store, NONE, buffer_bytes=MB) as topology,
        StoredFeatures(store, NONE, buffer_bytes=MB) as features,
    ):
        nodes = np.arange(300)
        inference = TiledInference(
            topology, features, nodes, spec, degrees=data.degrees, budget_bytes=2 * MB, directory=tmp_path
        )
        with pytest.raises(ChecksumMismatchError):
            list(inference.stream(build_model(spec, seed=0)))
        assert open_spills() == before


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 20))])
def test_killed_at_any_time_it_goes_on_and_leaves_nothing(tmp_path: Path, seed: int) -> None:
    data = community_data()
    write_data(tmp_path / "graph.h5", data)
    command = [sys.executable, "-m", "tests.tasks.killed_on_disk", str(tmp_path / "graph.h5"), str(tmp_path / "c.pt")]
    rng = np.random.default_rng(seed)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        for _ in range(int(rng.integers(1, killed_on_disk.EPOCHS // 2))):
            process.stdout.readline()
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.stdout.read()
    assert not [path for path in tmp_path.rglob("*") if "spill" in path.parts and path.is_file()]
    resumed = killed_on_disk.run(tmp_path / "graph.h5", tmp_path / "c.pt")
    assert resumed.resumed_epochs > 0
    equal_outcomes(resumed, data.train(killed_on_disk.options(None)))
