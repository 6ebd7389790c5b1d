"""The checking mode of the feature tiers: a sample of the rows of each mini-batch beside their source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu.resolve import DEVICE, DYNAMIC, HOST, STAGED
from kernels.mfg import IdArray
from storage.errors import TierMismatchError

CHECKED_ROWS = 64
"""Least rows of a mini-batch that are compared with the source (all of a smaller one)."""


def checked_rows(ids: IdArray) -> npt.NDArray[np.int64]:
    """Evenly spaced positions of the rows to compare."""
    sample: npt.NDArray[np.int64] = np.arange(0, len(ids), max(1, len(ids) // CHECKED_ROWS))
    return sample


def compare_with_source(
    host_ND: npt.NDArray[Any],
    ids: IdArray,
    sample: npt.NDArray[np.int64],
    got_nD: npt.NDArray[Any],
    tier_n: npt.NDArray[np.uint8],
) -> None:
    """Compare the rows of a sample with the source as bytes, so that NaN equals itself.

    Parameters
    ----------
    host_ND : (N, D) array
        The source.
    ids : (n,) integer
        Nodes of the mini-batch.
    sample : (s,) int64
        Positions compared.
    got_nD : (s, D) array
        What was read for them.
    tier_n : (n,) uint8
        Where each row of the mini-batch was read.

    Raises
    ------
    TierMismatchError
        If a row differs.
    """
    names = {DEVICE: "device tier", HOST: "host tier", STAGED: "staging tier", DYNAMIC: "dynamic tier"}
    compare_rows(host_ND[ids[sample]], got_nD, ids, sample, lambda row: names[int(tier_n[row])])


def compare_rows(
    expected_nD: npt.NDArray[Any],
    got_nD: npt.NDArray[Any],
    ids: IdArray,
    sample: npt.NDArray[np.int64],
    name_of: Callable[[int], str],
) -> None:
    """Compare rows with what they should be; parameters as for `compare_with_source`, `name_of` names a row's tier.

    Raises
    ------
    TierMismatchError
        If a row differs.
    """
    wrong = np.flatnonzero((_bytes(got_nD) != _bytes(expected_nD)).any(axis=1))
    if len(wrong):
        row = int(sample[wrong[0]])
        raise TierMismatchError(
            f"row {row} of a mini-batch, node {ids[row]}, read from the {name_of(row)}, differs from its source: "
            "memory was damaged or this program is wrong; run again, and test the machine's memory if it recurs"
        )


def _bytes(rows_nD: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(rows_nD).view(np.uint8)
