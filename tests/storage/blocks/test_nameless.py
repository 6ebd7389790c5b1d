"""Spill files and the disk's probe where a file system lacks direct I/O or nameless files; nothing is left open."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.blocks import probe
from storage.blocks.extent import aligned_empty
from storage.blocks.io_stats import IoStats
from storage.blocks.probe import probe_direct_io, probe_disk
from storage.blocks.spill import SpillFile
from storage.errors import MachineError


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def refuse(monkeypatch: pytest.MonkeyPatch, refused: int, number: int) -> None:
    """Let `os.open` fail where all of some flags are given."""
    real = os.open

    def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & refused == refused:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", opened)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
@pytest.mark.parametrize("refused", [os.O_TMPFILE, os.O_TMPFILE | os.O_DIRECT, os.O_DIRECT], ids=str)
def test_spills_where_a_file_system_has_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int, number: int
) -> None:
    refuse(monkeypatch, refused, number)
    before, piece = descriptors(), aligned_empty(4096)
    piece[:] = np.arange(4096) % 251
    file = SpillFile(tmp_path, [4096], 4096, IoStats())
    assert not list(tmp_path.iterdir())
    file.write(0, piece, 4096).result()
    assert np.array_equal(file.read(0), piece)
    file.close()
    assert descriptors() == before


def test_a_directory_that_takes_no_file_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, os.O_TMPFILE, errno.EACCES)
    with pytest.raises(MachineError, match=f"no spill file can be made in {tmp_path}: Permission denied"):
        SpillFile(tmp_path, [4096], 4096, IoStats())


def test_a_spill_file_that_nobody_closes_is_closed(tmp_path: Path) -> None:
    before = descriptors()
    file = SpillFile(tmp_path, [4096], 4096, IoStats())
    assert descriptors() == before + 1
    del file
    assert descriptors() == before


@pytest.mark.parametrize("measure", [probe_direct_io, probe_disk])
def test_the_probe_reads_buffered_where_direct_reads_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measure: Any
) -> None:
    real, failures = os.preadv, [OSError(errno.EINVAL, "Invalid argument")]

    def first_refused(descriptor: int, *rest: Any) -> int:
        assert not list(tmp_path.iterdir()), "the file has a name"
        if failures:
            raise failures.pop()
        return real(descriptor, *rest)

    monkeypatch.setattr(probe, "_RANDOM_FILE_BYTES", 8 << 20)
    monkeypatch.setattr(os, "preadv", first_refused)
    before = descriptors()
    speed = measure(tmp_path, 0.02)
    assert not failures
    assert not getattr(speed, "direct", False)
    assert not getattr(speed, "supported", False)
    assert speed.bytes_per_s > 0
    assert descriptors() == before


def test_a_probe_that_fails_closes_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(probe, "_RANDOM_FILE_BYTES", 8 << 20)
    monkeypatch.setattr(os, "preadv", broken)
    before = descriptors()
    for measure in (probe_disk, probe_direct_io):
        with pytest.raises(OSError, match="Input/output error"):
            measure(tmp_path, 0.02)
    assert descriptors() == before
