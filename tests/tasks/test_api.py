"""The Python API: the same mini-batches as the trainer's, whatever nodes, plans and budgets; no thread left behind."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from kernels.nn.model import GnnModel, build_model
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.topology import Topology
from storage.blocks.stored_topology import StoredTopology
from storage.cache.plan import CachePlan
from storage.cache.tiers import FeatureTiers
from storage.errors import BudgetError, InputError, StorageError, TierMismatchError
from storage.graph_store import write_store
from tasks.api import Batch, GraphLoader
from tasks.trainer import train
from tasks.training_types import Splits, TrainOptions
from tests.graphs import power_law_graph
from tests.storage.stores import write_small_store

FANOUTS = [3, 5]
SMALL: dict[str, Any] = {"fanouts": FANOUTS, "batch_size": 256, "seed": 11}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A store of 3000 nodes and what is in it; labels run from -1 to 4."""
    path = tmp_path_factory.mktemp("store") / "graph.h5"
    return path, write_small_store(path)


@pytest.fixture
def path(stored: tuple[Path, dict[str, Any]]) -> Path:
    return stored[0]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two stores of 100,000 nodes: one whose nodes have long names, one whose nodes have none."""
    folder = tmp_path_factory.mktemp("large")
    indptr, indices = power_law_graph(100_000, 500_000)
    rows, labels = np.ones((100_000, 4), np.float32), np.zeros(100_000, np.int64)
    ids = np.char.add("a-node-with-a-long-name-", np.arange(100_000).astype(str))
    for name, original_ids in (("named", ids), ("numbered", None)):
        path = folder / f"{name}.h5"
        write_store(path, indptr=indptr, indices=indices, features=rows, labels=labels, original_ids=original_ids)
    return folder


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not set(threading.enumerate()) <= before:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= before


def test_check_compares_rows_with_the_store(path: Path) -> None:
    nodes = np.arange(20)
    options: dict[str, Any] = SMALL | {"fanouts": [], "shuffle": False, "device_budget": 1 << 20}
    for check in (False, True):
        with GraphLoader(path, nodes, **options, check=check) as loader:
            assert len(list(loader.epoch(0))) == 1
            loader.features._static.rows_CD[:] += 1  # type: ignore[union-attr]
            if check:
                with pytest.raises(TierMismatchError, match="node 0, read from the device tier, differs"):
                    list(loader.epoch(0))
            else:
                list(loader.epoch(0))


def test_a_crafted_store_is_refused_before_it_is_sampled(tmp_path: Path) -> None:
    contents = write_small_store(tmp_path / "g.h5")
    indices = contents["indices"].copy()
    indices[5] = 2**31 - 1
    write_small_store(tmp_path / "g.h5", indices=indices, out_degree=np.zeros(3000, np.int64))
    with pytest.raises(StorageError, match="the adjacency lists hold 2147483647 at position 5"):
        GraphLoader(tmp_path / "g.h5", **SMALL)


def batches_of(path: Path, nodes: Any = "train", *, epoch: int = 0, **options: Any) -> list[Batch]:
    with GraphLoader(path, nodes, **SMALL | options) as loader:
        return list(loader.epoch(epoch))


def is_equal(left: list[Batch], right: list[Batch]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(a.rows, b.rows)
        and np.array_equal(a.sample.input_nodes, b.sample.input_nodes)
        and all(np.array_equal(x.indices, y.indices) for x, y in zip(a.mfgs, b.mfgs, strict=True))
        for a, b in zip(left, right, strict=True)
    )


class TestBatches:
    def test_batch_holds_what_the_store_says(self, stored: tuple[Path, dict[str, Any]]) -> None:
        path, contents = stored
        topology = Topology.in_memory(contents["indptr"], contents["indices"])
        sampler = NeighborSampler(topology, FANOUTS, seed=11, purpose=Purpose.TRAIN)
        nodes = contents["splits"]["train"]
        nodes = nodes[contents["labels"][nodes] >= 0]
        seeds = shuffled_batches(nodes, 256, seed=11, epoch=2)
        batches = batches_of(path, epoch=2)
        assert len(batches) == len(seeds)
        for index, batch in enumerate(batches):
            wanted = sampler.sample([seeds[index]], epoch=2, first_batch=index).samples[0]
            assert batch.identity == (11, 2, index)
            assert batch.input_nodes.tolist() == wanted.input_nodes.tolist()
            assert batch.seed_nodes.tolist() == seeds[index].tolist()
            for mfg, hop in zip(batch.mfgs, reversed(wanted.hops), strict=True):
                assert np.array_equal(mfg.indices, hop.indices)
            assert np.array_equal(batch.x.numpy(), contents["features"][wanted.input_nodes])
            assert np.array_equal(batch.y.numpy(), contents["labels"][seeds[index]])
            assert np.array_equal(batch.original_ids, contents["original_ids"][seeds[index]])
            assert np.array_equal(batch.degrees.in_degree, topology.in_degree()[wanted.input_nodes])
            out_degree = np.bincount(topology.indices, minlength=3000)
            assert np.array_equal(batch.degrees.out_degree, out_degree[wanted.input_nodes])

    def test_loop_of_ones_own_trains_as_the_trainer(self, stored: tuple[Path, dict[str, Any]]) -> None:
        """The losses of `train` bit for bit: same batches, same weights, same dropout."""
        path, contents = stored
        options = TrainOptions(kind="sage", fanouts=(3, 5), hidden=8, epochs=2, batch_size=256, seed=11)
        empty = np.empty(0, np.int64)
        splits = Splits(contents["splits"]["train"], empty, empty)
        losses = []
        with GraphLoader(path, **SMALL) as loader:
            topology, features = loader.topology, loader.features
            assert isinstance(topology, Topology)
            assert isinstance(features, FeatureTiers)
            result = train(topology, features, contents["labels"], splits, None, options, num_classes=5)
            model = build_model(options.model_spec(loader.info.feature_dim, loader.info.num_classes), seed=11)
            optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
            for epoch in range(2):
                losses.append(run_epoch(loader, model, optimizer, epoch))
        assert losses == [report.loss for report in result.history]

    def test_speed_options_change_nothing(self, path: Path) -> None:
        plain = batches_of(path)
        assert is_equal(batches_of(path, superbatch=1, threads=1, prefetch=1), plain)
        assert is_equal(batches_of(path, superbatch=7, threads=3, device_budget=40_000, profile_epochs=1), plain)

    def test_epochs_differ_and_repeat(self, path: Path) -> None:
        with GraphLoader(path, **SMALL) as loader:
            epoch = loader.epoch(0)
            first = list(epoch)
            assert len(epoch) == len(loader) == len(first)
            assert epoch.stats.sample_s > 0
            assert epoch.stats.adjacency_reads.host_rows == sum(hop.num_dst for b in first for hop in b.sample.hops)
            assert is_equal(list(epoch), first)
            assert not is_equal(list(loader.epoch(1)), first)
            with pytest.raises(InputError, match="epoch must be >= 0"):
                loader.epoch(-1)

    def test_unshuffled_batches_keep_the_order_and_never_repeat_trainings_draws(self, path: Path) -> None:
        nodes = np.arange(2000, 1400, -1)
        batches = batches_of(path, nodes, shuffle=False)
        assert torch.cat([batch.seed_nodes for batch in batches]).tolist() == nodes.tolist()
        one, other = (batches_of(path, [17], shuffle=shuffle, fanouts=[2] * 3) for shuffle in (True, False))
        assert not is_equal(one, other)

    def test_small_dtypes_and_text_ids_come_as_stored(self, tmp_path: Path) -> None:
        rows = (np.arange(12).reshape(4, 3) % 2).astype(np.uint8)
        indptr, indices = np.array([0, 1, 2, 3, 3]), np.array([1, 2, 3], np.int32)
        ids = np.array(["ä", "b", "c", "dd"])
        write_store(
            tmp_path / "g.h5", indptr=indptr, indices=indices, features=rows, original_ids=ids, block_bytes=4096
        )
        (batch,) = batches_of(tmp_path / "g.h5", [3, 0])
        assert batch.rows.dtype == torch.uint8
        assert batch.x.dtype == torch.float32
        assert dict(zip(batch.seed_nodes.tolist(), batch.original_ids.tolist(), strict=True)) == {0: "ä", 3: "dd"}
        assert batch.y.tolist() == [-1, -1]

    def test_no_fanouts_and_no_features(self, tmp_path: Path) -> None:
        write_store(tmp_path / "g.h5", indptr=np.array([0, 1, 2]), indices=np.array([1, 0], np.int32), block_bytes=4096)
        (batch,) = batches_of(tmp_path / "g.h5", "all", fanouts=[])
        assert batch.mfgs == ()
        assert batch.x.shape == (2, 0)


def run_epoch(loader: GraphLoader, model: GnnModel, optimizer: torch.optim.Optimizer, epoch: int) -> float:
    """Mean loss, added up as the trainer adds it."""
    total, num_nodes = 0.0, 0
    for batch in loader.epoch(epoch):
        logits = model(batch.sample.hops, batch.rows, dropout_identity=batch.identity)
        loss = functional.cross_entropy(logits, batch.y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total, num_nodes = total + float(loss.detach()) * len(batch.y), num_nodes + len(batch.y)
    return total / num_nodes


class TestNodes:
    def test_splits_leave_out_the_unlabelled(self, stored: tuple[Path, dict[str, Any]]) -> None:
        path, contents = stored
        seen = torch.cat([batch.seed_nodes for batch in batches_of(path, "valid")])
        valid = contents["splits"]["valid"]
        assert sorted(seen.tolist()) == valid[contents["labels"][valid] >= 0].tolist()
        assert sum(len(batch.y) for batch in batches_of(path, "all")) == 3000

    def test_duplicates_share_a_row_of_their_batch(self, path: Path) -> None:
        (batch,) = batches_of(path, [5, 9, 5, 9, 5], shuffle=False)
        assert batch.seed_nodes.tolist() == [5, 9]
        assert batch.seed_inverse.tolist() == [0, 1, 0, 1, 0]
        (shuffled,) = batches_of(path, [5, 9, 5, 9, 5])
        assert len(shuffled.y) == 2
        assert len(shuffled.seed_inverse) == 5

    @pytest.mark.parametrize("nodes", [[], np.empty(0, np.int32), torch.empty(0, dtype=torch.int64)])
    def test_no_nodes_are_no_batches(self, path: Path, nodes: Any) -> None:
        assert batches_of(path, nodes) == []

    @pytest.mark.parametrize(
        ("nodes", "message"),
        [
            ([1, 3000], r"node 3000 is outside \[0, 3000\)"),
            ([-1], r"node -1 is outside"),
            ([2**63], r"node 9223372036854775808 is outside"),
            ([1.0], "1-D array of integer ids .got 1-D float64"),
            (np.ones(3000, bool), "got 1-D bool"),
            ([[1]], "got 2-D int64"),
            ("training", "nodes must be train, valid, test, all, or an array of ids .got 'training'"),
        ],
    )
    def test_wrong_nodes_are_refused(self, path: Path, nodes: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            GraphLoader(path, nodes, **SMALL)

    def test_empty_split_is_refused(self, tmp_path: Path) -> None:
        write_small_store(tmp_path / "g.h5", splits={"train": np.array([1])}, labels=np.full(3000, -1))
        for split in ("train", "valid"):
            with pytest.raises(InputError, match=f"no labelled node in its {split} split"):
                GraphLoader(tmp_path / "g.h5", split, **SMALL)


class TestTiers:
    def test_budget_is_kept_and_serves(self, path: Path) -> None:
        with GraphLoader(path, device_budget=30_000, profile_epochs=2, **SMALL) as loader:
            assert loader.plan is not None
            assert 0 < loader.device_bytes == loader.plan.total_bytes <= 30_000
            for epoch in range(3):
                for _ in loader.epoch(epoch):
                    pass
            assert loader.features.reads.hit_rate == pytest.approx(loader.plan.predicted_feature_hit_rate, abs=0.03)

    def test_plan_is_taken_from_an_object_or_a_file(self, path: Path, tmp_path: Path) -> None:
        with GraphLoader(path, device_budget=30_000, profile_epochs=1, **SMALL) as loader:
            plan = loader.plan
        assert plan is not None
        plan.save(tmp_path / "plan.h5")
        for given in (plan, tmp_path / "plan.h5", str(tmp_path / "plan.h5")):
            with GraphLoader(path, cache_plan=given, **SMALL) as loader:
                assert loader.device_bytes == plan.total_bytes
                assert isinstance(loader.plan, CachePlan)

    def test_wrong_plans_are_refused(self, path: Path, tmp_path: Path) -> None:
        with GraphLoader(path, "all", device_budget=10**6, profile_epochs=1, **SMALL) as loader:
            plan = loader.plan
        write_small_store(tmp_path / "other.h5", num_nodes=1000, splits={"train": np.arange(9)})
        with pytest.raises(InputError, match=r"plan caches node 2\d\d\d, the store has 1000 nodes"):
            GraphLoader(tmp_path / "other.h5", cache_plan=plan, **SMALL)
        with pytest.raises(InputError, match="there is no cache plan at"):
            GraphLoader(path, cache_plan=tmp_path / "absent.h5", **SMALL)
        with pytest.raises(StorageError, match="kind 'cache plan'"):
            GraphLoader(path, cache_plan=path, **SMALL)
        with pytest.raises(InputError, match="either cache_plan or device_budget"):
            GraphLoader(path, cache_plan=plan, device_budget=1, **SMALL)

    @pytest.mark.parametrize(
        "options", [{}, {"shuffle": False}, {"fanouts": [-1, 3]}, {"replace": True}, {"device_budget": 9000}]
    )
    def test_from_disk_the_batches_are_those_from_memory(self, large: Path, options: dict[str, Any]) -> None:
        """Labels, ids and degrees too, several epochs, one left early."""
        path, nodes = large / "numbered.h5", np.random.default_rng(0).permutation(100_000)[:3000]
        fields = SMALL | {"profile_epochs": 1} | options
        with (
            GraphLoader(path, nodes, **fields) as memory,
            GraphLoader(path, nodes, **fields, host_budget=memory.memory_bytes - 1) as disk,
        ):
            assert isinstance(disk.topology, StoredTopology)
            assert disk.memory_bytes < memory.memory_bytes
            assert memory.device_bytes == disk.device_bytes or "device_budget" in options
            next(iter(disk.epoch(5)))
            for epoch in (0, 3):
                expected, found = list(memory.epoch(epoch)), list(disk.epoch(epoch))
                assert is_equal(found, expected)
                for one, other in zip(found, expected, strict=True):
                    assert torch.equal(one.y, other.y)
                    assert one.identity == other.identity
                    assert np.array_equal(one.original_ids, other.original_ids)
                    assert np.array_equal(one.degrees.in_degree, other.degrees.in_degree)
                    assert np.array_equal(one.degrees.out_degree, other.degrees.out_degree)

    def test_names_from_disk(self, large: Path) -> None:
        with GraphLoader(large / "named.h5", "all", **SMALL) as memory:
            budget = memory.memory_bytes - 1
        with GraphLoader(large / "named.h5", "all", **SMALL, host_budget=budget) as disk:
            assert isinstance(disk.topology, StoredTopology)
            batch = next(iter(disk.epoch(0)))
            assert batch.original_ids.tolist() == [f"a-node-with-a-long-name-{v}" for v in batch.seed_nodes.tolist()]

    def test_the_dynamic_cache_of_a_plan_takes_part(self, path: Path, tmp_path: Path) -> None:
        options = SMALL | {"device_budget": 20_000, "profile_epochs": 1}
        with GraphLoader(path, **options) as loader:
            assert loader.plan is not None
            plan = replace(
                loader.plan, dynamic_rows=400, dynamic_gamma=0.99, dynamic_interval_batches=0, dynamic_epochs=10
            )
        with GraphLoader(path, cache_plan=plan, **SMALL) as loader:
            epochs = [loader.epoch(epoch) for epoch in range(4)]
            served = []
            for epoch in epochs:
                served.append(list(epoch))
                assert isinstance(loader.features, FeatureTiers)
                assert loader.features.dynamic is not None
                loader.features.dynamic.wait()
            assert loader.features.reads.dynamic_rows > 0
            assert epochs[-1].cache_figures["dynamic_hits"] > 0
        assert is_equal(
            [batch for epoch in served for batch in epoch],
            [batch for epoch in range(4) for batch in batches_of(path, epoch=epoch)],
        )

    def test_host_budget_is_checked_before_anything_large_is_read(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with GraphLoader(path, **SMALL) as loader:
            needed = loader.memory_bytes
        with GraphLoader(path, host_budget=needed, **SMALL):
            pass
        for large in ("adjacency", "features", "indptr"):
            read = f"storage.graph_store.GraphStore.read_{large}"
            monkeypatch.setattr(read, lambda *_: pytest.fail("the store was read"))
        with pytest.raises(BudgetError, match=f"set host_budget to at least {needed}"):
            GraphLoader(path, host_budget=needed - 1, **SMALL)

    @pytest.mark.parametrize(
        ("name", "device_budget", "num_seeds"),
        [("named", 0, 100_000), ("numbered", 2_000_000, 100_000), ("numbered", 0, 600_000)],
    )
    def test_memory_stays_below_what_is_stated(
        self, large: Path, name: str, device_budget: int, num_seeds: int
    ) -> None:
        """NumPy reports its arrays to tracemalloc; the sizes here drown what Python itself takes."""
        seeds = np.arange(num_seeds, dtype=np.int64) % 100_000
        one_by_one: dict[str, Any] = {"superbatch": 1, "threads": 1, "prefetch": 1}
        tracemalloc.start()
        try:
            with GraphLoader(
                large / f"{name}.h5", seeds, fanouts=[1], device_budget=device_budget, profile_epochs=1, **one_by_one
            ) as loader:
                for batch in loader.epoch(0):
                    assert len(batch.original_ids) == len(batch.y) <= len(batch.degrees.in_degree)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert 0.45 * loader.memory_bytes < peak <= loader.memory_bytes  # a promise of far more would say little


def gathering() -> list[threading.Thread]:
    """Threads that gather rows for an epoch."""
    return [thread for thread in threading.enumerate() if thread.name == "gather"]


class TestLifeCycle:
    def test_leaving_a_loop_stops_its_threads(self, path: Path) -> None:
        with GraphLoader(path, "all", **SMALL | {"batch_size": 16}) as loader:
            for _ in loader.epoch(0):
                break
            assert not gathering()

    def test_error_in_the_loop_leaves_no_thread(self, path: Path) -> None:
        with pytest.raises(ZeroDivisionError), GraphLoader(path, "all", **SMALL | {"batch_size": 16}) as loader:
            for _ in loader.epoch(0):
                1 / 0  # noqa: B018

    def test_closed_loader_says_so(self, path: Path) -> None:
        with GraphLoader(path, "all", **SMALL | {"batch_size": 16}) as loader:
            unfinished = iter(loader.epoch(0))
            next(unfinished)
            assert gathering()
        assert not gathering()
        loader.close()
        for stream in (unfinished, iter(loader.epoch(0))):
            with pytest.raises(RuntimeError, match="closed"):
                next(stream)

    @pytest.mark.parametrize(
        ("option", "message"),
        [
            ({"batch_size": 0}, "batch_size must be >= 1"),
            ({"superbatch": 0}, "superbatch must be >= 1"),
            ({"threads": -1}, "threads must be >= 1"),
            ({"prefetch": 0}, "prefetch must be >= 1"),
            ({"fanouts": [0]}, "fanout must be >= 1 or -1"),
            ({"device_budget": -1}, "device_budget must be >= 0"),
            ({"device_budget": 9, "profile_epochs": 0}, "profile_epochs must be >= 1"),
            ({"fanouts": [2.5]}, r"fanout must be .*integer \(got 2.5\)"),
            ({"fanouts": [1 << 63]}, "fanout must be .* a 64-bit integer"),
            ({"fanouts": "55"}, "fanout must be"),
            ({"batch_size": 2.0}, r"batch_size must be an integer \(got 2.0\)"),
            ({"threads": True}, "threads must be an integer"),
            ({"host_budget": "2GB"}, r"host_budget must be an integer \(got '2GB'\)"),
            ({"host_budget": float("nan")}, "host_budget must be an integer"),
            ({"host_budget": -1}, "host_budget must be >= 0"),
            ({"disk_budget": 1e9}, "disk_budget must be an integer"),
            ({"seed": 0.5}, "seed must be an integer"),
        ],
    )
    def test_wrong_options_are_refused(self, path: Path, option: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            GraphLoader(path, **SMALL | option)

    def test_numpys_integers_are_integers(self, path: Path) -> None:
        numbers: dict[str, Any] = {"fanouts": np.array(FANOUTS), "batch_size": np.int32(256), "seed": np.uint64(11)}
        numbers["host_budget"] = np.int64(1 << 30)
        with GraphLoader(path, **numbers) as given, GraphLoader(path, **SMALL) as plain:
            assert is_equal(list(given.epoch(np.int64(1))), list(plain.epoch(1)))  # type: ignore[arg-type]
            with pytest.raises(InputError, match="epoch must be an integer"):
                given.epoch(0.5)  # type: ignore[arg-type]

    def test_a_batch_larger_than_all_nodes_takes_no_more_than_one_of_all(self, path: Path) -> None:
        nodes = np.arange(2000)
        with (
            GraphLoader(path, nodes, **SMALL | {"batch_size": 2000}) as exact,
            GraphLoader(path, nodes, **SMALL | {"batch_size": 10**15}) as larger,
        ):
            assert is_equal(list(larger.epoch(0)), list(exact.epoch(0)))
            assert larger.memory_bytes < 2 * exact.memory_bytes

    def test_missing_store(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="no graph store at"):
            GraphLoader(tmp_path / "absent.h5", **SMALL)


def test_another_process_is_told_to_open_its_own(path: Path) -> None:
    """It would wait for threads that it does not have, or load all mini-batches once more."""
    processes = multiprocessing.get_context("fork")  # as the workers of torch's DataLoader are made
    answer, answers = processes.Pipe(duplex=False)
    with GraphLoader(path, **SMALL) as loader:
        worker = processes.Process(target=_say_what_happens, args=(loader, answers))
        worker.start()
        assert answer.poll(60), "it hangs"
        worker.join(60)
        assert answer.recv().startswith("a GraphLoader works in the process that opened it")
        assert len(list(loader.epoch(0))) == len(loader), "here it goes on"
        for unpicklable in (loader, loader.epoch(0)):
            with pytest.raises(TypeError, match="GraphLoader cannot be pickled: it works in the process that opened"):
                pickle.dumps(unpicklable)


def _say_what_happens(loader: GraphLoader, answers: Connection) -> None:
    try:
        answers.send(f"mini-batch {next(iter(loader.epoch(0))).identity}")
    except RuntimeError as error:
        answers.send(str(error))
