"""Degree classification of a super-batch on the device (GARDEN §IV-D, Algorithm 1, corrected), without atomics."""

from __future__ import annotations

import numpy as np

from kernels.cuda.launch import Array, Launcher, exclusive_sum, launch
from kernels.cuda.sample import full_limit
from kernels.cuda.source import Kernel, c_type


def classify_rows(
    launcher: Launcher, uniq: Array, uniq_ptr: Array, degree_U: Array, fanout: int, *, replace: bool = False
) -> tuple[Array, Array, Array, Array]:
    """Order each batch as full nodes, then random nodes.

    Parameters
    ----------
    launcher : Launcher
    uniq, uniq_ptr : (U,) ids, (K + 1,) int64
    degree_U : (U,) int64
    fanout : int
    replace : bool

    Returns
    -------
    classified : (U,) ids
    permutation : (U,) int64
    bound : (K,) int64
        As `kernels.reference.classify_by_degree` returns them.
    scan : (U + 1,) int64
        Full rows before each row.
    """
    xp, num_rows, num_batches = launcher.xp, len(uniq), len(uniq_ptr) - 1
    flag = xp.empty(num_rows, np.int64)
    flags = (degree_U, uniq_ptr, num_batches, full_limit(fanout, replace), num_rows, flag)
    launch(launcher, Kernel("classify", "flag_full"), num_rows, flags)
    scan = exclusive_sum(launcher, flag)
    classified, permutation = xp.empty_like(uniq), xp.empty(num_rows, np.int64)
    bound = xp.empty(num_batches, np.int64)
    scatter = (uniq, uniq_ptr, num_batches, scan, classified, permutation, bound)
    kernel = Kernel("classify", "scatter_classes", (c_type(uniq.dtype),))
    launch(launcher, kernel, max(num_rows, num_batches), scatter)
    return classified, permutation, bound, scan


def listed_classes(launcher: Launcher, scan: Array) -> tuple[Array, Array]:
    """Full rows and random rows of all batches together, each in order.

    Parameters
    ----------
    launcher : Launcher
    scan : (U + 1,) int64
        Of `classify_rows`.

    Returns
    -------
    full_rows, random_rows : (U,) int64
        Filled up to `scan[-1]` and `U - scan[-1]` entries.
    """
    xp, num_rows = launcher.xp, len(scan) - 1
    full_rows, random_rows = xp.empty(num_rows, np.int64), xp.empty(num_rows, np.int64)
    launch(launcher, Kernel("classify", "list_classes"), num_rows, (scan, num_rows, full_rows, random_rows))
    return full_rows, random_rows
