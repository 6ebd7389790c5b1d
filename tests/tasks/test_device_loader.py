"""Super-batches on the device: how many lie there, and that none is given back while it is read."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernels.cuda.tiers import RowGroup
from kernels.mfg import TierReads
from storage.errors import MachineError
from tasks.device_loader import DeviceLoader


class _Device:
    """Launcher, sampler and tiers in one; notes what was made and when the consumer's stream was waited for."""

    def __init__(self) -> None:
        self.sampled, self.made, self.finished = 0, 0, 0

    def sample(self, batches: Any, **_: Any) -> Any:
        self.sampled += 1
        samples = [SimpleNamespace(input_nodes=seeds) for seeds in batches]
        return SimpleNamespace(samples=samples, adjacency_reads=TierReads())

    def gather_group(self, groups: Any) -> RowGroup:
        self.made += 1
        return RowGroup(groups, None)

    def on(self, name: str) -> Any:
        return nullcontext()

    def stream(self) -> Any:
        return nullcontext()

    def record(self) -> None:
        return None

    def wait(self, event: None) -> None:
        return None

    def finish(self, event: None) -> None:
        self.finished += 1


@pytest.fixture
def device() -> _Device:
    return _Device()


def _stream(device: Any, num_batches: int) -> Any:
    loader = DeviceLoader(device, device, device, superbatch=2, stall_timeout_s=20)
    return loader.epoch([np.array([number]) for number in range(num_batches)], epoch=0)


def _settled(device: _Device, expected: int) -> int:
    deadline = time.monotonic() + 5
    while device.made < expected and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)  # time for one too many
    return device.made


def test_two_super_batches_have_rows_at_most_and_one_more_is_sampled(device: _Device) -> None:
    with _stream(device, 12) as stream:
        assert _settled(device, 2) == 2
        assert device.sampled == 3
        batches = iter(stream)
        next(batches), next(batches)
        assert _settled(device, 2) == 2
        next(batches)
        assert _settled(device, 3) == 3
        assert len(list(batches)) == 9
    assert (device.made, device.finished) == (6, 6)


@pytest.mark.parametrize("is_kept", [True, False])
def test_whoever_leaves_in_mid_super_batch_waits_for_what_reads_it(device: _Device, is_kept: bool) -> None:
    with _stream(device, 12) as stream:
        batches = iter(stream)
        next(batches)
        assert device.finished == 0
        if not is_kept:
            batches.close()
            assert device.finished == 1
    assert device.finished == 2  # the loading stream as well, whose rows nobody took


def test_a_loading_thread_that_does_not_end_is_an_error(device: _Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it may still read must not be given back in silence."""
    hangs = threading.Event()
    monkeypatch.setattr(device, "gather_group", lambda groups: hangs.wait(20))
    whole: Any = device
    stream = DeviceLoader(whole, whole, whole, superbatch=2, stall_timeout_s=0.2).epoch([np.array([0])], epoch=0)
    try:
        with pytest.raises(MachineError, match=r"has not ended for 0\.2 s"):
            stream.close()
    finally:
        hangs.set()
