"""Mends what a stop in mid-run left behind, each time the servers start. `garden up` runs this module."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

from prefect.automations import Automation
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, GlobalConcurrencyLimitUpdate
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from tasks.tracking import close_all_dead_runs

_logger = logging.getLogger(__name__)
GPU_LIMIT = "gpu"
"""Concurrency limit of the step that uses the GPU; without it, even strict slots limit nothing."""
_ZOMBIES = "crash-runs-without-heartbeat"
_HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDINGS = tuple(f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed"))
_SILENCE = timedelta(seconds=100)  # at least three heartbeats of 30 s


def main() -> None:
    """Run all steps; each may be repeated."""
    dead = close_all_dead_runs(os.environ["MLFLOW_TRACKING_URI"])
    with get_client(sync_client=True) as client:
        reset_gpu_limit(client)
        crashed = crash_stale_runs(client, dead)
        ensure_zombie_automation(client)
    _logger.warning("closed %d MLflow runs and %d Prefect runs that had died", len(dead), crashed)


def reset_gpu_limit(client: SyncPrefectClient) -> None:
    """Create the limit of one GPU step at a time, or free the slot that a dead run holds."""
    try:
        client.read_global_concurrency_limit_by_name(GPU_LIMIT)
    except ObjectNotFound:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=GPU_LIMIT, limit=1))
    else:
        client.update_global_concurrency_limit(GPU_LIMIT, GlobalConcurrencyLimitUpdate(limit=1, active_slots=0))


def crash_stale_runs(client: SyncPrefectClient, dead_flow_run_ids: Iterable[str]) -> int:
    """Mark runs as crashed whose process is gone, and return how many there were.

    Nothing that a deployment started can live before anything is served. A run of `garden run` may: it is dead only if
    its MLflow run says so.
    """
    unfinished = {"state": {"type": {"any_": ["RUNNING", "CANCELLING", "PENDING"]}}}
    dead = {UUID(run_id) for run_id in dead_flow_run_ids}
    stale = [
        run
        for run in client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(unfinished))
        if run.deployment_id is not None or run.id in dead
    ]
    for run in stale:
        client.set_flow_run_state(run.id, Crashed(message="found at start-up: its process is gone"), force=True)
    return len(stale)


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
