"""Stage 1, ingest: the files that users have become a graph store, checked and counted."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from storage.formats.base import GraphSource
from storage.ingest import ingest
from storage.manifest import Manifest
from tasks.artifacts import StageOutcome, StageSpec
from tasks.budgets import Estimate, available_memory, format_bytes
from tasks.fetch import fetch_missing
from tasks.memory import numbering_room, plan_ingest
from tasks.progress import Advance, progress
from tasks.readiness import check_seeds, check_source
from tasks.run_context import RunContext
from tasks.run_disk import ingest_jointly
from tasks.sources import STORE_FILE, ingest_options, open_source, opening_bytes
from tasks.specs import INGEST, PROFILE, ingest_spec, reorder_spec

_logger = logging.getLogger(__name__)


@task(name=INGEST, cache_policy=NO_CACHE)
def ingest_graph(run: RunContext) -> Manifest:
    """Open or build the store in ingest order.

    It is an intermediate: once the laid-out store exists its data may be gone, and nobody needs it.
    """
    fetch_missing(run.config.data, run.config.disk_budget)
    with run.input_digests.kept():
        return _ingest(run)


def _ingest(run: RunContext) -> Manifest:
    spec = ingest_spec(run.config, run.input_digests)
    collected = _finished_and_collected(run, spec)
    if collected is not None:
        return run.record(INGEST, lambda _: StageOutcome(collected, reused=True, seconds=0.0))

    options, budgets = ingest_options(run.config), run.artifacts.budgets

    @functools.cache  # for the estimate and for building
    def source() -> GraphSource:
        opened = open_source(run.config.data)
        _check(run, opened)
        return opened

    def build(directory: Path) -> Mapping[str, Any]:
        report = ingest(
            source(),
            options,
            directory / STORE_FILE,
            plan=_planner(run, source(), directory),
            room=numbering_room(budgets, directory, run.artifacts.held_bytes(spec)),
            progress=_progress,
        ).as_dict()
        unsaid = "split_" if source().labels is None and not source().labelled_later else " "
        _logger.info("%s: %s", INGEST, _told(report, unsaid))
        return report

    def estimate() -> Estimate:
        opening = opening_bytes(run.config.data)
        if opening > budgets.memory_bytes():  # not even what is read before the sizes are known fits
            return Estimate(memory_bytes=opening, disk_bytes=0, is_final=False)
        return _jointly(run, source(), plan_ingest(source(), options, budgets.memory_bytes()).estimate)

    return run.open_or_build(spec, build, estimate)


def _check(run: RunContext, source: GraphSource) -> None:
    if run.trains:
        check_source(source, run.config)
    if PROFILE in run.stages_after(INGEST):
        check_seeds(source, ingest_options(run.config))


def _planner(run: RunContext, opened: GraphSource, directory: Path) -> Callable[[GraphSource], int | None]:
    """The plan of a source as `ingest` takes it; checks what was not known of it when it was opened."""
    budgets, options = run.artifacts.budgets, ingest_options(run.config)
    free = available_memory()  # less is free once nodes are numbered, and what is not is this stage's own

    def plan(numbered: GraphSource) -> int | None:
        if opened.num_nodes is None or opened.labelled_later:
            _check(run, numbered)
        planned = plan_ingest(numbered, options, budgets.memory_bytes(free))
        if opened.num_nodes is None:  # else it was checked before the stage started
            joint = _jointly(run, numbered, planned.estimate)
            budgets.check(INGEST, joint, directory, free_memory=free)
        if planned.work_bytes is not None and planned.estimate.is_final:
            _logger.info("%s: sorts edges in scratch files, %s in memory", INGEST, format_bytes(planned.work_bytes))
        return planned.work_bytes

    return plan


def _told(report: Mapping[str, Any], unsaid: str) -> str:
    """What was found, but what is called `unsaid`."""
    return ", ".join(
        f"{value:,} {name.removeprefix('num_').replace('_', ' ')}"
        for name, value in report.items()
        if value and not name.startswith(unsaid)
    )


def _jointly(run: RunContext, source: GraphSource, estimate: Estimate) -> Estimate:
    """With the stages after it, once the nodes are known."""
    return ingest_jointly(run.config, source, estimate, run.stages_after(INGEST))


def _progress(description: str, unit: str) -> AbstractContextManager[Advance]:
    return progress(f"{INGEST}, {description}", unit)


def _finished_and_collected(run: RunContext, spec: StageSpec) -> Manifest | None:
    """Return the ingest manifest if the laid-out store that was made of it is there."""
    if run.config.layout.keep_ingest or run.artifacts.open(reorder_spec(run.config, spec.digest)) is None:
        return None
    return run.artifacts.find(spec)
