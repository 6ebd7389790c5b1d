"""Prepares a Prefect server for the flows; with `--mend`, what a stop in mid-run left behind is closed too.

`garden up` mends its own server at each start. Never mend one that other machines use: their runs would be ended.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from datetime import timedelta

from prefect.automations import Automation
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectNotFound

from flows.mending import UNFINISHED, drop_missed_runs, end_dead_runs, end_served_runs
from tasks.gpu_slot import GPU_LIMIT

_logger = logging.getLogger(__name__)
_ZOMBIES = "crash-runs-without-heartbeat"
_HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDINGS = tuple(f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed"))
_SILENCE = timedelta(seconds=100)  # at least three heartbeats of 30 s


def main() -> None:
    """Run all steps; each may be repeated."""
    with get_client(sync_client=True) as client:
        if "--mend" in sys.argv[1:]:
            mend(client)
        ensure_gpu_limit(client)
        ensure_zombie_automation(client)


def mend(client: SyncPrefectClient) -> None:
    """Close what a server of our own, with nothing served yet, has open."""
    # A run of `garden run` may live: it is dead only if its MLflow run says so.
    ended = end_dead_runs(client) + end_served_runs(client, UNFINISHED)
    dropped = drop_missed_runs(client)
    free_gpu_slots(client)
    _logger.warning("ended %d runs that had died, dropped %d scheduled runs that were missed", ended, dropped)


def free_gpu_slots(client: SyncPrefectClient) -> None:
    """Free the slots that dead runs hold; a limit that was changed stays so.

    It is made anew, not set to zero: the lease of a dead run ends within a minute and would free a slot that is another
    run's by then.
    """
    with contextlib.suppress(ObjectNotFound):
        limit = client.read_global_concurrency_limit_by_name(GPU_LIMIT).limit
        client.delete_global_concurrency_limit_by_name(GPU_LIMIT)
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=GPU_LIMIT, limit=limit))


def ensure_gpu_limit(client: SyncPrefectClient) -> None:
    """Create the limit of one GPU step at a time where there is none."""
    try:
        client.read_global_concurrency_limit_by_name(GPU_LIMIT)
    except ObjectNotFound:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=GPU_LIMIT, limit=1))


def ensure_zombie_automation(client: SyncPrefectClient) -> None:
    """Have the server mark a run as crashed that has sent no heartbeat for a while."""
    if client.read_automations_by_name(_ZOMBIES):
        return
    trigger = EventTrigger(
        after={_HEARTBEAT},
        expect={_HEARTBEAT, *_ENDINGS},
        match={"prefect.resource.id": ["prefect.flow-run.*"]},
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=_SILENCE,
    )
    action = ChangeFlowRunState(state=StateType.CRASHED, message=f"no heartbeat for {_SILENCE.seconds} s")
    Automation(name=_ZOMBIES, trigger=trigger, actions=[action]).create()


if __name__ == "__main__":
    main()
