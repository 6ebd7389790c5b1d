"""How many threads compute a step while others load."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tasks.training_types import TrainOptions


@contextmanager
def compute_threads(options: TrainOptions) -> Iterator[None]:
    """Set torch's thread count for a while.

    With as many compute threads as cores, each parallel operation waits for a thread that sampling has displaced:
    measured on two busy cores, steps took five times as long.
    """
    before = torch.get_num_threads()
    share = (len(os.sched_getaffinity(0)) - 1) // options.workers
    torch.set_num_threads(options.compute_threads or max(1, share))
    try:
        yield
    finally:
        torch.set_num_threads(before)
