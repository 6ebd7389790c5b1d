"""One worker of a team: `python -m tasks.worker` takes its job from standard input and trains along until told to stop.

It dies with the process that started it, however that one ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.nccl import meet
from tasks.trainer import train_along
from tasks.training_data import load_training_data
from tasks.training_types import TrainOptions

READY = "ready"
"""What a worker writes to standard output once it has its data."""
_PR_SET_PDEATHSIG = 1
# Rank 0 may validate for hours meanwhile, and a worker ends with it: no shorter time-out is right.
_PATIENCE_S = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker has to know."""

    store_path: Path
    """Store to train on."""
    plan_path: Path
    """Its cache plan."""
    options: TrainOptions
    """As those of rank 0."""
    data_digest: str
    """Identifies the data in the checkpoint."""
    meeting_file: Path
    """Where the processes find each other."""
    rank: int
    """Number of the worker, from 1 on."""
    parent: int
    """Process id of rank 0."""
    gpus: int
    """GPUs of the machine that rank 0 sees; a worker sees the one that it takes."""
    held: dict[str, int]
    """`LoadedData.held` of rank 0."""

    def to_json(self) -> str:
        """One line of text."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Inverse of `to_json`."""
        values = json.loads(text)
        options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values["options"].items()
        }
        if options["checkpoint_path"] is not None:
            options["checkpoint_path"] = Path(options["checkpoint_path"])
        paths = {name: Path(values[name]) for name in ("store_path", "plan_path", "meeting_file")}
        return cls(**{**values, **paths, "options": TrainOptions(**options)})


def main() -> None:
    """Do the job."""
    job = Job.from_json(sys.stdin.readline())
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != job.parent:  # it died before we could ask
        sys.exit(1)
    data = load_training_data(
        job.store_path,
        job.plan_path,
        shared=True,
        verify=False,
        on_gpu=job.options.backend == "cuda",
        held=job.held,
    )
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    with meet(job.meeting_file, job.rank, job.options, job.gpus, _PATIENCE_S) as peers:
        train_along(
            data.topology,
            data.features,
            data.labels,
            data.splits,
            data.degrees,
            job.options,
            peers,
            num_classes=data.num_classes,
            data_digest=job.data_digest,
        )


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
