"""A training run to be killed: `python -m tests.tasks.killed_training CHECKPOINT`; a line on stdout ends each epoch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tasks.training_reports import EpochReport
from tasks.training_types import TrainOptions
from tests.tasks.training_graphs import OPTIONS, community_data

EPOCHS = 60


def options(checkpoint_path: Path | None) -> TrainOptions:
    """Options of the run, wherever it is started."""
    return replace(OPTIONS, kind="gcn", epochs=EPOCHS, compute_threads=1, checkpoint_path=checkpoint_path)


def _announce(report: EpochReport) -> None:
    sys.stdout.write(f"{report.epoch}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    community_data().train(options(Path(sys.argv[1])), on_epoch=_announce)
