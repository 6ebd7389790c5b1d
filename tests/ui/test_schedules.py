"""Schedules: they fire, reuse what is finished, and stay as people left them when the servers start again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.flows.conftest import TINY
from tests.flows.up import Up, wait_for

pytestmark = pytest.mark.full
_TINY_DEMO = {"config": {"dataset": "demo", "settings": list(TINY)}}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up.start(tmp_path_factory.mktemp("up"))
    yield running
    running.kill()


def finished(up: Up, deployment_id: str) -> list[str]:
    """Runs of a deployment that its schedule started and that ended well, in order."""
    which = {
        "deployments": {"id": {"any_": [deployment_id]}},
        "flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}},
    }
    runs = up.api("/flow_runs/filter", {**which, "sort": "START_TIME_ASC"})
    return [run["id"] for run in runs if run["auto_scheduled"]]


def test_a_schedule_fires_each_minute_reuses_what_is_finished_and_survives_a_restart(up: Up) -> None:
    nightly = up.deployment("prepare_graph", "nightly")
    # What a person does in the UI: other parameters, a schedule of one's own beside the nightly one, tags.
    up.api(f"/deployments/{nightly['id']}", {"parameters": _TINY_DEMO, "tags": ["ours"]}, "PATCH")
    minutely = {"schedule": {"cron": "* * * * *", "timezone": "UTC"}, "active": True}
    (added,) = up.api(f"/deployments/{nightly['id']}/schedules", [minutely])
    first, second = wait_for(
        lambda: finished(up, nightly["id"])[1:2] and finished(up, nightly["id"])[:2], 240, "two runs"
    )
    assert "| ingest |" in up.artifacts(first)["summary"]
    rows = [line for line in up.artifacts(second)["summary"].splitlines() if line.startswith(("| ingest", "| reorder"))]
    assert [row.split("|")[4].strip() for row in rows] == ["yes", "yes"]

    up.api(f"/deployments/{nightly['id']}/schedules/{added['id']}", {"active": False}, "PATCH")
    up.stop()
    again = Up.start(up.state, up.ports)
    try:
        kept = again.deployment("prepare_graph", "nightly")
        crons = {schedule["schedule"]["cron"]: schedule["active"] for schedule in kept["schedules"]}
        assert crons == {"0 3 * * *": False, "* * * * *": False}
        assert kept["parameters"] == _TINY_DEMO
        assert kept["tags"] == ["ours"]
        assert kept["id"] == nightly["id"]
        assert again.deployment("pipeline")["parameters"] == {"config": {"dataset": "demo"}}
    finally:
        again.stop()
        again.kill()
