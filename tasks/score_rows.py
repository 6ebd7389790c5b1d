"""Scores of many nodes that wait to be ranked, with their targets: in memory, or in a file without a name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from storage.blocks.io_stats import IoStats
from storage.blocks.row_file import RowFile, RowLayout
from storage.graph_store import StoreInfo
from tasks.metrics import Metric, ScoreArray, TargetArray
from tasks.scoring_memory import slices


class ScoreRows(Protocol):
    """Scores and targets, written once, then read as often as ranking takes; close it."""

    memory_bytes: int
    """Memory in which to rank."""

    def append(self, scores_nC: ScoreArray, targets: TargetArray) -> None:
        """Keep some nodes' float32 scores, which must not change, and their targets."""

    def read(self) -> Iterator[tuple[ScoreArray, TargetArray]]:
        """All of them, cut by `slices` at least, valid until the next; nothing may be appended afterwards."""

    def close(self) -> None:
        """Give the room back."""


class ScoresInMemory:
    """Holds what it is given, without a copy.

    Parameters
    ----------
    memory_bytes : int
        Memory in which to rank, beside the scores.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self._held = list[tuple[ScoreArray, TargetArray]]()

    def append(self, scores_nC: ScoreArray, targets: TargetArray) -> None:
        """As `ScoreRows.append`."""
        self._held.append((scores_nC, targets))

    def read(self) -> Iterator[tuple[ScoreArray, TargetArray]]:
        """As `ScoreRows.read`."""
        for scores_nC, targets in self._held:
            for part in slices(len(targets), scores_nC.shape[1], many_labels=targets.ndim == 2):
                yield scores_nC[part], targets[part]

    def close(self) -> None:
        """Let go of the scores."""
        self._held.clear()


class ScoresOnDisk:
    """Keeps them in a nameless file: a row is a node's scores and behind them its target, or targets, as float32.

    Parameters
    ----------
    directory : Path
    num_rows : int
        Nodes that will be appended.
    stats : IoStats
    memory_bytes : int
        Memory in which to rank, beside pieces of the file.
    """

    def __init__(self, directory: Path, num_rows: int, stats: IoStats, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self._directory, self._num_rows, self._stats = directory, num_rows, stats
        self._file: RowFile | None = None
        self._num_outputs, self._many_labels, self._is_finished = 0, False, False

    def append(self, scores_nC: ScoreArray, targets: TargetArray) -> None:
        """As `ScoreRows.append`.

        Raises
        ------
        MachineError
            If the disk is full or cannot be written.
        """
        rows = np.concatenate([scores_nC, targets if targets.ndim == 2 else targets[:, None]], axis=1, dtype=np.float32)
        if self._file is None:
            self._num_outputs, self._many_labels = scores_nC.shape[1], targets.ndim == 2
            self._file = RowFile(self._directory, RowLayout(self._num_rows, rows.shape[1]), self._stats)
        self._file.append(rows)

    def read(self) -> Iterator[tuple[ScoreArray, TargetArray]]:
        """As `ScoreRows.read`.

        Raises
        ------
        StorageError, MachineError
            If what was written cannot be read or came back changed.
        """
        if self._file is None:
            return
        if not self._is_finished:
            self._file.finish()
            self._is_finished = True
        for _, _, rows in self._file.read(np.arange(self._file.num_pieces)):
            for part in slices(len(rows), self._num_outputs, many_labels=self._many_labels):
                scores_nC, targets = rows[part, : self._num_outputs], rows[part, self._num_outputs :]
                yield scores_nC, targets.astype(np.int8) if self._many_labels else targets[:, 0].astype(np.int64)

    def close(self) -> None:
        """Give the space on disk back."""
        if self._file is not None:
            self._file.close()


@dataclass(frozen=True, slots=True)
class ScoreFile:
    """Sizes of what `ScoresOnDisk` keeps."""

    num_rows: int
    """Nodes."""
    width: int
    """Values of a row."""

    @classmethod
    def of(cls, info: StoreInfo, metric: Metric) -> ScoreFile:
        """The larger of those of testing, which asks for all metrics, and of validation, where `metric` ranks."""
        sizes = info.split_sizes
        return cls.holding(info, max(sizes["test"], sizes["valid"] if metric == "roc_auc" else 0))

    @classmethod
    def holding(cls, info: StoreInfo, num_rows: int) -> ScoreFile:
        """That of some nodes of a graph."""
        return cls(num_rows, 2 * info.num_classes if info.is_multi_label else info.num_classes + 1)

    @property
    def disk_bytes(self) -> int:
        """Bytes on disk."""
        return RowLayout(self.num_rows, self.width).nbytes

    @property
    def memory_bytes(self) -> int:
        """Most bytes of pieces in memory, while it is written or while it is read."""
        return RowLayout(self.num_rows, self.width).memory_bytes
