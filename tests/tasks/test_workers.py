"""Training in several processes: one process's steps to the bit, deaths told and survived, nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from storage.cache.plan import build_plan
from storage.cache.pre_sampling import profile_accesses
from storage.errors import ChecksumMismatchError, MachineError
from storage.graph_store import FEATURES, INDICES, GraphStore, write_store
from storage.mapped import hold_dataset, map_dataset
from tasks import nccl
from tasks.gloo import GlooPeers
from tasks.trainer import train
from tasks.training_data import load_training_data
from tasks.training_reports import EpochReport, TrainResult
from tasks.training_types import TrainOptions
from tasks.worker import Job
from tasks.worker_team import worker_team
from tests.tasks.test_trainer import assert_same_run
from tests.tasks.training_graphs import OPTIONS, community_data

ROOT = Path(__file__).parents[2]
WORKERS = replace(OPTIONS, workers=2, compute_threads=1, threads=1, epochs=3, stall_timeout_s=100.0)


@dataclass(frozen=True)
class Files:
    """A store, its plan, and a folder for what a team leaves."""

    store: Path
    plan: Path
    folder: Path

    def train(self, options: TrainOptions, on_epoch: Callable[[EpochReport], None] | None = None) -> TrainResult:
        data = load_training_data(self.store, self.plan, shared=options.workers > 1)
        parts = (data.topology, data.features, data.labels, data.splits, data.degrees, options)
        with worker_team(self.store, self.plan, options, data_digest="d", directory=self.folder) as peers:
            return train(*parts, num_classes=data.num_classes, data_digest="d", on_epoch=on_epoch, peers=peers)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder, data = tmp_path_factory.mktemp("team"), community_data()
    splits = {"train": data.splits.train, "valid": data.splits.valid, "test": data.splits.test}
    topology = data.topology
    write_store(
        folder / "graph.h5",
        indptr=topology.indptr,
        indices=topology.indices,
        features=data.rows,
        labels=np.asarray(data.labels, np.int64),
        splits=splits,
        block_bytes=4096,
    )
    profile = profile_accesses(
        topology,
        data.splits.train,
        OPTIONS.fanouts,
        batch_size=16,
        superbatch=2,
        seed=0,
        epochs=1,
        heldout_epochs=1,
        replace=False,
        threads=1,
    )
    sizes = {"row_bytes": data.rows.shape[1] * 4, "id_bytes": 4, "device_budget": 3000, "max_fanout": 4}
    build_plan(profile, topology.in_degree(), counting="input", **sizes).save(folder / "plan.h5")
    return Files(folder / "graph.h5", folder / "plan.h5", folder / "runs")


def worker_processes() -> list[psutil.Process]:
    """Workers of this process."""
    return [child for child in psutil.Process().children() if "tasks.worker" in " ".join(child.cmdline())]


@pytest.fixture(autouse=True)
def _nobody_is_left(files: Files) -> Iterator[None]:
    yield
    assert not worker_processes()
    assert not list(files.folder.glob("workers-*"))


@pytest.mark.parametrize(
    "change", [{"norm": "batch", "clip_norm": 0.5, "class_weights": "balanced"}, {"kind": "gcn", "schedule": "cosine"}]
)
def test_two_workers_take_the_steps_of_one_that_accumulates_two(files: Files, change: dict[str, Any]) -> None:
    """Equal to the bit, where 1e-6 was asked for: gradients are added in the same order."""
    team = files.train(replace(WORKERS, **change))
    alone = files.train(replace(WORKERS, **change, workers=1, accumulate=2))
    assert_same_run(team, alone)
    assert team.feature_reads.device_rows == alone.feature_reads.device_rows > 0
    assert team.feature_reads.host_rows == alone.feature_reads.host_rows
    assert team.adjacency_reads == alone.adjacency_reads


def test_one_that_steps_after_each_batch_ends_elsewhere(files: Files) -> None:
    """The equality above can fail."""
    alone = files.train(replace(WORKERS, workers=1))
    accumulating = files.train(replace(WORKERS, workers=1, accumulate=2))
    assert abs(alone.history[-1].loss - accumulating.history[-1].loss) > 1e-3


@pytest.mark.full
def test_three_workers_that_accumulate_equal_one(files: Files) -> None:
    team = files.train(replace(WORKERS, workers=3, accumulate=2, norm="batch"))
    alone = files.train(replace(WORKERS, workers=1, accumulate=6, norm="batch"))
    for a, b in zip(team.history, alone.history, strict=True):
        assert a.loss == pytest.approx(b.loss, abs=1e-6)
    for name, tensor in team.state_dict.items():
        assert float((tensor - alone.state_dict[name]).abs().max()) < 1e-6


def test_resumed_team_goes_on_as_if_undisturbed(files: Files, tmp_path: Path) -> None:
    """A worker is killed in the third epoch; the run ends with its name, and the next one takes up the checkpoint."""
    options = replace(WORKERS, checkpoint_path=tmp_path / "checkpoint.pt")

    def kill(report: EpochReport) -> None:
        if report.epoch == 1:
            worker_processes()[0].kill()

    start = time.monotonic()
    with pytest.raises(MachineError, match=r"worker 1 was ended by SIGKILL.*run again to go on"):
        files.train(options, on_epoch=kill)
    assert time.monotonic() - start < 90  # well before the time-out
    resumed = files.train(options)
    assert resumed.resumed_epochs == 2
    assert_same_run(resumed, files.train(WORKERS))


def test_stalled_worker_ends_with_a_message(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-out covers the start as well, which takes longer on a busy machine: it is shortened for exchanges."""
    monkeypatch.setattr(nccl, "GlooPeers", lambda file, rank, size, _: GlooPeers(file, rank, size, 3.0))

    def suspend(report: EpochReport) -> None:
        if report.epoch == 0:
            worker_processes()[0].suspend()

    with pytest.raises(MachineError, match="no worker has died, but one has not answered"):
        files.train(WORKERS, on_epoch=suspend)


def test_worker_that_cannot_start_says_why(files: Files) -> None:
    broken = replace(files, plan=files.folder / "missing.h5")
    with (
        pytest.raises(MachineError, match=r"worker 1 ended with code 1 \(.*missing\.h5"),
        worker_team(broken.store, broken.plan, WORKERS, data_digest="d", directory=files.folder),
    ):
        pass


_RANK_0 = """
import sys, time
from pathlib import Path
from tasks.worker_team import worker_team
from tests.tasks.test_workers import WORKERS
store, plan, folder = map(Path, sys.argv[1:])
with worker_team(store, plan, WORKERS, data_digest="d", directory=folder):
    print("together", flush=True)
    time.sleep(60)
"""


def test_workers_die_with_rank_0(files: Files, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _RANK_0, str(files.store), str(files.plan), str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as rank_0:
        assert rank_0.stdout is not None
        assert rank_0.stdout.readline().strip() == "together"
        workers = psutil.Process(rank_0.pid).children()
        assert len(workers) == 1
        rank_0.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive


def test_a_job_survives_the_way_to_the_worker() -> None:
    options = replace(WORKERS, class_weights=(1.0, 2.0), checkpoint_path=Path("a/b.pt"))
    job = Job(Path("s"), Path("p"), options, "d", Path("m"), 1, os.getpid(), 2, {FEATURES: 9})
    assert Job.from_json(job.to_json()) == job


def test_workers_map_what_rank_0_holds(files: Files) -> None:
    """Once in memory for all, as GPUs want it: none has pages of its own, and none reads the store for it."""
    options = replace(WORKERS, epochs=1)
    expected = files.train(options)
    data = load_training_data(files.store, files.plan, shared=True, on_gpu=True)
    held = dict(data.held)
    assert set(held) == {INDICES, FEATURES}
    parts = (data.topology, data.features, data.labels, data.splits, data.degrees, options)
    with worker_team(
        files.store, files.plan, options, data_digest="d", directory=files.folder, held=data.held
    ) as peers:
        found = train(*parts, num_classes=data.num_classes, data_digest="d", peers=peers)
    assert all(torch.equal(weights, found.state_dict[name]) for name, weights in expected.state_dict.items())
    again = load_training_data(files.store, files.plan, shared=True, held=data.held)
    data.features.source_ND[3] = 77
    assert (again.features.source_ND[3] == 77).all()
    assert np.array_equal(again.topology.indices, data.topology.indices)
    data.close()
    for descriptor in held.values():
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    assert (data.features.source_ND[3] == 77).all()


class TestMaps:
    def test_pages_are_shared(self, files: Files) -> None:
        """No page of a mapped dataset is this process's own, however much of it was read."""
        with GraphStore.open(files.store) as store:
            mapped = map_dataset(files.store, store.extent(FEATURES), verify=True)
            assert np.array_equal(mapped, store.read_features())
        maps = [m for m in psutil.Process().memory_maps(grouped=False) if m.path == str(files.store)]
        assert sum(m.rss for m in maps) >= mapped.nbytes
        assert sum(m.private_dirty + m.anonymous for m in maps) == 0

    def test_writing_changes_neither_file_nor_others(self, files: Files) -> None:
        with GraphStore.open(files.store) as store:
            mapped = map_dataset(files.store, store.extent(FEATURES), verify=False)
            before = mapped.copy()
            mapped[:] = 7
            assert np.array_equal(store.read_features(), before)

    def test_damage_is_found(self, files: Files, tmp_path: Path) -> None:
        copy = tmp_path / "graph.h5"
        copy.write_bytes(files.store.read_bytes())
        with GraphStore.open(copy) as store:
            extent = store.extent(FEATURES)
            with copy.open("r+b") as file:
                file.seek(extent.offset + 5000)
                file.write(b"\xff\xff")
            with pytest.raises(ChecksumMismatchError, match="block 1 of features/x"):
                map_dataset(copy, extent, verify=True)
            with pytest.raises(ChecksumMismatchError, match="block 1 of features/x"):
                hold_dataset(copy, extent)
