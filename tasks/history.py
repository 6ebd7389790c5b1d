"""The epochs of a training so far: in memory, and one line each in a file that only grows beside the checkpoint.

An epoch is written once, however many went before it. The checkpoint says how much of the file belongs to it, so a line
that was written before a crash, and the checkpoint after it not, is cut off when training goes on.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path

from storage.atomic import write_tail
from storage.errors import StorageError
from tasks.training_reports import EpochReport


@dataclass(frozen=True, slots=True)
class HistoryMark:
    """The part of a history's file that belongs to a checkpoint."""

    nbytes: int = 0
    """Its length."""
    crc32: int = 0
    """Its checksum."""


class History:
    """Reports of the finished epochs.

    Parameters
    ----------
    checkpoint_path : Path, optional
        Where the checkpoint is; `NAME.history` lies beside it. None keeps the reports in memory alone.
    """

    def __init__(self, checkpoint_path: Path | None = None) -> None:
        self._path = None if checkpoint_path is None else checkpoint_path.with_name(f"{checkpoint_path.name}.history")
        self._reports: list[EpochReport] = []
        self._best: EpochReport | None = None
        self.mark = HistoryMark()
        """What the next checkpoint is to name."""

    def __len__(self) -> int:
        return len(self._reports)

    @property
    def reports(self) -> tuple[EpochReport, ...]:
        """All of them, by epoch."""
        return tuple(self._reports)

    @property
    def best(self) -> EpochReport:
        """The last that was the best of its time; there must be one."""
        assert self._best is not None, "no epoch is finished"
        return self._best

    def would_be_best(self, metric: float | None, loss: float | None) -> bool:
        """Whether an epoch of this metric and loss beats all before it; without either, the last epoch is the best."""
        if self._best is None or metric is None or loss is None:
            return True
        assert self._best.valid_metric is not None
        assert self._best.valid_loss is not None
        return (metric, -loss) > (self._best.valid_metric, -self._best.valid_loss)

    def add(self, report: EpochReport) -> None:
        """Add an epoch; its line is durable before this returns.

        Raises
        ------
        MachineError
            If the disk is full.
        """
        self._remember(report)
        if self._path is not None:
            line = json.dumps(report.to_dict()).encode() + b"\n"
            write_tail(self._path, self.mark.nbytes, line)
            self.mark = HistoryMark(self.mark.nbytes + len(line), zlib.crc32(line, self.mark.crc32))

    def read(self, mark: HistoryMark) -> None:
        """Take up the epochs of a checkpoint.

        Raises
        ------
        StorageError
            If the file has not what the checkpoint says.
        """
        assert self._path is not None, "a checkpoint has a path"
        try:
            with self._path.open("rb") as file:
                content = file.read(mark.nbytes)
        except FileNotFoundError:
            content = b""
        if HistoryMark(len(content), zlib.crc32(content)) != mark:
            raise StorageError(
                f"{self._path} is damaged or not that of its checkpoint: remove both to train from the start"
            )
        for line in content.splitlines():
            self._remember(EpochReport.from_dict(json.loads(line)))
        self.mark = mark

    def _remember(self, report: EpochReport) -> None:
        self._reports.append(report)
        if report.is_best:
            self._best = report
