"""Advice before a run: which mode, block size and budgets suit a graph on this machine, and what an epoch will take.

Everything is arithmetic on sizes that files declare and on rates measured here in a few seconds. The prediction is kept
beside the artifacts, and the run that follows logs how far off it was.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from conf.schema import PipelineConfig
from kernels.mfg import Mfg
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import build_model
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.topology import Topology
from storage.blocks.probe import DiskSpeed, probe_disk
from storage.formats.base import GraphSource
from tasks.budgets import Budgets, format_bytes
from tasks.sources import open_source
from tasks.training_config import stand_in_bytes, train_options

_LIBRARY_SPARE = 0.8  # of the memory that is free: the rest is for what nobody counts
_NODE_BYTES = 96  # labels, splits, degrees, maps, evaluation's bookkeeping
_SAMPLE_EDGES = 400_000
_TRIES = 2


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

    num_nodes: int
    """N."""
    num_edges: int
    """E, as far as the files tell."""
    row_bytes: int
    """Bytes of a feature row in the store."""
    feature_dim: int
    """Features a node."""
    num_classes: int
    """Classes."""
    train_nodes: int
    """Seeds of an epoch."""
    batch_nodes: tuple[int, ...]
    """Nodes of a mini-batch to expect: seeds, and after each hop."""
    batch_edges: tuple[int, ...]
    """Edges of each hop to expect, from the seeds outward."""

    @property
    def num_batches(self) -> int:
        """Mini-batches of an epoch."""
        return max(1, -(-self.train_nodes // max(1, self.batch_nodes[0])))

    @property
    def topology_bytes(self) -> int:
        """Bytes of offsets and adjacency lists."""
        return 8 * self.num_nodes + (4 if self.num_nodes < 2**31 else 8) * self.num_edges

    @property
    def data_bytes(self) -> int:
        """Bytes of topology and features."""
        return self.topology_bytes + self.num_nodes * self.row_bytes


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
    epoch_s: float
    """Seconds of an epoch of training, evaluation left out."""
    epoch_read_bytes: float
    """Bytes read from disk in an epoch."""


def advise(config: PipelineConfig, *, seconds: float = 2.0) -> Advice:
    """Look at the data and at this machine, and say how to run.

    Parameters
    ----------
    config
        What is to be run.
    seconds
        How long to measure the disk.

    Raises
    ------
    InputError
        A file is missing or not of the format.
    OSError
        The disk cannot be written to.
    """
    source = open_source(config.data)
    return decide(config, look_at_machine(config, seconds), workload(config, source))


def look_at_machine(config: PipelineConfig, seconds: float) -> Machine:
    """Measure the disk, and ask for the rest."""
    folder = next(path for path in (config.state_dir.absolute(), *config.state_dir.absolute().parents) if path.is_dir())
    budget = None if config.host_budget is None else int(config.host_budget)
    free = Budgets(budget).memory_bytes()
    return Machine(
        memory_bytes=free if budget is not None else int(_LIBRARY_SPARE * free),
        free_disk_bytes=shutil.disk_usage(folder).free,
        cores=len(os.sched_getaffinity(0)),
        gpu=torch.cuda.get_device_name(0) if torch.cuda.is_available() else "",
        disk=probe_disk(folder, seconds),
    )


def workload(config: PipelineConfig, source: GraphSource) -> Workload:
    """Estimate an epoch's work from what the files declare; ids that must be counted first are bounded by the edges."""
    edges = source.approx_edges * (2 if config.data.symmetrize else 1)
    nodes = source.num_nodes or max(1, 2 * edges)
    features, data = source.features, config.data
    if source.splits is not None and data.split == "provided":
        train = len(source.splits["train"])
    else:
        train = int(nodes * (data.train_fraction if data.split == "random" else 1.0))
    batch_nodes, batch_edges = expected_batch(nodes, edges, min(config.sampling.batch_size, max(1, train)), config)
    return Workload(
        num_nodes=nodes,
        num_edges=edges,
        row_bytes=0 if features is None else features.dim * (2 if features.dtype == np.float16 else 4),
        feature_dim=0 if features is None else features.dim,
        num_classes=max(2, 0 if source.labels is None else len(source.labels.names)),
        train_nodes=train,
        batch_nodes=batch_nodes,
        batch_edges=batch_edges,
    )


def expected_batch(
    num_nodes: int, num_edges: int, seeds: int, config: PipelineConfig
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Nodes and edges of a mini-batch after each hop, if every node had the mean degree and neighbors were uniform."""
    nodes, edges, degree = [seeds], [], num_edges / num_nodes
    for fanout in reversed(config.sampling.fanouts):
        drawn = nodes[-1] * (degree if fanout < 0 else min(fanout, degree))
        fresh = (num_nodes - nodes[-1]) * -math.expm1(-drawn / num_nodes)
        edges.append(int(drawn))
        nodes.append(min(num_nodes, nodes[-1] + int(fresh)))
    return tuple(nodes), tuple(edges)


def decide(config: PipelineConfig, machine: Machine, work: Workload) -> Advice:
    """Choose a mode and its sizes, and predict an epoch."""
    held, batch = _NODE_BYTES * work.num_nodes, _batch_bytes(work)
    in_memory = work.data_bytes + held + (config.sampling.superbatch + 2) * batch + stand_in_bytes(config)
    mode = "memory" if in_memory <= machine.memory_bytes else "storage"
    block = machine.disk.efficient_block_bytes
    compute_s = work.num_batches * (step_seconds(config, work) + sampling_seconds(config, work))
    settings = {"storage.mode": mode, "layout.block_bytes": str(block)}
    if mode == "memory":
        read, memory, epoch_s = 0.0, in_memory, compute_s
    else:
        memory = machine.memory_bytes
        settings["host_budget"] = str(memory)
        hyperbatch = max(1, min(1024, work.num_batches, (memory - held) // 3 // max(1, batch)))
        read = hyperbatch_read_bytes(work, hyperbatch, block) * math.ceil(work.num_batches / hyperbatch)
        epoch_s = max(compute_s, read / machine.disk.bytes_per_s)
    disk = 2 * work.data_bytes + 8 * (work.num_edges if in_memory > machine.memory_bytes else 0)
    reasons = _reasons(machine, work, mode, in_memory, block, batch)
    return Advice(settings, reasons, mode, memory, disk, epoch_s, read)


def hyperbatch_read_bytes(work: Workload, hyperbatch: int, block_bytes: int) -> float:
    """Bytes of the blocks that some mini-batches touch together, if their nodes lie anywhere."""
    share = 1 - (1 - work.batch_nodes[-1] / work.num_nodes) ** hyperbatch
    rows = _touched(work.num_nodes * work.row_bytes, share * work.num_nodes, block_bytes)
    expanded = 1 - (1 - (work.batch_nodes[-2] if len(work.batch_nodes) > 1 else 0) / work.num_nodes) ** hyperbatch
    return rows + _touched(work.topology_bytes, expanded * work.num_nodes, block_bytes)


def _touched(nbytes: int, places: float, block_bytes: int) -> float:
    """Bytes of the blocks that hold some of many places."""
    blocks = max(1.0, nbytes / block_bytes)
    return nbytes * -math.expm1(-places / blocks)


def _batch_bytes(work: Workload) -> int:
    """Bytes of a mini-batch in memory, its rows too."""
    return work.batch_nodes[-1] * (work.row_bytes + 24) + 16 * sum(work.batch_edges)


def step_seconds(config: PipelineConfig, work: Workload) -> float:
    """Time a step of training on a mini-batch of that shape, scaled down where it is large."""
    scale = max(1.0, (sum(work.batch_edges) + work.batch_nodes[-1]) / _SAMPLE_EDGES)
    nodes = [max(1, int(count / scale)) for count in work.batch_nodes]
    rng, hops = np.random.default_rng(0), []
    for num_dst, num_src, edges in zip(nodes, nodes[1:], work.batch_edges, strict=False):
        indptr = np.linspace(0, int(edges / scale), num_dst + 1).astype(np.int64)
        hops.append(Mfg(indptr, rng.integers(0, num_src, indptr[-1]).astype(np.int32), num_src))
    spec = train_options(config, None).model_spec(max(1, work.feature_dim), work.num_classes)
    model, rows = build_model(spec, seed=0), torch.rand(nodes[-1], max(1, work.feature_dim))
    degrees = NodeDegrees(np.ones(nodes[-1], np.int64), np.ones(nodes[-1], np.int64))
    best = math.inf
    for _ in range(_TRIES):
        start = time.perf_counter()
        model(hops, rows, degrees).sum().backward()
        best = min(best, time.perf_counter() - start)
    return best * scale


def sampling_seconds(config: PipelineConfig, work: Workload) -> float:
    """Time the sampler on a random graph of the same mean degree; what it takes beside a step that uses one core."""
    if not config.sampling.fanouts:
        return 0.0
    nodes = min(work.num_nodes, 200_000)
    degree = max(1, min(64, round(work.num_edges / work.num_nodes)))
    indices = np.random.default_rng(0).integers(0, nodes, nodes * degree).astype(np.int32)
    topology = Topology.in_memory(np.arange(nodes + 1, dtype=np.int64) * degree, indices)
    sampler = NeighborSampler(topology, config.sampling.fanouts, seed=0, purpose=Purpose.PROFILE)
    seeds, best = np.arange(min(nodes, max(1, work.batch_nodes[0] // 10))), math.inf
    for number in range(_TRIES + 1):
        start = time.perf_counter()
        sampled = sampler.sample([seeds], epoch=0, first_batch=number)
        edges = sum(hop.num_edges for hop in sampled.samples[0].hops)
        best = min(best, (time.perf_counter() - start) / max(1, edges)) if number else best
    overlap = max(1, min(config.sampling.threads, len(os.sched_getaffinity(0)) - 1))
    return best * sum(work.batch_edges) / overlap


def _reasons(machine: Machine, work: Workload, mode: str, in_memory: int, block: int, batch: int) -> tuple[str, ...]:
    disk = machine.disk
    how = "direct" if disk.direct else "buffered: this file system refuses direct I/O"
    fits = "fits" if mode == "memory" else "does not fit"
    return (
        f"graph: {work.num_nodes:,} nodes, {work.num_edges:,} edges, rows of {work.row_bytes} bytes: "
        f"{format_bytes(work.data_bytes)} of topology and features",
        f"machine: {format_bytes(machine.memory_bytes)} of memory for a stage, {machine.cores} cores, "
        f"{'GPU ' + machine.gpu if machine.gpu else 'no GPU'}",
        f"disk: {disk.bytes_per_s / 1e6:,.0f} MB/s in reads of 1 MiB, {disk.small_reads_per_s:,.0f} reads of 4 KiB a "
        f"second ({how}), {format_bytes(machine.free_disk_bytes)} free",
        f"a mini-batch has about {work.batch_nodes[-1]:,} input nodes, {sum(work.batch_edges):,} edges, "
        f"{format_bytes(batch)}; an epoch has {work.num_batches:,}",
        f"training in memory takes {format_bytes(in_memory)}, which {fits}",
        f"reads of {format_bytes(block)} reach about nine tenths of this disk's rate",
    )
