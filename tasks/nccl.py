"""Peers whose gradients meet on GPUs, through NCCL; everything else meets in host memory. Untried: see docs/gpu.md."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
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
_POLL_S = 50e-6
_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""0 leaves errors to this module; PyTorch would end the process by SIGABRT."""


class NcclPeers:
    """One process of a group, with a GPU of its own.

    A process that has died is noticed in host memory before each exchange on the GPUs. One that dies within it leaves
    the others' GPUs waiting, and NCCL's own guard would end this process: the exchange is watched from here instead.

    Parameters
    ----------
    host : Peers
        The same processes, as they meet in host memory.
    meeting_file : Path
        A file that does not exist yet, the same for all.
    timeout_s : float
        How long an exchange may take once all have come to it.
    look : callable
        Raises MachineError where another process is known to have died.

    Raises
    ------
    MachineError
        If they do not come.
    """

    def __init__(self, host: Peers, meeting_file: Path, timeout_s: float, look: Callable[[], None]) -> None:
        self._host, self.rank, self.size = host, host.rank, host.size
        self._timeout_s, self._look, self._is_whole = timeout_s, look, True
        self.place = torch.device("cuda", 0)  # rank 0 takes the first GPU, and a worker sees none but its own
        os.environ.setdefault(_HANDLING, "0")
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
            work = self._group.allgather([given], [values.contiguous()])
            self._wait_for(work)
            work.wait()  # for the stream: what is read of it comes after it
        except Exception as error:
            self._is_whole = False
            self._group.abort()
            if isinstance(error, MachineError):
                raise
            raise MachineError(f"a worker does not answer on its GPU: {error}") from error
        return given

    def close(self) -> None:
        """Leave the group, where nothing has ended it."""
        if self._is_whole:
            self._group.shutdown()

    def _wait_for(self, work: Any) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not work.is_completed():
            self._look()
            if time.monotonic() > deadline:
                raise MachineError(f"an exchange between GPUs has not ended for {self._timeout_s:g} s")
            time.sleep(_POLL_S)


@contextlib.contextmanager
def meet(
    meeting_file: Path,
    rank: int,
    options: TrainOptions,
    gpus: int,
    timeout_s: float,
    look: Callable[[], None] = lambda: None,
) -> Iterator[Peers]:
    """Meet the other processes of a team: on GPUs where each has one, else in host memory.

    Parameters
    ----------
    meeting_file : Path
        A file that does not exist yet, the same for all.
    rank : int
    options : TrainOptions
    gpus : int
        Of the machine, not those that this process sees alone.
    timeout_s : float
        How long to wait for the others.
    look : callable
        Raises MachineError where another process is known to have died.

    Yields
    ------
    Peers

    Raises
    ------
    MachineError
        If they do not come.
    """
    host = GlooPeers(meeting_file, rank, options.workers, timeout_s)
    if options.backend != "cuda":
        yield host
        return
    if gpus >= options.workers and distributed.is_nccl_available():
        _logger.info("gradients meet on the GPUs, through NCCL")
        peers = NcclPeers(host, meeting_file.with_suffix(".nccl"), options.stall_timeout_s, look)
        with contextlib.closing(peers):
            yield peers
        return
    why = f"{options.workers} workers share {gpus} GPUs" if gpus < options.workers else "this PyTorch has no NCCL"
    _logger.info("gradients meet in host memory: %s", why)
    yield host
