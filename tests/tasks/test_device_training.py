"""The training loop on the device, through the host shim: mini-batches and reads of the CPU, weights to rounding."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.cuda.current import launching_through
from storage.errors import MachineError
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


def _same(one: TrainResult, other: TrainResult) -> None:
    for report, expected in zip(one.history, other.history, strict=True):
        assert report.loss == pytest.approx(expected.loss, rel=1e-3)
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
    ],
    ids=["sage", "gcn", "gat", "batch norm", "mlp"],
)
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


class _Small(SimLauncher):
    def free_bytes(self) -> int:
        return 5000


def test_caches_that_do_not_fit_are_refused_before_they_are_made(data: Data) -> None:
    with pytest.raises(MachineError, match=r"the GPU has 5,000 bytes free.*lower cache.device_budget by at least"):
        _on_device(data, OPTIONS, _Small())


class _Failing(SimLauncher):
    def record(self) -> None:
        raise RuntimeError("the device is gone")


class _Full(SimLauncher):
    def record(self) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore")


def test_a_full_gpu_says_what_to_lower(data: Data) -> None:
    with pytest.raises(MachineError, match=r"the GPU's memory is full: lower sampling.superbatch.*2\.00 GiB"):
        _on_device(data, OPTIONS, _Full())


def test_errors_of_the_loading_thread_reach_the_caller(data: Data) -> None:
    with pytest.raises(RuntimeError, match="the device is gone"):
        _on_device(data, OPTIONS, _Failing())


class _Pinning(SimLauncher):
    """Counts what is within reach; may fail where the mini-batches begin."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.pinned, self.most, self._fails = [], 0, fails

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
