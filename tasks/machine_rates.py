"""How fast this machine does the parts of an epoch, each timed for a fraction of a second on made-up data."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from kernels.mfg import Mfg
from kernels.nn.layers import Layer, NodeDegrees
from kernels.nn.model import ModelSpec, build_model
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.tiered_rows import TieredRows
from kernels.topology import Topology
from tasks.step_costs import HopShape

_STEP_EDGES = 400_000
_GRAPH_NODES, _MOST_DEGREE, _SEEDS = 200_000, 64, 1000
_TABLE_BYTES, _ROWS = 64 << 20, 20_000
_TILE_NODES, _TILE_EDGES = 10_000, 200_000
_TRIES = 3


def step_seconds(
    spec: ModelSpec, shapes: Sequence[HopShape], num_inputs: int, share_of_ones: float | None = None
) -> float:
    """Seconds of a training step on a mini-batch of such hops, that of the seeds first; timed scaled down if large.

    Features are 0 or 1 where it is told what share of them is 1.
    """
    scale = max(1.0, (sum(shape.num_edges for shape in shapes) + num_inputs) / _STEP_EDGES)
    rng, hops, num_src = np.random.default_rng(0), list[Mfg](), max(1, int(num_inputs / scale))
    for shape in shapes:
        num_dst, num_src = max(1, int(shape.num_dst / scale)), max(1, int(shape.num_src / scale))
        indptr = np.linspace(0, int(shape.num_edges / scale), num_dst + 1).astype(np.int64)
        hops.append(Mfg(indptr, rng.integers(0, num_src, indptr[-1]).astype(np.int32), num_src))
    model, rows = build_model(spec, seed=0), _rows(num_src, spec.in_dim, share_of_ones)
    degrees = NodeDegrees(np.ones(num_src, np.int64), np.ones(num_src, np.int64))
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(hops, rows, degrees).log_softmax(1).mean().backward()
        optimizer.step()

    return scale * _best(step)


def sampling_seconds(fanouts: Sequence[int], mean_degree: float) -> float:
    """Seconds to draw an edge from memory, by one thread, from a random graph of that mean degree."""
    if not fanouts:
        return 0.0
    degree = max(1, min(_MOST_DEGREE, round(mean_degree)))
    indices = np.random.default_rng(0).integers(0, _GRAPH_NODES, _GRAPH_NODES * degree).astype(np.int32)
    topology = Topology.in_memory(np.arange(_GRAPH_NODES + 1, dtype=np.int64) * degree, indices)
    sampler = NeighborSampler(topology, fanouts, seed=0, purpose=Purpose.PROFILE)
    seeds = np.arange(max(1, _SEEDS // 4 ** len(fanouts)))
    sample = sampler.sample([seeds], epoch=0, first_batch=0).samples[0]
    edges = sum(hop.num_edges for hop in sample.hops)
    return _best(lambda: sampler.sample([seeds], epoch=0, first_batch=0)) / max(1, edges)


def row_seconds(row_bytes: int) -> float:
    """Seconds to copy a row from anywhere in memory."""
    if not row_bytes:
        return 0.0
    table = np.ones((max(1, _TABLE_BYTES // row_bytes), row_bytes), np.uint8)
    slots = np.random.default_rng(0).integers(0, len(table), _ROWS)
    rows = TieredRows([table], np.zeros(_ROWS, np.uint8), slots)
    return _best(rows.gather) / _ROWS


def exact_seconds(layer: Layer, shape: HopShape, share_of_ones: float | None = None) -> float:
    """Seconds of one layer over all neighbors of so many nodes, its rows in memory, 0 or 1 as for a step."""
    rng, rows = np.random.default_rng(0), _rows(_TILE_NODES, layer.in_dim, share_of_ones)
    indptr = np.linspace(0, _TILE_EDGES, _TILE_NODES + 1).astype(np.int64)
    hop = Mfg(indptr, rng.integers(0, _TILE_NODES, _TILE_EDGES).astype(np.int32), _TILE_NODES)
    none = Mfg(np.zeros_like(indptr), hop.indices[:0], _TILE_NODES)
    degree = np.diff(indptr)
    degrees = NodeDegrees(degree, degree)
    with torch.no_grad():
        projected = layer.project(rows)
        per_source = _best(lambda: layer.project(rows)) / _TILE_NODES
        per_node = _best(lambda: layer.combine(none, projected, degrees)) / _TILE_NODES
        with_edges = _best(lambda: layer.combine(hop, projected, degrees)) / _TILE_NODES
    per_edge = max(0.0, with_edges - per_node) * _TILE_NODES / _TILE_EDGES
    return per_edge * shape.num_edges + per_node * shape.num_dst + per_source * shape.num_src


def _rows(num_rows: int, width: int, share_of_ones: float | None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(num_rows, width, generator=generator)
    return rows if share_of_ones is None else (rows < share_of_ones).to(torch.uint8)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some tries, after one that does not count."""
    work()
    best = math.inf
    for _ in range(_TRIES):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
