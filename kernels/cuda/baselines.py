"""Other shapes of the same ops, to measure against: GARDEN's two kernels, a lane an edge, and DGL's warp a row."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from kernels.cuda.classify import classify_rows, listed_classes
from kernels.cuda.launch import Array, DeviceLauncher, Launcher, launch
from kernels.cuda.sample import Plan, copy_rows, full_limit
from kernels.cuda.source import Kernel, c_type
from kernels.cuda.topology import DeviceTopology

_WARP = 32


def sample_by_groups(
    launcher: Launcher,
    topology: DeviceTopology,
    plan: Plan,
    num_rows: int,
    rows: Array,
    neighbors: Array,
    *,
    preload: int = 0,
) -> None:
    """Fill `neighbors` by groups of `fanout` lanes a row (GARDEN §IV-C), for all rows or the `num_rows` listed ones.

    Parameters
    ----------
    launcher, topology, plan
        As `fill_rows` takes them; fanouts up to 32, without replacement.
    num_rows : int
    rows : (num_rows,) int64
        Rows to fill; empty for all.
    neighbors : (num_edges,) ids
    preload : int
        Lists of at most so many ids are read whole into shared memory (the paper's D_max); 0 reads in place.
    """
    listed = "true" if len(rows) else "false"
    template = (c_type(neighbors.dtype), topology.position_type, str(plan.fanout), listed, str(preload))
    arguments = (num_rows, rows, plan.address_U, plan.degree_U, plan.row_key_U, plan.row_ptr, neighbors)
    threads = -(-num_rows // (_WARP // plan.fanout)) * _WARP
    launch(launcher, Kernel("sample", "sample_grouped", template), threads, arguments)


def sample_by_classes(
    launcher: DeviceLauncher, topology: DeviceTopology, plan: Plan, uniq: Array, uniq_ptr: Array, *, preload: int = 0
) -> Array:
    """GARDEN's form (§IV-C): rows classified, full ones copied by one kernel, random ones drawn by another beside it.

    Parameters
    ----------
    launcher, topology, plan, uniq, uniq_ptr
        As `fill_rows` and `plan_rows` take them, every row of `uniq` in a batch; fanouts up to 32, without replacement.
    preload : int
        As `sample_by_groups` takes it.

    Returns
    -------
    (num_edges,) ids
        As `fill_rows` returns them.
    """
    xp = launcher.xp
    neighbors, ids = xp.empty(int(plan.row_ptr[-1]), uniq.dtype), xp.empty(0, np.int64)  # synchronize!
    scan = classify_rows(launcher, uniq, uniq_ptr, plan.degree_U, plan.fanout)[3]
    full_rows, random_rows = listed_classes(launcher, scan)
    num_full = int(scan[-1])  # synchronize!
    listed = launcher.record()
    with launcher.on("side"):
        launcher.wait(listed)
        if num_full:
            rows = full_rows[:num_full]
            copy_rows(launcher, topology, plan, uniq, num_full, rows, neighbors, ids, lanes=plan.fanout)
        copied = launcher.record()
    if num_full < len(uniq):
        rows = random_rows[: len(uniq) - num_full]
        sample_by_groups(launcher, topology, plan, len(rows), rows, neighbors, preload=preload)
    launcher.wait(copied)
    return neighbors


def sample_by_edges(launcher: Launcher, topology: DeviceTopology, plan: Plan, uniq: Array) -> Array:
    """A lane an output edge, which draws again what its row drew before it; the same sample, without a shuffle."""
    xp, num_edges = launcher.xp, int(plan.row_ptr[-1])  # synchronize!
    row_E, neighbors = xp.empty(num_edges, np.int32), xp.empty(num_edges, uniq.dtype)
    launch(launcher, Kernel("plan", "expand_rows"), num_edges, (plan.row_ptr, len(uniq), num_edges, row_E))
    template = (c_type(uniq.dtype), topology.position_type, str(plan.fanout), "false")
    arguments = (num_edges, row_E, plan.address_U, plan.degree_U, plan.row_key_U, plan.row_ptr, neighbors)
    launch(launcher, Kernel("sample", "sample_edges", template), num_edges, arguments)
    return neighbors


def sample_by_warps(launcher: Launcher, plan: Plan, uniq: Array) -> Array:
    """A warp a row and a reservoir, the shape of DGL's sampler over UVA: uniform as well, with other draws."""
    xp, num_edges = launcher.xp, int(plan.row_ptr[-1])  # synchronize!
    chosen, neighbors = xp.empty(num_edges, np.int32), xp.empty(num_edges, uniq.dtype)
    arguments = (
        len(uniq), plan.fanout, plan.address_U, plan.degree_U, plan.row_key_U, plan.row_ptr, chosen, neighbors,
    )  # fmt: skip
    kernel = Kernel("sample", "sample_warp_rows", (c_type(uniq.dtype),))
    launch(launcher, kernel, len(uniq) * _WARP, arguments)
    return neighbors


def classify_with_counters(
    launcher: Launcher, degree_U: Array, batch_ptr: list[int], fanout: int
) -> list[tuple[Array, Array]]:
    """Classify one mini-batch after the other with atomic counters, in whatever order its threads come.

    Parameters
    ----------
    launcher : Launcher
    degree_U : (U,) int64
    batch_ptr : list of K + 1 int
    fanout : int

    Returns
    -------
    list of K (full rows, random rows)
    """
    xp, limit, found = launcher.xp, full_limit(fanout, False), []
    for begin, end in pairwise(batch_ptr):
        full_rows, random_rows = xp.empty(end - begin, np.int64), xp.empty(end - begin, np.int64)
        counters = xp.zeros(2, np.uint64)
        arguments = (degree_U, begin, end, limit, full_rows, random_rows, counters)
        launch(launcher, Kernel("classify", "classify_atomic"), end - begin, arguments)
        num_full = int(counters[0])  # synchronize!
        found.append((full_rows[:num_full], random_rows[: end - begin - num_full]))
    return found
