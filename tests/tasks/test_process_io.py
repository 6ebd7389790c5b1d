"""What a stage read and wrote is what the kernel counted meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks import process_io as module
from tasks.process_io import io_metrics, process_io


@pytest.mark.skipif(not process_io(), reason="this kernel does not count")
def test_writes_and_reads_are_counted(tmp_path: Path) -> None:
    before = process_io()
    with (tmp_path / "file").open("wb") as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    with (tmp_path / "file").open("rb", buffering=0) as file:
        assert len(file.read(1 << 20)) == 1 << 20
    found = io_metrics(before, process_io(), seconds=2.0)
    assert found["io/written_bytes"] >= 1 << 20 or found["io/written_bytes"] == 0, "a memory file system writes nothing"
    assert found["io/written_bytes_per_s"] == found["io/written_bytes"] / 2
    assert 1 <= found["io/read_calls"] < 100
    assert (1 << 20) / found["io/read_calls"] <= found["io/mean_read_bytes"]


def test_mean_and_rates() -> None:
    before = {"rchar": 0, "syscr": 0, "read_bytes": 10, "write_bytes": 0}
    after = {"rchar": 4096, "syscr": 4, "read_bytes": 2058, "write_bytes": 1024}
    assert io_metrics(before, after, 2.0) == {
        "io/read_bytes": 2048,
        "io/written_bytes": 1024,
        "io/read_calls": 4,
        "io/mean_read_bytes": 1024,
        "io/read_bytes_per_s": 1024,
        "io/written_bytes_per_s": 512,
    }


def test_no_counters_no_metrics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_COUNTERS", tmp_path / "none")
    assert io_metrics({}, process_io(), 1.0) == {}
