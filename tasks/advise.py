"""Advice before a run: which mode, block size and budgets suit a graph on this machine, and what an epoch will take.

Memory is planned by the arithmetic that the stages themselves follow, on a store that is only expected; an epoch's work
follows from the degrees of as many edges as a few seconds give, its time from rates measured here. The prediction is
kept beside the artifacts, and the run that follows logs how far off it was.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from conf.schema import PipelineConfig
from kernels.nn.model import ModelSpec
from storage.blocks.layout import LEAST_WORK_BYTES, estimate_store_bytes, layout_held_bytes
from storage.blocks.probe import DiskSpeed, probe_disk
from storage.blocks.spill_room import ENDLESS, SpillRoom
from storage.degree_sample import DegreeSample
from storage.errors import BudgetError
from storage.formats.base import GraphSource
from storage.ingest import numbered
from tasks.batch_sizes import sizes_of_hops
from tasks.bounds import WRITTEN_COUNTS, count_bytes
from tasks.budgets import SMALL_FILES_BYTES, Budgets, format_bytes
from tasks.build_cache import cache_estimate
from tasks.compute_threads import compute_threads
from tasks.disk_plan import plan_training
from tasks.expected_batches import ExpectedBatch, expected_batch
from tasks.expected_epoch import BatchSeconds, Expected, epoch_from_disk, epoch_in_memory
from tasks.expected_evaluation import evaluation
from tasks.expected_graph import ExpectedGraph, expect_graph
from tasks.first_batches import FirstBatches
from tasks.machine_rates import cores, row_seconds, sampling_seconds, step_seconds
from tasks.memory import plan_ingest
from tasks.profile_memory import plan_profile
from tasks.sources import ingest_options, open_source
from tasks.storage_memory import StoragePlan
from tasks.training_config import stand_in_bytes, train_options, training_estimate
from tasks.training_types import TrainOptions

_logger = logging.getLogger(__name__)
_LIBRARY_SPARE = 0.8  # of the memory that is free: the rest is for what nobody counts
_EDGE_SECONDS = 2
"""Edges are read for so many times as long as the disk is measured."""
_LARGER = 1.5
"""How much larger than the mean the first mini-batches may be: the smallest budget is one for such."""
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
class Workload:
    """What an epoch has to do."""

    graph: ExpectedGraph
    """The graph."""
    options: TrainOptions
    """How it is trained on."""
    spec: ModelSpec
    """The network."""
    batch: ExpectedBatch
    """A mini-batch."""
    validated: ExpectedBatch
    """All neighbors of the nodes that are validated on."""

    @property
    def num_batches(self) -> int:
        """Mini-batches of an epoch."""
        return max(1, -(-self.graph.store.info.split_sizes["train"] // self.options.batch_size))

    @property
    def first(self) -> FirstBatches:
        """What training expects of its mini-batches."""
        id_bytes = 4 if self.graph.store.info.num_nodes < 2**31 else 8
        shapes, nodes = self.batch.shapes, self.batch.num_inputs
        are_integers = self.graph.store.info.feature_dtype.kind != "f"
        seeds = self.options.batch_size
        sizes = sizes_of_hops(shapes, nodes, seeds, id_bytes, self.spec, are_integers=are_integers)
        return FirstBatches(sizes, self.batch.shared_nodes)


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
    """Disk that the prepared graph takes, scratch files included."""
    disk_budget: int
    """A `disk_budget` that does for every stage."""
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
    InputError
        A file is missing or not of the format.
    OSError
        The disk cannot be written to.
    """
    source = open_source(config.data)
    if source.num_nodes is None and source.approx_edges <= _NUMBERED_EDGES_PER_S * seconds:
        source, _ = numbered(source, None)  # tables by id, too, are only known then
    elif source.labelled_later:
        _logger.warning(
            "features and labels by id are left out: their %d edges take longer to number than --seconds allows",
            source.approx_edges,
        )
    work = workload(config, expect_graph(config, source, _EDGE_SECONDS * seconds))
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


def workload(config: PipelineConfig, graph: ExpectedGraph) -> Workload:
    """Expect an epoch's mini-batches, and what validation reaches."""
    options, info = train_options(config, None), graph.store.info
    spec = options.model_spec(max(1, info.feature_dim), max(1, info.num_classes))
    seeds = min(options.batch_size, max(1, info.split_sizes["train"]))
    everything = [-1] * spec.num_layers if spec.needs_graph else []
    return Workload(
        graph,
        options,
        spec,
        expected_batch(graph.degrees, options.fanouts, seeds, replace=options.replace),
        expected_batch(graph.degrees, everything, info.split_sizes["valid"]),
    )


def decide(config: PipelineConfig, source: GraphSource, machine: Machine, work: Workload) -> Advice:
    """Choose a mode and its sizes, and predict an epoch."""
    block = machine.disk.efficient_block_bytes
    work = replace(work, graph=work.graph.in_blocks_of(block))
    store = work.graph.store
    in_memory = training_estimate(config, store).memory_bytes
    smallest = smallest_budgets(config, source, work)
    settings = {"layout.block_bytes": str(block)}
    if in_memory <= machine.memory_bytes and config.storage.mode == "memory":
        plan, memory, settings["storage.mode"] = None, in_memory, "memory"
    else:
        memory = max(machine.memory_bytes, *smallest.values())
        plan = plan_of(config, work, memory)
        settings |= {"storage.mode": "storage", "host_budget": str(memory)}
    batch = batch_seconds(work)
    if plan is None:
        epoch = epoch_in_memory(work.num_batches, batch, work.options.threads)
    else:
        epoch = epoch_from_disk(plan, work.first.sizes, work.num_batches, batch, machine.disk, work.options.threads)
    disks = _stage_disks(config, source, work, memory, plan)
    return Advice(
        settings=settings,
        reasons=_reasons(machine, work, in_memory, smallest, plan),
        mode=settings["storage.mode"],
        memory_bytes=memory,
        disk_bytes=disks["reorder"] + max(disks["ingest"], disks.get("train", 0)),
        disk_budget=max(disks.values()),
        hyperbatch=0 if plan is None else plan.hyperbatch,
        smallest_host_budget=smallest,
        epoch=epoch,
        evaluation=evaluation(store, work.spec, work.validated.shapes, plan, machine.disk),
    )


def plan_of(config: PipelineConfig, work: Workload, budget: int, *, larger: float = 1.0) -> StoragePlan:
    """The plan that training from disk will make, if its first mini-batches are larger by a factor than the mean.

    Raises
    ------
    BudgetError
        If the budget is too small; names the smallest one that would do.
    """
    return plan_training(
        work.graph.store,
        work.options,
        work.spec,
        # Rows and lists together.
        replace(work.first, sizes=work.first.sizes.times(larger), list_bytes=stand_in_bytes(config)),
        num_seeds=work.graph.store.info.split_sizes["train"],
        cached_rows=0,
        host_budget=budget,
        hyperbatch=config.storage.hyperbatch,
        room=_room(config, work),
    )


def _room(config: PipelineConfig, work: Workload) -> SpillRoom:
    """What a `disk_budget` leaves beside the laid-out store; without one, the disk is taken to be large enough."""
    if config.disk_budget is None:
        return ENDLESS
    store = work.graph.store
    beside = estimate_store_bytes(store, store.info.block_bytes)
    return SpillRoom(max(0, int(config.disk_budget) - beside), beside)


def smallest_budgets(config: PipelineConfig, source: GraphSource, work: Workload) -> dict[str, int]:
    """The smallest `host_budget` that would do for each stage, training from disk."""
    store, sampling, profile = work.graph.store, config.sampling, config.profile
    counts = count_bytes(store.info.split_sizes["train"], sampling, profile.epochs, profile.heldout_epochs)
    expected = replace(source, num_nodes=store.info.num_nodes)
    profiled = plan_profile(
        store,
        sampling,
        0,
        counts_bytes=WRITTEN_COUNTS * counts,
        longest_list=int(work.graph.degrees.in_degree.max(initial=0)),
    )
    smallest = {
        "ingest": plan_ingest(expected, ingest_options(config), 0).estimate.memory_bytes,
        "reorder": layout_held_bytes(store) + LEAST_WORK_BYTES,
        "profile": profiled.memory_bytes,
        "cache": cache_estimate(store, config).memory_bytes,
    }
    try:
        plan_of(config, work, 1, larger=_LARGER)
    except BudgetError as error:
        smallest["train"] = error.needed or 0
    return smallest


def batch_seconds(work: Workload) -> BatchSeconds:
    """Time what a mini-batch takes."""
    info, batch = work.graph.store.info, work.batch
    edges = sum(shape.num_edges for shape in batch.shapes)
    return BatchSeconds(
        sampling=edges * sampling_seconds(work.options.fanouts, info.num_edges / info.num_nodes),
        rows=batch.num_inputs * row_seconds(info.feature_row_bytes),
        step=step_seconds(work.spec, batch.shapes, batch.num_inputs),
    )


def _stage_disks(
    config: PipelineConfig, source: GraphSource, work: Workload, memory_bytes: int, plan: StoragePlan | None
) -> dict[str, int]:
    """Bytes that the stages which write much may write, by stage."""
    store = work.graph.store
    expected = replace(source, num_nodes=store.info.num_nodes)
    stages = {
        "ingest": plan_ingest(expected, ingest_options(config), memory_bytes).estimate.disk_bytes,
        "reorder": estimate_store_bytes(store, store.info.block_bytes) + SMALL_FILES_BYTES,
    }
    return stages if plan is None else stages | {"train": plan.row_room.enough}


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
        f"training in memory takes {format_bytes(in_memory)}, which "
        f"{'fits' if in_memory <= machine.memory_bytes else 'does not fit'}",
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


def _source_of(degrees: DegreeSample) -> str:
    """What the degrees are known from, where not all edges were read."""
    if degrees.read_share == 1:
        return ""
    doubt = "; they come sorted: a longer look, by --seconds, makes this surer" if degrees.is_sorted else ""
    return f" (told from {degrees.read_share:.0%} of the edges{doubt})"
