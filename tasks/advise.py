"""Advice before a run: which mode, block size and budgets suit a graph on this machine, and what an epoch will take.

Memory is planned by the arithmetic that the stages themselves follow, on a store that is only expected; an epoch's work
follows from the degrees of as many edges as a few seconds give, its time from rates measured here. The prediction is
kept beside the artifacts, and the run that follows logs how far off it was.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from conf.schema import PipelineConfig
from storage.blocks.probe import DiskSpeed, probe_disk
from storage.degree_sample import DegreeSample
from storage.formats.base import GraphSource
from storage.numbering import labelled, numbered
from tasks.advised_budgets import disk_of_run, least_disk, plan_of, settled, smallest_budgets
from tasks.budgets import Budgets, format_bytes
from tasks.compute_threads import compute_threads
from tasks.expected_epoch import Expected, epoch_from_disk, epoch_in_memory
from tasks.expected_evaluation import evaluation
from tasks.expected_graph import as_numbered, expect_graph
from tasks.expected_work import Workload, batch_seconds, workload
from tasks.machine_rates import cores
from tasks.sources import open_source
from tasks.specs import TRAIN
from tasks.storage_memory import StoragePlan
from tasks.training_config import training_estimate

_logger = logging.getLogger(__name__)
_LIBRARY_SPARE = 0.8  # of the memory that is free: the rest is for what nobody counts
_EDGE_SECONDS = 2
"""Edges are read for so many times as long as the disk is measured."""
_NUMBERED_EDGES_PER_S = 500_000
"""Edges whose ids are numbered in a second: of more of them, what comes by id is left out."""


@dataclass(frozen=True)
class Machine:
    """What this machine has."""

    memory_bytes: int
    """Memory for a stage: `host_budget`, or what is free."""
    free_disk_bytes: int
    """Free where the state directory is."""
    cores: int
    """For this process."""
    gpu: str
    """Name of the first GPU; empty without one."""
    disk: DiskSpeed
    """As measured."""


@dataclass(frozen=True)
class Advice:
    """What to set, why, and what to expect."""

    settings: Mapping[str, str]
    """Settings by dotted name."""
    reasons: tuple[str, ...]
    """One sentence each."""
    mode: str
    """`memory` or `storage`."""
    memory_bytes: int
    """Memory that training takes in that mode."""
    disk_bytes: int
    """Disk at the peak of a run, as ingest will count it: what stages leave, scratch files, layers' files."""
    disk_budget: int
    """A `disk_budget` that is sure to do for the whole run."""
    hyperbatch: int
    """Mini-batches that are sampled and gathered together from disk; 0 from memory."""
    smallest_host_budget: Mapping[str, int]
    """The smallest `host_budget` that would do, by stage, training from disk."""
    epoch: Expected
    """An epoch of training, evaluation left out."""
    evaluation: Expected
    """Validation after an epoch."""

    @property
    def prediction(self) -> dict[str, float]:
        """What a run can be compared with."""
        return {
            "epoch_s": self.epoch.seconds,
            "epoch_read_bytes": self.epoch.read_bytes,
            "evaluation_s": self.evaluation.seconds,
            "evaluation_read_bytes": self.evaluation.read_bytes,
            "hyperbatch": self.hyperbatch,
        }


def advise(config: PipelineConfig, *, seconds: float = 2.0) -> Advice:
    """Look at the data and at this machine, and say how to run.

    Parameters
    ----------
    config
        What is to be run.
    seconds
        How long to measure the disk; edges are read for twice as long.

    Raises
    ------
    BudgetError
        What `disk_budget` leaves for spilling is too little; names one that does.
    InputError
        A file is missing or not of the format.
    OSError
        The disk cannot be written to.
    """
    source = open_source(config.data)
    with tempfile.TemporaryDirectory(prefix="garden-advise-") as folder:
        if source.num_nodes is None and source.approx_edges <= _NUMBERED_EDGES_PER_S * seconds:
            source = labelled(numbered(source, Path(folder)))  # tables by id, too, are only known then
        elif source.num_nodes is None:
            _logger.warning(
                "ids are not numbered, labels by id left out, and what depends on either is about right: %d edges take "
                "longer than --seconds allows",
                source.approx_edges,
            )
        graph = expect_graph(config, source, _EDGE_SECONDS * seconds)
        source = as_numbered(source, graph)
        work = workload(config, graph)
        machine = look_at_machine(config, seconds)
        with compute_threads(work.options):
            return decide(config, source, machine, work)


def look_at_machine(config: PipelineConfig, seconds: float) -> Machine:
    """Measure the disk, and ask for the rest."""
    folder = next(path for path in (config.state_dir.absolute(), *config.state_dir.absolute().parents) if path.is_dir())
    budget = None if config.host_budget is None else int(config.host_budget)
    free = Budgets(budget).memory_bytes()
    return Machine(
        memory_bytes=free if budget is not None else int(_LIBRARY_SPARE * free),
        free_disk_bytes=shutil.disk_usage(folder).free,
        cores=cores(),
        gpu=torch.cuda.get_device_name(0) if torch.cuda.is_available() else "",
        disk=probe_disk(folder, seconds),
    )


def decide(config: PipelineConfig, source: GraphSource, machine: Machine, work: Workload) -> Advice:
    """Choose a mode and its sizes, and predict an epoch."""
    block = machine.disk.efficient_block_bytes
    work = replace(work, graph=work.graph.in_blocks_of(block))
    store, asked_disk = work.graph.store, config.disk_budget
    in_memory = training_estimate(config, store).memory_bytes
    budgets = partial(_budgets, config, source, machine, work)
    from_disk = in_memory > machine.memory_bytes or config.storage.mode == "storage"
    settled_config, smallest, host_budget = budgets(from_disk=from_disk)
    if config.storage.mode == "memory" and from_disk and in_memory <= host_budget:  # so much is needed all the same
        from_disk = False
        settled_config, smallest, host_budget = budgets(from_disk=from_disk, least=in_memory)
    config = settled_config
    plan = plan_of(config, work, host_budget) if from_disk else None
    settings = {"layout.block_bytes": str(block), "storage.mode": config.storage.mode}
    if from_disk or host_budget > machine.memory_bytes:
        settings["host_budget"] = str(host_budget)
    if config.disk_budget != asked_disk:
        settings["disk_budget"] = str(config.disk_budget)
    disk = disk_of_run(config, source, host_budget)
    return Advice(
        settings=settings,
        reasons=_reasons(machine, work, in_memory, smallest, plan),
        mode=config.storage.mode,
        memory_bytes=host_budget if from_disk else in_memory,
        disk_bytes=least_disk(disk),
        disk_budget=max(least_disk(disk), disk.enough_disk_bytes),
        hyperbatch=0 if plan is None else plan.hyperbatch,
        smallest_host_budget=smallest,
        epoch=_epoch(machine, work, plan),
        evaluation=evaluation(
            store,
            work.spec,
            work.validated.shapes,
            work.options.metric,
            plan,
            machine.disk,
            work.graph.share_of_ones if store.info.has_integer_features else None,
        ),
    )


def _budgets(
    config: PipelineConfig, source: GraphSource, machine: Machine, work: Workload, *, from_disk: bool, least: int = 0
) -> tuple[PipelineConfig, dict[str, int], int]:
    """The configuration in a mode, the smallest `host_budget` of each stage, and one that does for all that are run."""
    config = settled(config, source, machine.memory_bytes, work.graph.store.info.block_bytes, from_disk=from_disk)
    smallest = smallest_budgets(config, source, work)
    needed = (nbytes for stage, nbytes in smallest.items() if from_disk or stage != TRAIN)
    return config, smallest, max(machine.memory_bytes, least, *needed)


def _epoch(machine: Machine, work: Workload, plan: StoragePlan | None) -> Expected:
    batch, threads = batch_seconds(work), work.options.threads
    if plan is None:
        return epoch_in_memory(work.num_batches, batch, threads)
    return epoch_from_disk(plan, work.sizes, work.num_batches, batch, machine.disk, threads)


def _reasons(
    machine: Machine, work: Workload, in_memory: int, smallest: Mapping[str, int], plan: StoragePlan | None
) -> tuple[str, ...]:
    store, degrees, disk = work.graph.store, work.graph.degrees, machine.disk
    info, stored = store.info, sum(map(store.nbytes, store.datasets))
    how = "direct" if disk.direct else "buffered: this file system refuses direct I/O"
    block = info.block_bytes
    reasons = [
        f"graph: {info.num_nodes:,} nodes, {info.num_edges:,} edges, rows of {info.feature_row_bytes} bytes: "
        f"{format_bytes(stored)} once laid out{_source_of(degrees)}",
        f"machine: {format_bytes(machine.memory_bytes)} of memory for a stage, {machine.cores} cores, "
        f"{'GPU ' + machine.gpu if machine.gpu else 'no GPU'}",
        f"disk: {disk.bytes_per_s / 1e6:,.0f} MB/s in reads of 1 MiB, {disk.streamed_bytes_per_s / 1e6:,.0f} with "
        f"several in flight, {disk.small_reads_per_s:,.0f} reads of 4 KiB a second ({how}), "
        f"{disk.written_bytes_per_s / 1e6:,.0f} MB/s written, {format_bytes(machine.free_disk_bytes)} free",
        f"a mini-batch has about {work.batch.num_inputs:,} input nodes and "
        f"{sum(shape.num_edges for shape in work.batch.shapes):,} edges; an epoch has {work.num_batches:,}",
        f"training in memory takes {format_bytes(in_memory)}, which {_fits(in_memory, machine, plan)}",
        f"the smallest host_budget, training from disk, is {max(smallest.values())}: "
        + ", ".join(f"{stage} {format_bytes(nbytes)}" for stage, nbytes in smallest.items()),
        f"reads of {format_bytes(block)} reach about nine tenths of this disk's rate",
    ]
    if plan is not None:
        reasons.append(
            f"hyperbatches of {plan.hyperbatch} mini-batches make the shortest epoch, samples "
            f"{'on disk' if plan.spills_samples else 'in memory'} until they are used"
        )
    return tuple(reasons)


def _fits(in_memory: int, machine: Machine, plan: StoragePlan | None) -> str:
    if in_memory <= machine.memory_bytes:
        return "fits"
    return "fits into what other stages need" if plan is None else "does not fit"


def _source_of(degrees: DegreeSample) -> str:
    """What the degrees are known from, where not all edges were read."""
    if degrees.read_share == 1:
        return ""
    doubt = "; they come sorted: a longer look, by --seconds, makes this surer" if degrees.is_sorted else ""
    return f" (told from {degrees.read_share:.0%} of the edges{doubt})"
