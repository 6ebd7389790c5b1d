"""Serves the flows to the Prefect UI: one line a deployment. `garden up` runs this module."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from prefect import serve
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow
from prefect.schedules import Cron, Schedule
from prefect.utilities.schema_tools.validation import ValidationError, validate

from flows.compare_policies import compare_policies
from flows.forms import FILLED_IN
from flows.mending import end_served_runs, keep_mending
from flows.pipeline import pipeline
from flows.prepare_graph import prepare_graph
from flows.profile_and_cache import profile_and_cache
from flows.sweep import sweep
from flows.train_model import train_model

_logger = logging.getLogger(__name__)
_RUNS_AT_ONCE = 2
_NIGHTLY = Cron("0 3 * * *", timezone="UTC", slug="nightly", active=False)


@dataclass(frozen=True)
class Served:
    """What can be started from the UI."""

    flow: Flow[..., Any]
    """The flow."""
    name: str = "local"
    """Name of the deployment. A schedule with parameters of its own is a deployment of its own: turning a schedule off
    and on in the UI erases the schedule's parameters, a deployment's stay."""
    schedule: Schedule | None = None
    """What a new deployment starts with; people change it in the UI."""


DEPLOYMENTS = (
    Served(pipeline),
    Served(prepare_graph),
    Served(prepare_graph, "nightly", _NIGHTLY),
    Served(profile_and_cache),
    Served(train_model),
    Served(sweep),
    Served(compare_policies),
)
"""Everything that is served."""


def to_deployment(served: Served, client: SyncPrefectClient) -> RunnerDeployment:
    """Describe a deployment to the server, with what people changed in the UI, which serving it again would wipe."""
    try:
        present = client.read_deployment_by_name(f"{served.flow.name}/{served.name}")
    except ObjectNotFound:
        new = {"parameters": FILLED_IN, "schedules": [served.schedule] if served.schedule else []}
        kept: dict[str, Any] = new | {"concurrency_limit": _limit(1, None)}
    else:
        kept = _kept(present, served.flow)
    deployment = served.flow.to_deployment(name=served.name, **kept)
    assert isinstance(deployment, RunnerDeployment), "called outside of an event loop"
    return deployment


def _kept(present: DeploymentResponse, flow: Flow[..., Any]) -> dict[str, Any]:
    """What people can change in the UI, as it is there."""
    limit, options = present.global_concurrency_limit, present.concurrency_options
    return {
        "parameters": _kept_parameters(present, flow),
        "schedules": [
            DeploymentScheduleCreate(
                schedule=schedule.schedule,
                active=schedule.active,
                slug=schedule.slug,
                parameters=schedule.parameters,
                max_scheduled_runs=schedule.max_scheduled_runs,
            )
            for schedule in present.schedules
        ],
        "paused": present.paused,
        "description": present.description,
        "tags": present.tags,
        "enforce_parameter_schema": present.enforce_parameter_schema,
        "concurrency_limit": None
        if limit is None
        else _limit(limit.limit, options.collision_strategy if options else None),
    }


def _kept_parameters(present: DeploymentResponse, flow: Flow[..., Any]) -> dict[str, Any]:
    """Return the parameters that fill the form, unless the form has changed so that they no longer fit."""
    try:
        validate(present.parameters, flow.parameters.model_dump_for_openapi(), raise_on_error=True)
    except ValidationError as error:
        _logger.warning("%s/%s: the form has changed; it is filled in anew (%s)", flow.name, present.name, error)
        return FILLED_IN
    return present.parameters


def _limit(runs: int, strategy: ConcurrencyLimitStrategy | None) -> ConcurrencyLimitConfig:
    """Let so many runs of a deployment go on at once; further ones wait."""
    return ConcurrencyLimitConfig(limit=runs, collision_strategy=strategy or ConcurrencyLimitStrategy.ENQUEUE)


def main() -> None:
    """Serve until stopped."""
    with get_client(sync_client=True) as client:
        end_served_runs(client, ("PENDING",))  # if it was served before, and died
        deployments = [to_deployment(served, client) for served in DEPLOYMENTS]
    with keep_mending():
        serve(*deployments, limit=_RUNS_AT_ONCE, pause_on_shutdown=False)


if __name__ == "__main__":
    main()
