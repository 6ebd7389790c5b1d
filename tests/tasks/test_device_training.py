"""The training loop on the device, through the host shim: mini-batches and reads of the CPU, weights to rounding."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.cuda.current import launching_through
from kernels.cuda.launch import PinnedMemoryError
from kernels.rank_map import RankMap
from storage.cache.cached_topology import adjacency_device_bytes
from storage.cache.hotset import DynamicOptions
from storage.errors import MachineError
from tasks import device_compute
from tasks.device_memory import DeviceNeeds
from tasks.training_reports import TrainResult
from tasks.training_types import TrainOptions
from tests.cudasim.build import GXX
from tests.cudasim.launcher import Schedule, SimLauncher
from tests.tasks.training_graphs import OPTIONS, Data, community_data, with_many_labels

if GXX is None:
    pytest.skip("g++ is not installed: training on the device is NOT tested here", allow_module_level=True)

LAUNCHER = SimLauncher(Schedule.DESCENDING)


@pytest.fixture(scope="module")
def data() -> Data:
    return community_data().with_adjacency_cache(100)


def _on_device(data: Data, options: TrainOptions, launcher: SimLauncher = LAUNCHER, **rest: Any) -> TrainResult:
    with launching_through(launcher):
        return data.train(replace(options, backend="cuda"), cached=90, **rest)


def _same(one: TrainResult, other: TrainResult, *, reads: bool = True) -> None:
    for report, expected in zip(one.history, other.history, strict=True):
        assert report.loss == pytest.approx(expected.loss, rel=1e-3)
        if reads:
            assert report.feature_reads == expected.feature_reads
        assert report.adjacency_reads == expected.adjacency_reads
    assert one.feature_reads.device_rows > 0
    assert one.feature_reads.host_rows > 0
    for name, weights in one.state_dict.items():
        torch.testing.assert_close(weights, other.state_dict[name], rtol=0.01, atol=0.01)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kind": "gcn", "superbatch": 1},
        {"kind": "gat", "hidden": 16, "heads": 2, "attention_dropout": 0.2},
        {"norm": "batch", "accumulate": 2, "clip_norm": 1.0, "fanouts": (-1, 3)},
        {"kind": "mlp", "fanouts": ()},
        {"input_dropout": 0.0},
        {"kind": "gcn", "input_dropout": 0.0, "hidden": 4},
        {"kind": "gat", "hidden": 16, "heads": 2, "input_dropout": 0.0},
        {"kind": "mlp", "fanouts": (), "input_dropout": 0.0},
        {"pinned": "off"},
        {"pinned": "off", "input_dropout": 0.0, "superbatch": 1},
    ],
    ids=["sage", "gcn", "gat", "batch norm", "mlp", "sage in place", "gcn in place", "gat in place", "mlp in place",
         "not pinned", "not pinned in place"],
)  # fmt: skip
def test_training_on_the_device_is_training_on_the_cpu(data: Data, changes: dict[str, Any]) -> None:
    options = replace(OPTIONS, epochs=2, **changes)
    _same(_on_device(data, options), data.train(options, cached=90))


def test_rows_of_other_dtypes_and_labels(data: Data) -> None:
    small = replace(data, rows=data.rows.astype(np.float16))
    options = replace(OPTIONS, epochs=1, input_dropout=0.0)
    _same(_on_device(small, options), small.train(options, cached=90))
    many = with_many_labels(data)
    _same(_on_device(many, options), many.train(options, cached=90))


def test_a_run_on_the_device_resumes(data: Data, tmp_path: Path) -> None:
    options = replace(OPTIONS, epochs=3)
    whole = _on_device(data, options)
    stopping = replace(options, checkpoint_path=tmp_path / "checkpoint.pt")

    def stop(report: Any) -> None:
        if report.epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _on_device(data, stopping, on_epoch=stop)
    resumed = _on_device(data, stopping)
    assert resumed.resumed_epochs == 2
    for name, weights in whole.state_dict.items():
        assert torch.equal(weights, resumed.state_dict[name])


def test_schedules_do_not_change_a_bit(data: Data) -> None:
    options = replace(OPTIONS, epochs=1)
    one, other = (
        _on_device(data, options, SimLauncher(schedule)) for schedule in (Schedule.ASCENDING, Schedule.RANDOM)
    )
    for name, weights in one.state_dict.items():
        assert torch.equal(weights, other.state_dict[name])


@pytest.mark.parametrize("changes", [{"input_dropout": 0.0}, {"pinned": "off"}])
def test_a_dynamic_cache_on_the_device(data: Data, changes: dict[str, Any]) -> None:
    """The same mini-batches and losses whatever it holds; rows that it serves are counted."""
    options = replace(OPTIONS, epochs=4, superbatch=2, **changes)
    tiers = {"dynamic_rows": 40, "dynamic": DynamicOptions(share=0.5, gamma=0.99, interval_batches=2, epochs=3)}
    found = _on_device(data, options, tiers=tiers | {"stands_in": False})
    _same(found, data.train(options, cached=90), reads=False)
    last = found.history[-1]
    assert last.feature_reads.dynamic_rows == last.dynamic["dynamic_hits"] > 0
    assert (last.dynamic["dynamic_stopped"], found.history[0].dynamic["dynamic_stopped"]) == (1, 0)
    assert sum(report.dynamic["dynamic_swapped_rows"] for report in found.history) > 0  # how many, time decides
    plain = _on_device(data, options)
    assert last.feature_reads.host_rows < plain.history[-1].feature_reads.host_rows


class _Unpinned(SimLauncher):
    """Refuses to pin."""

    host: np.ndarray

    def __init__(self, free_bytes: int = 80 << 30) -> None:
        super().__init__()
        self._free_bytes, self.placed = free_bytes, 0

    def free_bytes(self) -> int:
        return self._free_bytes

    def reach(self, array: Any) -> Any:
        raise PinnedMemoryError("1.0 GiB of host memory could not be pinned")

    def address(self, array: Any) -> int:
        assert not np.shares_memory(array, self.host) if hasattr(self, "host") else True
        return super().address(array)


def test_memory_that_cannot_be_pinned_is_copied(data: Data, caplog: pytest.LogCaptureFixture) -> None:
    options = replace(OPTIONS, epochs=2)
    launcher = _Unpinned()
    launcher.host = data.rows
    with caplog.at_level("INFO"):
        _same(_on_device(data, options, launcher), data.train(options, cached=90))
    assert "could not be pinned; going on without: the CPU collects the rows" in caplog.text
    assert "all adjacency lists are kept on the GPU" in caplog.text
    with pytest.raises(PinnedMemoryError, match="could not be pinned"):
        _on_device(data, replace(options, pinned="on"), _Unpinned())


def _needs(data: Data, options: TrainOptions, monkeypatch: pytest.MonkeyPatch) -> DeviceNeeds:
    """What training was found to take."""
    found = list[DeviceNeeds]()
    monkeypatch.setattr(device_compute, "check_device", lambda needs, *_, **__: found.append(needs))
    _on_device(data, replace(options, epochs=1))
    monkeypatch.undo()
    return found[0]


def test_without_pinning_and_room_the_cpu_samples(
    data: Data, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(OPTIONS, epochs=1)
    enough = _needs(data, options, monkeypatch).total + data.topology.indices.nbytes
    with caplog.at_level("INFO"):
        _same(_on_device(data, options, _Unpinned(enough - 1)), data.train(options, cached=90))
    assert "the CPU samples: not all adjacency lists fit" in caplog.text
    with caplog.at_level("INFO"):
        _on_device(data, options, _Unpinned(enough))
    assert "all adjacency lists are kept on the GPU" in caplog.text


class _Small(SimLauncher):
    def __init__(self, free_bytes: int) -> None:
        super().__init__()
        self._free_bytes = free_bytes

    def free_bytes(self) -> int:
        return self._free_bytes

    def to_device(self, array: Any) -> Any:
        raise AssertionError("nothing may be allocated")


def test_what_does_not_fit_is_refused_before_it_is_made(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the message names would do."""
    options = replace(OPTIONS, epochs=1)
    needs = _needs(data, options, monkeypatch)
    assert needs.caches == 90 * 32 + RankMap.nbytes_for(300) + adjacency_device_bytes(data.topology)
    _on_device(data, options, _Unpinned(needs.total))
    with pytest.raises(MachineError, match=r"the GPU has .* bytes free, training takes .*for caches.*in reserve") as e:
        _on_device(data, options, _Small(needs.total - 1))
    named = re.search(r"sampling.superbatch to (\d+), or set cache.device_budget to at most ([\d,]+)", str(e.value))
    assert named is not None
    assert int(named[1]) == options.superbatch - 1
    assert _needs(data, replace(options, superbatch=int(named[1])), monkeypatch).total < needs.total
    assert int(named[2].replace(",", "")) == needs.caches - 1
    with pytest.raises(MachineError, match=r"lower sampling.batch_size or sampling.fanouts, or use a GPU with"):
        _on_device(data, options, _Small(5000))


class _Failing(SimLauncher):
    def record(self) -> None:
        raise RuntimeError("the device is gone")


class _Full(SimLauncher):
    def record(self) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore")


def test_a_full_gpu_says_what_to_lower(data: Data) -> None:
    with pytest.raises(MachineError, match=r"the GPU's memory is full: lower sampling.superbatch.*2\.00 GiB"):
        _on_device(data, OPTIONS, _Full())


@pytest.mark.parametrize("place", ["torch.optim.Adam.step", "tasks.training_epoch.EpochTrainer._shared"])
def test_so_does_one_that_a_step_fills(data: Data, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(place, fail)
    with pytest.raises(MachineError, match="the GPU's memory is full"):
        _on_device(data, OPTIONS)


def test_errors_of_the_loading_thread_reach_the_caller(data: Data) -> None:
    with pytest.raises(RuntimeError, match="the device is gone"):
        _on_device(data, OPTIONS, _Failing())


class _Pinning(SimLauncher):
    """Counts what is within reach; may fail where the mini-batches begin."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.pinned, self.most, self._fails = list[int](), 0, fails

    def reach(self, array: Any) -> Any:
        self.pinned.append(array.ctypes.data)
        self.most = max(self.most, len(self.pinned))
        return array

    def release(self, array: Any) -> None:
        self.pinned.remove(array.ctypes.data)

    def record(self) -> None:
        if self._fails:
            raise RuntimeError("the device is gone")


def test_no_host_memory_stays_pinned(data: Data) -> None:
    launcher = _Pinning()
    for _ in range(2):
        _on_device(data, replace(OPTIONS, epochs=1), launcher)
        assert (launcher.pinned, launcher.most) == ([], 2)
    failing = _Pinning(fails=True)
    with pytest.raises(RuntimeError, match="the device is gone"):
        _on_device(data, OPTIONS, failing)
    assert (failing.pinned, failing.most) == ([], 2)


def test_no_thread_is_left(data: Data) -> None:
    _on_device(data, replace(OPTIONS, epochs=1))
    assert "load" not in {thread.name for thread in threading.enumerate()}
