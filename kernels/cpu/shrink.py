"""Noisy counts drawn toward what was expected of them, the more the better the expectation has proved."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

NUM_BINS = 64
"""Nodes are judged beside those whose expectation has the same binary order of magnitude."""
_OFFSET = 40


@njit(nogil=True, cache=True)
def _bin_of(mean: float) -> int:
    return min(NUM_BINS - 1, max(0, int(np.floor(np.log2(mean))) + _OFFSET))


@njit(nogil=True, cache=True)
def shrink_statistics(
    count_N: npt.NDArray[np.integer],
    expected_N: npt.NDArray[np.float32],
    epochs: int,
    most_count: float,
    bias_B: npt.NDArray[np.float64],
    spread_B: npt.NDArray[np.float64],
) -> None:
    """Judge an expectation, bin by bin: its bias, and the squared relative spread of the truth around it.

    Parameters
    ----------
    count_N : (N,) integers
        What was counted in `epochs` epochs.
    expected_N : (N,) float32
        What was expected of one.
    epochs : int
    most_count : float
        The largest count there can be; counts vary as binomial ones do.
    bias_B, spread_B : (NUM_BINS,) float64
        Receive the results.
    """
    counted, expected = np.zeros(NUM_BINS), np.zeros(NUM_BINS)
    for v in range(len(count_N)):
        if expected_N[v] > 0:
            mean = np.float64(expected_N[v]) * epochs
            counted[_bin_of(mean)] += count_N[v]
            expected[_bin_of(mean)] += mean
    for b in range(NUM_BINS):
        bias_B[b] = counted[b] / expected[b] if expected[b] > 0 else 1.0
    excess, square = np.zeros(NUM_BINS), np.zeros(NUM_BINS)
    for v in range(len(count_N)):
        if expected_N[v] > 0:
            b = _bin_of(np.float64(expected_N[v]) * epochs)
            mean = bias_B[b] * np.float64(expected_N[v]) * epochs
            noise = mean * max(0.0, 1 - mean / most_count)
            excess[b] += (count_N[v] - mean) ** 2 - noise
            square[b] += mean * mean
    for b in range(NUM_BINS):
        spread_B[b] = max(0.0, excess[b] / square[b]) if square[b] > 0 else 0.0


@njit(nogil=True, cache=True)
def shrink(
    count_N: npt.NDArray[np.integer],
    expected_N: npt.NDArray[np.float32],
    epochs: int,
    most_count: float,
    bias_B: npt.NDArray[np.float64],
    spread_B: npt.NDArray[np.float64],
    unit: int,
    most_out: float,
    out_N: npt.NDArray[np.integer],
) -> None:
    """Write the best linear estimate of each node's count (Bühlmann's credibility), in parts of 1/`unit`.

    Parameters are those of `shrink_statistics`; a node of which nothing was expected keeps its count, and none exceeds
    `most_out`.
    """
    for v in range(len(count_N)):
        if expected_N[v] <= 0:
            out_N[v] = count_N[v] * unit
            continue
        b = _bin_of(np.float64(expected_N[v]) * epochs)
        mean = bias_B[b] * np.float64(expected_N[v]) * epochs
        noise = mean * max(1e-9, 1 - mean / most_count)
        truth = spread_B[b] * mean * mean
        credibility = truth / (truth + noise) if truth + noise > 0 else 0.0
        out_N[v] = np.int64(min(most_out, np.rint(unit * (mean + credibility * (count_N[v] - mean)))))
