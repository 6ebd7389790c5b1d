"""Peers whose gradients meet on GPUs, through NCCL; everything else meets in host memory. Untried: see docs/gpu.md."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from storage.errors import MachineError
from tasks.gloo import GlooPeers
from tasks.peers import Peers
from tasks.training_types import TrainOptions

_logger = logging.getLogger(__name__)
_ALIVE = torch.zeros(1)


class NcclPeers:
    """One process of a group, with a GPU of its own.

    A process that has died is noticed in host memory before each exchange on the GPUs, where nothing would tell.

    Parameters
    ----------
    host : Peers
        The same processes, as they meet in host memory.
    meeting_file : Path
        A file that does not exist yet, the same for all.
    timeout_s : float
        How long to wait for the others, now and in each exchange.

    Raises
    ------
    MachineError
        If they do not come.
    """

    def __init__(self, host: Peers, meeting_file: Path, timeout_s: float) -> None:
        self._host, self.rank, self.size = host, host.rank, host.size
        self.place = torch.device("cuda", host.rank)
        nccl: Any = distributed.ProcessGroupNCCL
        store: Any = distributed.FileStore  # type: ignore[attr-defined]
        options = nccl.Options()
        options._timeout = timedelta(seconds=timeout_s)
        try:
            self._group = nccl(store(str(meeting_file), self.size), self.rank, self.size, options)
        except RuntimeError as error:
            raise MachineError(f"the workers did not meet on their GPUs: {error}") from error

    def exchange(self, values: Tensor) -> list[Tensor]:
        """Give values to all and return everybody's, by rank: where they lie, in the order of the current stream."""
        if values.device.type == "cpu":
            return self._host.exchange(values)
        self._host.exchange(_ALIVE)
        given = [torch.empty_like(values) for _ in range(self.size)]
        try:
            self._group.allgather([given], [values.contiguous()]).wait()
        except RuntimeError as error:
            raise MachineError(f"a worker does not answer on its GPU: {error}") from error
        return given


def meet(meeting_file: Path, rank: int, options: TrainOptions, timeout_s: float) -> Peers:
    """Meet the other processes of a team: on GPUs where each has one, else in host memory."""
    host = GlooPeers(meeting_file, rank, options.workers, timeout_s)
    if options.backend != "cuda":
        return host
    gpus = torch.cuda.device_count()
    if gpus >= options.workers and distributed.is_nccl_available():
        _logger.info("gradients meet on the GPUs, through NCCL")
        return NcclPeers(host, meeting_file.with_suffix(".nccl"), timeout_s)
    why = f"{options.workers} workers share {gpus} GPUs" if gpus < options.workers else "this PyTorch has no NCCL"
    _logger.info("gradients meet in host memory: %s", why)
    return host
