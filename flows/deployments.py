"""Serves the flows to the Prefect UI: one line a deployment. `garden up` runs this module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from prefect import serve
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow

from flows.environment import STATE_DIR_VARIABLE
from flows.pipeline import pipeline
from flows.prepare_graph import prepare_graph
from flows.profile_and_cache import profile_and_cache
from flows.run import DEMO
from flows.sweep import sweep
from flows.train_model import train_model

FLOWS: tuple[Flow[..., Any], ...] = (pipeline, prepare_graph, profile_and_cache, train_model, sweep)
"""What can be started from the UI."""
_NAME = "local"
_RUNS_AT_ONCE = 2


def kept_schedules(deployment: str) -> list[DeploymentScheduleCreate]:
    """Return the schedules that people gave a deployment in the UI, which serving it again would wipe."""
    with get_client(sync_client=True) as client:
        try:
            present = client.read_deployment_by_name(deployment)
        except ObjectNotFound:
            return []
    return [
        DeploymentScheduleCreate(
            schedule=schedule.schedule,
            active=schedule.active,
            slug=schedule.slug,
            parameters=schedule.parameters,
            max_scheduled_runs=schedule.max_scheduled_runs,
        )
        for schedule in present.schedules
    ]


def default_parameters() -> dict[str, Any]:
    """Return what the forms are filled in with: the demo, in the state directory of the servers."""
    state_dir = Path(os.environ.get(STATE_DIR_VARIABLE, DEMO.state_dir))
    return {"config": DEMO.model_copy(update={"state_dir": state_dir}).model_dump(mode="json")}


def main() -> None:
    """Serve until stopped."""
    deployments = [
        flow.to_deployment(
            name=_NAME,
            parameters=default_parameters(),
            concurrency_limit=1,
            schedules=kept_schedules(f"{flow.name}/{_NAME}"),
        )
        for flow in FLOWS
    ]
    # Called outside of an event loop, `to_deployment` returns the deployment itself.
    serve(*cast("list[RunnerDeployment]", deployments), limit=_RUNS_AT_ONCE, pause_on_shutdown=False)


if __name__ == "__main__":
    main()
