"""Makes what Prefect and MLflow say true again: runs whose process is gone have ended, missed runs do not pile up."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Cancelled, Crashed

from tasks.tracking import close_all_dead_runs

_logger = logging.getLogger(__name__)
_EVERY_S = 15.0
_PAGE = 200
UNFINISHED = ("RUNNING", "CANCELLING", "PENDING")
"""States of a run that a process is at work on."""


def end_dead_runs(client: SyncPrefectClient) -> int:
    """End the runs, in MLflow and in Prefect, whose process on this machine is gone; return how many in Prefect."""
    dead = {UUID(run_id) for run_id in close_all_dead_runs(os.environ["MLFLOW_TRACKING_URI"])}
    if not dead:
        return 0
    return _end(client, (run for run in _runs(client, UNFINISHED) if run.id in dead))


def end_served_runs(client: SyncPrefectClient, states: Collection[str]) -> int:
    """End the runs in some states that a deployment started: to be called before anything is served."""
    return _end(client, (run for run in _runs(client, states) if run.deployment_id is not None))


def drop_missed_runs(client: SyncPrefectClient) -> int:
    """Delete runs that a schedule would have started while nothing was served, but for each deployment's latest."""
    now, seen, dropped = datetime.now(UTC), set[UUID | None](), 0
    for run in _runs(client, ("SCHEDULED",)):
        if not run.auto_scheduled or run.expected_start_time is None or run.expected_start_time > now:
            continue
        if run.deployment_id in seen:
            client.delete_flow_run(run.id)
            dropped += 1
        seen.add(run.deployment_id)
    return dropped


@contextlib.contextmanager
def keep_mending() -> Iterator[None]:
    """Look for dead runs now and then, in a thread, for as long as the block lasts."""
    stopped = threading.Event()
    thread = threading.Thread(target=_mend_until, args=(stopped,), name="mending", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()


def _mend_until(stopped: threading.Event) -> None:
    while not stopped.wait(_EVERY_S):
        try:
            with get_client(sync_client=True) as client:
                ended = end_dead_runs(client)
        except Exception as error:  # a server may be away for a while; the next round sees
            _logger.warning("could not look for dead runs (%s)", str(error).partition("\n")[0])
        else:
            if ended:
                _logger.warning("ended %d runs whose process was gone", ended)


def _runs(client: SyncPrefectClient, states: Collection[str]) -> list[FlowRun]:
    """All runs in some states, the latest expected start first."""
    which = FlowRunFilter.model_validate({"state": {"type": {"any_": list(states)}}})
    runs: list[FlowRun] = []
    while True:
        page = client.read_flow_runs(
            flow_run_filter=which, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=_PAGE, offset=len(runs)
        )
        runs += page
        if len(page) < _PAGE:
            return runs


def _end(client: SyncPrefectClient, runs: Iterable[FlowRun]) -> int:
    """Mark runs as crashed, or as cancelled where that was being done."""
    ended = 0
    for run in runs:
        message = "its process is gone"
        is_cancelling = run.state_type == StateType.CANCELLING
        client.set_flow_run_state(
            run.id, Cancelled(message=message) if is_cancelling else Crashed(message=message), force=True
        )
        ended += 1
    return ended
