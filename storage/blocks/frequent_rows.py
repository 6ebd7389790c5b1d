"""Which rows a host cache is to hold, from exact counts of their accesses."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from kernels.cpu.scatter import histogram, select

Keep = Literal["top", "mean"]


def frequent_rows(count_N: npt.NDArray[np.uint16], most_rows: int, keep: Keep) -> npt.NDArray[np.int64]:
    """Rows to hold, ascending.

    Parameters
    ----------
    count_N : (N,) uint16
        Accesses of each row.
    most_rows : int
        Rows that fit.
    keep : str
        `top`: the most accessed ones that fit; `mean`: those with at least the mean count of those accessed, as AGNES
        has it.
    """
    count = histogram(count_N, int(count_N.max(initial=0)))
    accessed = count[1:]
    if keep == "mean":
        mean = np.arange(1, len(count)) @ accessed / max(1, int(accessed.sum()))
        threshold, at_threshold = int(np.ceil(mean)) - 1, 0
    else:
        # The lowest count such that all rows above it fit, and as many at it as there is room for.
        above = np.concatenate([np.cumsum(accessed[::-1])[::-1], [0]])
        threshold = int(np.searchsorted(-above, -most_rows))
        at_threshold = most_rows - int(above[threshold]) if threshold else 0
    out = np.empty(min(most_rows, int(accessed.sum())), np.int64)
    return out[: select(count_N, max(threshold, 0), at_threshold, out)]
