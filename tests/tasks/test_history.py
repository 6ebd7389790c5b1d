"""The history of a training: a file that grows by a line an epoch, whose end a crash may have torn."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kernels.mfg import TierReads
from storage.errors import MachineError, StorageError
from tasks.history import History, HistoryMark
from tasks.training_reports import EpochReport
from tests.tasks.test_trainer import assert_same_run
from tests.tasks.training_graphs import OPTIONS, community_data

DATA = community_data()


def report(epoch: int, *, metric: float | None = 0.5, is_best: bool = True) -> EpochReport:
    first, second, third, fourth = (TierReads(epoch, 2, 3, 4) for _ in range(4))
    seconds = {"train": 0.1, "wait": 1e-17, "validate": 1 / 3}
    loss = None if metric is None else 0.1
    return EpochReport(epoch, 1 / 7, metric, metric, loss, is_best, 0.01, seconds, first, second, third, fourth)


def filled(path: Path | None, epochs: int) -> History:
    history = History(path)
    for epoch in range(epochs):
        history.add(report(epoch, is_best=epoch < 2))
    return history


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.pt"


def file_of(path: Path) -> Path:
    return path.with_name("checkpoint.pt.history")


def test_comes_back_to_the_bit(path: Path) -> None:
    written, read = filled(path, 5), History(path)
    read.read(written.mark)
    assert read.reports == written.reports
    assert read.mark == written.mark == HistoryMark(file_of(path).stat().st_size, read.mark.crc32)
    assert read.best == written.best == written.reports[1]


def test_without_a_checkpoint_nothing_is_written(tmp_path: Path) -> None:
    assert len(filled(None, 3)) == 3
    assert not list(tmp_path.iterdir())


def test_what_was_written_after_the_checkpoint_is_cut_off(path: Path) -> None:
    """Killed between the line and the checkpoint, or in the middle of a line, training writes the epoch once more."""
    mark = filled(path, 3).mark
    with file_of(path).open("ab") as file:
        file.write(b'{"epoch": 3, "loss": 0.')
    history = History(path)
    history.read(mark)
    history.add(report(3))
    again = History(path)
    again.read(history.mark)
    assert [each.epoch for each in again.reports] == [0, 1, 2, 3]
    assert file_of(path).read_bytes().count(b"\n") == 4


def test_damage_is_found(path: Path) -> None:
    mark, content = filled(path, 3).mark, file_of(path).read_bytes()
    for damaged in (content[:-1], content.replace(b"0.1", b"0.2", 1), b""):
        file_of(path).write_bytes(damaged)
        with pytest.raises(StorageError, match=r"checkpoint\.pt\.history is damaged"):
            History(path).read(mark)
    file_of(path).unlink()
    with pytest.raises(StorageError, match="remove both to train from the start"):
        History(path).read(mark)


def test_a_full_disk_says_what_to_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    history = filled(path, 2)
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(MachineError, match="disk is full"):
        history.add(report(2))
    History(path).read(history.mark)


@pytest.mark.parametrize(
    ("metric", "loss", "beats"),
    [(0.6, 9.0, True), (0.5, 0.05, True), (0.5, 0.1, False), (0.4, 0.0, False), (None, None, True)],
)
def test_the_metric_decides_and_then_the_loss(metric: float | None, loss: float | None, beats: bool) -> None:
    assert filled(None, 1).would_be_best(metric, loss) == beats


def test_the_first_epoch_is_the_best_so_far() -> None:
    assert History().would_be_best(0.0, 100.0)


def test_an_epoch_is_written_once_however_many_follow(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither time nor bytes of an epoch grow with the epochs before it."""
    turned, sizes, to_dict = [], [], EpochReport.to_dict

    def counted(self: EpochReport) -> dict[str, Any]:
        turned.append(self.epoch)
        return to_dict(self)

    monkeypatch.setattr(EpochReport, "to_dict", counted)
    options = replace(OPTIONS, epochs=30, batch_size=200, patience=29, checkpoint_path=path)
    DATA.train(options, on_epoch=lambda _: sizes.append((path.stat().st_size, file_of(path).stat().st_size)))
    assert turned == list(range(30))
    checkpoints, histories = zip(*sizes, strict=True)
    assert max(checkpoints) - min(checkpoints) < 1024  # the optimizer's counters
    grown = [after - before for before, after in pairwise(histories)]
    assert max(grown) < 2 * min(grown)


def test_a_run_begun_anew_writes_over_the_history_of_the_last(path: Path) -> None:
    options = replace(OPTIONS, epochs=3, checkpoint_path=path)
    DATA.train(options)
    path.unlink()
    anew = DATA.train(options)
    assert anew.resumed_epochs == 0
    assert_same_run(DATA.train(options), anew)
