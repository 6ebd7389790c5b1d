"""The five stages in order, and how a flow runs the first few of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from storage.manifest import Manifest
from tasks.build_cache import build_cache
from tasks.ingest import ingest_graph
from tasks.profile import profile_graph
from tasks.readiness import check_config, check_store
from tasks.reorder import reorder_graph
from tasks.run_context import RunContext
from tasks.sources import STORE_FILE
from tasks.specs import REORDER, STAGES
from tasks.train import train_model

Stage = Literal["ingest", "reorder", "profile", "cache", "train"]

# Called directly, never submitted: only then does a cancelled run hear of it and end in order.
_TASKS: dict[str, Callable[[RunContext], Manifest]] = dict(
    zip(STAGES, (ingest_graph, reorder_graph, profile_graph, build_cache, train_model), strict=True)
)


def run_stages(run: RunContext, until: Stage) -> None:
    """Run the stages up to and including `until`; each takes the manifests of those before it from `run`."""
    run.until = until
    if run.trains:
        check_config(run.config)
    for stage in STAGES[: STAGES.index(until) + 1]:
        _TASKS[stage](run)
        if run.trains and stage == REORDER:
            check_store(run.manifest(REORDER).path(STORE_FILE), run.config)
