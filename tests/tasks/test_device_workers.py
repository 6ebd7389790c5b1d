"""Workers that train on devices, on the host shim: one process's steps to the bit, the CPU's mini-batches; and NCCL's
part with a group in its place that only says how it was called."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, distributed

from kernels.cuda.current import launching_through
from storage.errors import MachineError
from tasks import nccl, worker_team
from tasks.nccl import NcclPeers, meet
from tasks.peers import Alone
from tasks.trainer import train_along
from tasks.training_reports import TrainResult
from tasks.worker import Job
from tests.cudasim.build import GXX
from tests.cudasim.launcher import Schedule, SimLauncher
from tests.tasks.test_device_training import _same
from tests.tasks.training_graphs import NUM_CLASSES, OPTIONS, Data, community_data


class _Team:
    """Threads that meet at a barrier."""

    def __init__(self, size: int) -> None:
        self.barrier, self.slots, self.size = threading.Barrier(size, timeout=60), [torch.empty(0)] * size, size


class _Member:
    place = torch.device("cpu")

    def __init__(self, team: _Team, rank: int) -> None:
        self._team, self.rank, self.size = team, rank, team.size

    def exchange(self, values: Tensor) -> list[Tensor]:
        self._team.slots[self.rank] = values.clone()
        self._team.barrier.wait()
        given = list(self._team.slots)
        self._team.barrier.wait()
        return given


def _together(data: Data, options: Any) -> TrainResult:
    team, failures = _Team(options.workers), list[BaseException]()

    def work(rank: int) -> None:
        parts = (data.topology, data.features(90), data.labels, data.splits, data.degrees, options)
        try:
            train_along(*parts, _Member(team, rank), num_classes=NUM_CLASSES)
        except BaseException as error:
            failures.append(error)
            team.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(1, options.workers)]
    for thread in threads:
        thread.start()
    try:
        return data.train(options, cached=90, peers=_Member(team, 0))
    finally:
        for thread in threads:
            thread.join()
        assert not failures, failures[0]


@pytest.mark.skipif(GXX is None, reason="g++ is not installed: training on the device is NOT tested here")
@pytest.mark.parametrize("change", [{"input_dropout": 0.0}, {"norm": "batch", "clip_norm": 0.5}])
def test_workers_on_devices_take_the_steps_of_one(change: dict[str, Any]) -> None:
    data = community_data().with_adjacency_cache(100)
    options = replace(OPTIONS, **change, workers=2, epochs=2, compute_threads=1, backend="cuda")
    with launching_through(SimLauncher(Schedule.DESCENDING)):
        team = _together(data, options)
        alone = data.train(replace(options, workers=1, accumulate=2), cached=90)
    for name, weights in alone.state_dict.items():
        assert torch.equal(weights, team.state_dict[name])
    for one, other in zip(team.history, alone.history, strict=True):
        assert one.feature_reads.device_rows == other.feature_reads.device_rows > 0
        assert one.adjacency_reads == other.adjacency_reads
    _same(team, data.train(replace(options, workers=1, accumulate=2, backend="cpu"), cached=90), reads=False)


class _Group:
    """In place of NCCL's."""

    calls: ClassVar[list[Any]] = []
    hangs: ClassVar[bool] = False

    class Options:
        _timeout: Any = None

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        self.made = (store, rank, size, options._timeout)
        self.polls = 0
        if size > 8:
            raise RuntimeError("timed out")

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor]) -> Any:
        _Group.calls.append("on the GPUs")
        for output in outputs[0]:
            output.copy_(inputs[0])
        return self

    def is_completed(self) -> bool:
        """The third time it is asked, unless it hangs."""
        self.polls += 1
        return self.polls > 2 and not _Group.hangs

    def wait(self) -> None:
        _Group.calls.append("waited")

    def abort(self) -> None:
        _Group.calls.append("aborted")

    def shutdown(self) -> None:
        _Group.calls.append("shut down")


class _Host:
    rank, size, place = 1, 2, torch.device("cpu")

    def exchange(self, values: Tensor) -> list[Tensor]:
        _Group.calls.append("in host memory")
        return [values, values]


@pytest.fixture
def _fake_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    _Group.calls.clear()
    monkeypatch.setattr(_Group, "hangs", False)
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    monkeypatch.setattr(distributed, "ProcessGroupNCCL", _Group, raising=False)
    monkeypatch.setattr(distributed, "FileStore", lambda path, size: (path, size))


@pytest.mark.usefixtures("_fake_nccl")
def test_gradients_meet_on_gpus_and_all_else_in_host_memory(tmp_path: Path) -> None:
    peers = NcclPeers(_Host(), tmp_path / "meeting", 7.0, lambda: None)
    assert peers._group.made == ((str(tmp_path / "meeting"), 2), 1, 2, timedelta(seconds=7))
    assert (peers.rank, peers.size, peers.place) == (1, 2, torch.device("cuda", 0))
    peers.exchange(torch.ones(3))
    assert _Group.calls == ["in host memory"]
    found = peers.exchange(torch.ones(3, device="meta"))  # neither here nor there: what is not on the CPU goes to NCCL
    assert [one.shape for one in found] == [(3,), (3,)]
    assert _Group.calls[1:] == ["in host memory", "on the GPUs", "waited"]
    assert peers._group.polls == 3
    peers.close()
    assert _Group.calls[-1] == "shut down"
    crowd = _Host()
    crowd.size = 9
    with pytest.raises(MachineError, match="did not meet on their GPUs: timed out"):
        NcclPeers(crowd, tmp_path / "meeting", 7.0, lambda: None)


@pytest.mark.usefixtures("_fake_nccl")
def test_an_exchange_that_another_died_in_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the GPUs nothing would tell."""

    def look() -> None:
        raise MachineError("worker 1 was ended by SIGKILL")

    monkeypatch.setattr(_Group, "hangs", True)
    for looks, said in ((look, "SIGKILL"), (lambda: None, r"not ended for 0\.05 s")):
        peers = NcclPeers(_Host(), tmp_path / "meeting", 0.05, looks)
        with pytest.raises(MachineError, match=said):
            peers.exchange(torch.ones(3, device="meta"))
        peers.close()
        assert _Group.calls[-1] == "aborted"
        assert "waited" not in _Group.calls


def test_a_worker_sees_the_one_gpu_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that sees others puts a context on the first of them."""
    environments = list[dict[str, str]]()

    def start(*_: Any, env: dict[str, str], pass_fds: tuple[int, ...], **__: Any) -> Any:
        environments.append(env)
        assert pass_fds == (17,)
        raise OSError("enough")

    monkeypatch.setattr("tasks.worker_team.subprocess.Popen", start)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    for rank, gpus in ((1, 3), (2, 3), (2, 2), (1, 0)):
        job = Job(Path("s"), Path("p"), OPTIONS, "", Path("m"), rank, 1, gpus, {"features/x": 17})
        with pytest.raises(OSError, match="enough"), worker_team._started(job, Path(os.devnull)):
            pass
    assert [env["CUDA_VISIBLE_DEVICES"] for env in environments] == ["5", "6", "4", "4,5,6"]


@pytest.mark.usefixtures("_fake_nccl")
@pytest.mark.parametrize(
    ("backend", "gpus", "has_nccl", "kind"),
    [("cuda", 2, True, NcclPeers), ("cuda", 1, True, _Host), ("cuda", 2, False, _Host), ("cpu", 2, True, _Host)],
)
def test_where_workers_meet(
    backend: Any, gpus: int, has_nccl: bool, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "GlooPeers", lambda *_: _Host())
    monkeypatch.setattr(distributed, "is_nccl_available", lambda: has_nccl)
    options = replace(OPTIONS, workers=2, backend=backend)
    with meet(tmp_path / "meeting", 1, options, gpus, 5.0) as peers:
        assert type(peers) is kind
    assert ("shut down" in _Group.calls) == (kind is NcclPeers)


def test_alone_nothing_meets() -> None:
    assert Alone().place.type == "cpu"
