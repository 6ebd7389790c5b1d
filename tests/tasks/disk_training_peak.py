"""Trains from disk in this process and prints the growth of its memory over the budget, for each budget given."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import numpy as np

from storage.errors import BudgetError
from tasks.on_disk import StorageOptions, open_on_disk
from tasks.trainer import train_from
from tasks.training_reports import TrainResult
from tasks.training_types import TrainOptions
from tests.tasks.measured_memory import Meter

_NONE = np.empty(0, np.int64)


def train_within(path: Path, options: TrainOptions, budget: int, directory: Path | None = None) -> TrainResult:
    """Train on a store within a budget, spilling beside it or elsewhere; its plan goes to the log."""
    storage = StorageOptions(host_budget=budget, directory=directory or path.parent)
    with open_on_disk(path, _NONE, _NONE, options, storage) as data:
        arguments = (data.source, data.labels, data.splits, data.degrees, options)
        return train_from(*arguments, num_classes=data.num_classes)


def smallest_budget(path: Path, options: TrainOptions, directory: Path | None = None) -> int:
    """The budget that a refusal names."""
    try:
        train_within(path, options, 1, directory)
    except BudgetError as error:
        return int(str(error).split("at least ")[1].split(",")[0])
    raise AssertionError("a budget of one byte was enough")


def main() -> None:
    """`STORE FACTOR...`: factors of the smallest budget; prints growth and budget of each as JSON."""
    logging.basicConfig(level=logging.INFO, force=True)
    path, factors = Path(sys.argv[1]), [float(factor) for factor in sys.argv[2:]]
    options = TrainOptions(kind="sage", fanouts=(5, 10), hidden=32, dropout=0.0, epochs=1, batch_size=200, seed=0)
    smallest, meter = smallest_budget(path, options), Meter()
    train_within(path, options, 2 * smallest)  # compiled and warm
    for factor in factors:
        budget = int(factor * smallest)
        meter.start(str(factor), budget)
        train_within(path, options, budget)
        meter.stop()
    sys.stdout.write(json.dumps({name: (grown, budget) for name, (budget, grown) in meter.peaks.items()}))


if __name__ == "__main__":
    main()
