"""Starts the workers that train along with this process, watches them, and leaves none behind."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kernels.cuda.probe import VISIBLE, visible_device
from storage.errors import MachineError
from tasks.nccl import meet
from tasks.peers import Alone, Peers
from tasks.training_types import TrainOptions
from tasks.worker import READY, Job

_logger = logging.getLogger(__name__)
_ROOT = Path(__file__).parents[1]
_END_S = 10.0
_POLL_S = 0.2
_NOTICE_S = 2.0  # between a broken connection and the end of the process that broke it


@contextlib.contextmanager
def worker_team(
    store_path: Path,
    plan_path: Path,
    options: TrainOptions,
    *,
    data_digest: str,
    directory: Path,
    held: Mapping[str, int] | None = None,
) -> Iterator[Peers]:
    """Start `options.workers` - 1 processes that open the same store; they end with the block.

    Parameters
    ----------
    store_path, plan_path : Path
    options : TrainOptions
    data_digest : str
        As that of `train`.
    directory : Path
        For files that last as long as the team: where the processes meet, and what they write to standard error.
    held : mapping, optional
        `LoadedData.held`: what workers map instead of reading it.

    Yields
    ------
    Peers
        Rank 0 of the team.

    Raises
    ------
    MachineError
        If a worker dies or stalls, in the block too; the message says which and how.
    """
    if options.workers == 1:
        yield Alone()
        return
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="workers-", dir=directory) as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        workers: list[_Worker] = []
        gpus = torch.cuda.device_count() if options.backend == "cuda" else 0
        for rank in range(1, options.workers):
            job = Job(
                store_path.absolute(),
                plan_path.absolute(),
                options,
                data_digest,
                (folder / "meeting").absolute(),
                rank,
                os.getpid(),
                gpus,
                dict(held or {}),
            )
            workers.append(stack.enter_context(_started(job, folder / f"worker-{rank}.log")))
        for worker in workers:
            worker.wait_until_ready(options.stall_timeout_s)
        _logger.info("training in %d processes", options.workers)
        rank0 = _Rank0(workers, options)
        stack.enter_context(rank0.meeting(folder / "meeting", options, gpus))
        yield rank0


@dataclass(frozen=True, slots=True)
class _Worker:
    """One process and what it said."""

    rank: int
    process: subprocess.Popen[str]
    log: Path

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until it has its data, or is dead."""
        deadline, out = time.monotonic() + timeout_s, self.process.stdout
        assert out is not None
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while not selector.select(_POLL_S):
                if time.monotonic() > deadline:
                    raise MachineError(f"worker {self.rank} has not opened the store after {timeout_s:g} s")
        if out.readline().strip() != READY:
            self.process.wait()
            raise self.epitaph()

    def epitaph(self) -> MachineError:
        """Say how it ended."""
        code, said = self.process.returncode, self.log.read_text(encoding="utf-8", errors="replace").strip()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        reason = f" ({said.splitlines()[-1]})" if said else " (is memory short?)" if code == -signal.SIGKILL else ""
        return MachineError(
            f"worker {self.rank} {how}{reason}; run again to go on after the last finished epoch, "
            "or set training.workers=1 and training.accumulate to train alike in one process"
        )


class _Rank0:
    """The group as rank 0 sees it: a failed exchange is explained by the worker that caused it."""

    def __init__(self, workers: list[_Worker], options: TrainOptions) -> None:
        self._workers, self._timeout_s = workers, options.stall_timeout_s
        self._peers: Peers = Alone()
        self.rank, self.size = 0, options.workers

    @property
    def place(self) -> torch.device:
        """Where gradients meet."""
        return self._peers.place

    @contextlib.contextmanager
    def meeting(self, meeting_file: Path, options: TrainOptions, gpus: int) -> Iterator[None]:
        """Be one of the group for as long as the block lasts."""
        with contextlib.ExitStack() as met:
            with self._explained():
                peers = meet(meeting_file, 0, options, gpus, options.stall_timeout_s, look=self._look)
                self._peers = met.enter_context(peers)
            yield

    def exchange(self, values: Tensor) -> list[Tensor]:
        """Give values to all and return everybody's, by rank."""
        with self._explained():
            return self._peers.exchange(values)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except MachineError as error:
            deadline = time.monotonic() + _NOTICE_S
            while time.monotonic() < deadline:
                try:
                    self._look()
                except MachineError as epitaph:
                    raise epitaph from error
                time.sleep(_POLL_S)
            raise MachineError(
                f"no worker has died, but one has not answered for {self._timeout_s:g} s: "
                "is the machine overloaded or swapping?"
            ) from error

    def _look(self) -> None:
        for worker in self._workers:
            if worker.process.poll() is not None:
                raise worker.epitaph()


@contextlib.contextmanager
def _started(job: Job, log_file: Path) -> Iterator[_Worker]:
    """Start a worker in a session of its own, so that Ctrl-C reaches rank 0 alone; end it with the block."""
    environment = (
        os.environ
        | ({VISIBLE: visible_device(job.rank % job.gpus)} if job.gpus else {})
        | {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))),
        }
    )
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tasks.worker"],  # no module comes from the caller's directory
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            pass_fds=tuple(job.held.values()),
        )
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(job.to_json() + "\n")
            process.stdin.flush()
        yield _Worker(job.rank, process, log_file)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)  # training is over: it ends by itself
    finally:
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        process.wait()
