"""A run from disk to be killed: `python -m tests.tasks.killed_on_disk STORE CHECKPOINT`; a line ends an epoch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from tasks.on_disk import StorageOptions, open_on_disk
from tasks.trainer import train_from
from tasks.training_reports import EpochReport, TrainResult
from tasks.training_types import TrainOptions
from tests.tasks.training_graphs import OPTIONS

EPOCHS = 25


def options(checkpoint_path: Path | None) -> TrainOptions:
    """Options of the run, wherever it is started."""
    return replace(OPTIONS, epochs=EPOCHS, compute_threads=1, checkpoint_path=checkpoint_path)


def run(store: Path, checkpoint: Path) -> TrainResult:
    """Train, or go on; the host cache holds next to nothing, so that rows are spilled."""
    none = np.empty(0, np.int64)
    storage = StorageOptions(host_budget=64 << 20, directory=checkpoint.parent / "spill", hyperbatch=4)
    with open_on_disk(store, none, none, options(checkpoint), storage) as data:
        arguments = (data.source, data.labels, data.splits, data.degrees, options(checkpoint))
        return train_from(*arguments, num_classes=data.num_classes, on_epoch=_announce)


def _announce(report: EpochReport) -> None:
    sys.stdout.write(f"{report.epoch}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]))
