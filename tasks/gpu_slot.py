"""The slot that training takes where several runs share a GPU: one at a time, given back however the run ends."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Iterator

from storage.errors import MachineError

_logger = logging.getLogger(__name__)
GPU_LIMIT = "gpu"
"""Concurrency limit that `garden up` creates."""
LIMIT_VARIABLE = "GARDEN_GPU_LIMIT"
"""Names the concurrency limit of this machine's GPU; where it is not set, nothing is limited."""
_LEASE_S = 60.0  # how long a slot outlives a process that was killed
_ASK_S = 10.0
_PAUSE_S = 1.0
_SAY_EVERY = 60
_ALL_TAKEN, _SERVER_ERROR = 423, 500
_RENEWAL_LOGGERS = ("prefect.concurrency", "prefect.flow_runs", "prefect.task_runs")
_LOST = "Concurrency lease renewal failed"
_RENEWAL_WORDS = (_LOST, "concurrency lease renewal")


@contextlib.contextmanager
def gpu_slot() -> Iterator[None]:
    """Hold a slot of this machine's GPU for as long as the block lasts; wait for it first, if need be.

    Raises
    ------
    MachineError
        If the limit that `GARDEN_GPU_LIMIT` names does not exist.
    """
    name = os.environ.get(LIMIT_VARIABLE)
    with contextlib.ExitStack() as stack:
        if name:
            stack.enter_context(_losses_in_words(name))
            _wait_for_slot(name, stack)
        yield


@contextlib.contextmanager
def _losses_in_words(name: str) -> Iterator[None]:
    """Say in a line of ours that a slot was lost, in place of Prefect's lines with tracebacks.

    It is lost when nobody renews it: this process was suspended, the machine slept, or the server was away.
    """

    def is_other(record: logging.LogRecord) -> bool:
        if not any(words in str(record.msg) for words in _RENEWAL_WORDS):
            return True
        if record.levelno >= logging.WARNING and str(record.msg).startswith(_LOST):
            _logger.warning(
                "this run was suspended or the Prefect server away for longer than %.0f s, so its slot of %r is lost: "
                "it goes on all the same, but another run may train beside it",
                _LEASE_S,
                name,
            )
        return False

    loggers = [logging.getLogger(logger) for logger in _RENEWAL_LOGGERS]
    for logger in loggers:
        logger.addFilter(is_other)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_other)


def _wait_for_slot(name: str, stack: contextlib.ExitStack) -> None:
    """Ask now and then, and sleep between: a run that waits within Prefect does not hear that it is cancelled."""
    from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
    from prefect.concurrency.sync import concurrency

    for tries in itertools.count():
        slot = concurrency(
            name,
            occupy=1,
            timeout_seconds=_ASK_S,
            max_retries=0,
            lease_duration=_LEASE_S,
            strict=True,  # otherwise a limit that does not exist would limit nothing
            raise_on_lease_renewal_failure=False,  # a server that is away for a while must not cost a training
        )
        try:
            stack.enter_context(slot)
        except (TimeoutError, ConcurrencySlotAcquisitionError) as error:
            if not may_pass(error):
                raise MachineError(
                    f"Prefect gives no slot of the concurrency limit {name!r} ({error}): create it "
                    f"(prefect gcl create {name} --limit 1), or unset {LIMIT_VARIABLE}"
                ) from error
            if tries % _SAY_EVERY == 0:
                _logger.info("waiting for a slot of %r (another run trains, or the server is away)", name)
            time.sleep(_PAUSE_S)
        else:
            return


def may_pass(error: Exception) -> bool:
    """Whether a slot may be had later: all are taken, or the server is away for now."""
    cause = error if isinstance(error, TimeoutError) else error.__cause__
    status = getattr(getattr(cause, "response", None), "status_code", None)
    return cause is not None and (status is None or status == _ALL_TAKEN or status >= _SERVER_ERROR)
