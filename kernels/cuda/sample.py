"""Neighbor sampling on the device: plan the rows, then fill them, a warp 32 rows (GARDEN §IV-C)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from kernels.cuda.launch import Array, Launcher, exclusive_sum, launch
from kernels.cuda.source import Kernel, c_type
from kernels.cuda.topology import DeviceTopology

_WARP = 32
_LARGEST_GROUPED_FANOUT = {"u32": 64, "u64": 20}
"""By the type of positions in a list: with larger fanouts the draws of a lane would spill from its registers."""
_WIDE_CTA_WARPS = 4
_SHARED_DRAW_BYTES = 32 << 10
_COPY_LANES = 8
_NO_LIMIT = 2**63 - 1
_MOST_ROUNDS = 8
_BUSY_ENOUGH = 0.9


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows of a hop, ready to be sampled. Arrays have room for rows that the last batch may not reach: empty ones."""

    fanout: int
    """Neighbors a row; -1 takes all."""
    replace: bool
    """Draw with replacement."""
    address_U: Array
    """(rows,) uint64 address of each list."""
    degree_U: Array
    """(rows,) int64 length of each list."""
    row_key_U: Array
    """(rows,) uint64 key of each row's draws."""
    row_ptr: Array
    """(rows + 1,) int64 offsets of each row's neighbors."""
    cached_reads: Array
    """(2,) uint64: rows and edges that the adjacency cache serves."""


@dataclass(frozen=True, slots=True)
class GroupShape:
    """How the lanes of a warp share the rows that it draws for."""

    lanes: int
    """Lanes a row."""
    rounds: int
    """Draws a lane."""


@cache
def group_shape(fanout: int) -> GroupShape:
    """Lanes and draws a lane: the fewest draws that keep nine tenths of a warp busy, else those that keep most busy.

    A group of `fanout` lanes, as the paper has it, idles up to 47 % of a warp for fanouts of 17 to 31. One draw a lane
    where that will do: draws of one row in one request share sectors.
    """
    shapes = [GroupShape(-(-fanout // rounds), rounds) for rounds in range(1, min(fanout, _MOST_ROUNDS) + 1)]
    shapes = [shape for shape in shapes if shape.lanes <= _WARP]
    busy = {shape: busy_share(shape, fanout) for shape in shapes}
    return next((shape for shape in shapes if busy[shape] >= _BUSY_ENOUGH), max(shapes, key=busy.__getitem__))


def busy_share(shape: GroupShape, fanout: int) -> float:
    """Share of a warp's lanes and rounds that serve a draw."""
    return _WARP // shape.lanes * fanout / (_WARP * shape.rounds)


def plan_rows(
    launcher: Launcher,
    topology: DeviceTopology,
    uniq: Array,
    uniq_ptr: Array,
    fanout: int,
    *,
    stream_keys: Array,
    replace: bool = False,
    cached_reads: Array | None = None,
) -> Plan:
    """Find each row's list and count its neighbors; how many rows there are is known to the device alone.

    Parameters
    ----------
    launcher : Launcher
    topology : DeviceTopology
    uniq : (capacity,) ids on the device
        Unique nodes of all batches; what lies beyond the last batch is not read.
    uniq_ptr : (K + 1,) int64 on the device
    fanout : int
    stream_keys : (K,) uint64 on the device
    replace : bool
    cached_reads : (2,) uint64 on the device, optional
        Counts to add to; zeros by default.

    Returns
    -------
    Plan
    """
    xp, capacity = launcher.xp, len(uniq)
    address_U, row_key_U = xp.empty(capacity, np.uint64), xp.empty(capacity, np.uint64)
    degree_U, count_U = xp.empty(capacity, np.int64), xp.zeros(capacity, np.int64)
    cached_reads = xp.zeros(2, np.uint64) if cached_reads is None else cached_reads
    arguments = (
        uniq, uniq_ptr, len(uniq_ptr) - 1, stream_keys, topology.indptr, topology.bits, topology.rank,
        topology.cached_indptr, int(topology.has_cache), topology.indices_address,
        launcher.address(topology.cached_indices), full_limit(fanout, replace), fanout, capacity,
        address_U, degree_U, row_key_U, count_U, cached_reads,
    )  # fmt: skip
    if len(uniq_ptr) > 1:
        launch(launcher, Kernel("plan", "plan_rows", (c_type(uniq.dtype),)), capacity, arguments)
    return Plan(fanout, replace, address_U, degree_U, row_key_U, exclusive_sum(launcher, count_U), cached_reads)


def fill_rows(
    launcher: Launcher,
    topology: DeviceTopology,
    plan: Plan,
    uniq: Array,
    num_rows: int,
    num_edges: int,
    *,
    edge_ids: bool = False,
) -> tuple[Array, Array]:
    """Sample every planned row in one launch.

    Parameters
    ----------
    launcher, topology, plan, uniq
        As `plan_rows` took them.
    num_rows, num_edges : int
        How many there are, or more: rows that no batch reaches are empty.
    edge_ids : bool

    Returns
    -------
    neighbors : (num_edges,) ids
        In draw order within a row, adjacency order for rows that keep their lists.
    ids : (num_edges,) int64
        Position of each neighbor in the graph's `indices`; empty unless asked for.
    """
    xp = launcher.xp
    neighbors = xp.empty(num_edges, topology.indices.dtype)
    ids = xp.empty(num_edges if edge_ids else 0, np.int64)
    if plan.fanout < 0:
        copy_rows(launcher, topology, plan, uniq, num_rows, xp.empty(0, np.int64), neighbors, ids)
    elif plan.fanout <= _LARGEST_GROUPED_FANOUT[topology.position_type]:
        _sample_parted(launcher, topology, plan, uniq, num_rows, neighbors, ids)
    else:
        _sample_wide(launcher, topology, plan, uniq, num_rows, neighbors, ids)
    return neighbors, ids


def copy_rows(
    launcher: Launcher,
    topology: DeviceTopology,
    plan: Plan,
    uniq: Array,
    num_rows: int,
    rows: Array,
    neighbors: Array,
    ids: Array,
    *,
    lanes: int = _COPY_LANES,
) -> None:
    """Copy whole lists of all rows, or of the listed ones; those that are sampled are passed over."""
    template = (c_type(neighbors.dtype), str(lanes), _flag(len(rows) > 0), _flag(len(ids) > 0))
    limit = full_limit(plan.fanout, plan.replace)
    arguments = (
        num_rows, rows, limit, plan.address_U, plan.degree_U, plan.row_ptr, uniq, topology.indptr, neighbors, ids,
    )  # fmt: skip
    threads = -(-num_rows // (_WARP // lanes)) * _WARP
    launch(launcher, Kernel("sample", "copy_lists", template), threads, arguments)


def _sample_parted(
    launcher: Launcher,
    topology: DeviceTopology,
    plan: Plan,
    uniq: Array,
    num_rows: int,
    neighbors: Array,
    ids: Array,
) -> None:
    shape = group_shape(plan.fanout)
    template = (
        c_type(neighbors.dtype), topology.position_type, str(plan.fanout), str(shape.lanes), str(shape.rounds),
        _flag(plan.replace), _flag(len(ids) > 0),
    )  # fmt: skip
    arguments = (
        num_rows, plan.address_U, plan.degree_U, plan.row_key_U, plan.row_ptr, uniq, topology.indptr, neighbors, ids,
    )  # fmt: skip
    launch(launcher, Kernel("sample", "sample_parted", template), num_rows, arguments)


def _sample_wide(
    launcher: Launcher,
    topology: DeviceTopology,
    plan: Plan,
    uniq: Array,
    num_rows: int,
    neighbors: Array,
    ids: Array,
) -> None:
    shared_bytes = 8 * plan.fanout * _WIDE_CTA_WARPS
    in_shared = shared_bytes <= _SHARED_DRAW_BYTES
    # 20 bytes an edge, less than numbering the neighbors will take.
    num_drawn = 0 if in_shared else len(neighbors)
    draws, links, heads = (
        launcher.xp.empty(times * num_drawn, dtype) for times, dtype in ((1, np.int64), (1, np.int32), (2, np.int32))
    )
    template = (c_type(neighbors.dtype), _flag(plan.replace), _flag(len(ids) > 0))
    arguments = (
        num_rows, plan.fanout, int(in_shared), plan.address_U, plan.degree_U, plan.row_key_U, plan.row_ptr, uniq,
        topology.indptr, draws, links, heads, neighbors, ids,
    )  # fmt: skip
    kernel = Kernel("sample", "sample_wide", template)
    launch(launcher, kernel, num_rows * _WARP, arguments, shared_bytes=shared_bytes if in_shared else 0)


def full_limit(fanout: int, replace: bool) -> int:
    """Greatest degree at which a node keeps its list as it is (a full node)."""
    if fanout < 0:
        return _NO_LIMIT
    return 0 if replace else fanout


def _flag(value: bool) -> str:
    return "true" if value else "false"
