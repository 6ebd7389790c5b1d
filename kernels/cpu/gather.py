"""Row gather through the tiers' base addresses, in one pass: the tier of a row costs one table look-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import copy_bytes, prefetch_address

# Rows ahead of the copy whose first lines are asked for; far enough to hide a miss, near enough to stay in L1.
_AHEAD = 8
_LINE_BYTES = 64


def gather_rows(
    tiers: Sequence[npt.NDArray[Any]],
    tier_n: npt.NDArray[np.uint8],
    slot_n: npt.NDArray[np.int64],
    out: npt.NDArray[Any],
) -> None:
    """Copy row `slot_n[i]` of tier `tier_n[i]` to `out[i]`, for every i.

    Parameters
    ----------
    tiers : sequence of (rows_t, width) arrays
        One dtype and one width; each row contiguous. A tier may have no rows.
    tier_n : (n,) uint8
    slot_n : (n,) int64
    out : (n, width) array of the same dtype
        C-contiguous; every row is written.

    Raises
    ------
    ValueError
        If shapes or dtypes do not agree, or a tier or slot is out of range (rows before it are written then).
    """
    _guard_places(tiers, tier_n, slot_n, out.dtype, out.shape[-1])
    if out.ndim != 2 or len(out) != len(tier_n) or not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(f"out must be a writable C-contiguous array of {len(tier_n)} rows (got shape {out.shape})")
    base_T, stride_T, rows_T = _table(tiers)
    row_bytes = out.shape[1] * out.itemsize
    bad = _gather(base_T, stride_T, rows_T, row_bytes, tier_n, slot_n, np.uint64(out.ctypes.data))
    _refuse(bad, tier_n, slot_n, rows_T)


def row_addresses(
    tiers: Sequence[npt.NDArray[Any]], tier_n: npt.NDArray[np.uint8], slot_n: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """Address of row `slot_n[i]` of tier `tier_n[i]`, for every i: valid as long as the tiers live.

    Parameters
    ----------
    tiers, tier_n, slot_n
        As for `gather_rows`.

    Returns
    -------
    (n,) uint64

    Raises
    ------
    ValueError
        If shapes or dtypes do not agree, or a tier or slot is out of range.
    """
    _guard_places(tiers, tier_n, slot_n, tiers[0].dtype, tiers[0].shape[-1])
    base_T, stride_T, rows_T = _table(tiers)
    address_n = np.empty(len(tier_n), np.uint64)
    bad = _addresses(base_T, stride_T, rows_T, tier_n, slot_n, address_n)
    _refuse(bad, tier_n, slot_n, rows_T)
    return address_n


def _table(
    tiers: Sequence[npt.NDArray[Any]],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Base address, bytes from row to row, and rows of each tier."""
    base_T = np.array([tier.ctypes.data for tier in tiers], np.uint64)
    stride_T = np.array([tier.strides[0] for tier in tiers], np.int64)
    return base_T, stride_T, np.array([len(tier) for tier in tiers], np.int64)


def _refuse(
    bad: int, tier_n: npt.NDArray[np.uint8], slot_n: npt.NDArray[np.int64], rows_T: npt.NDArray[np.int64]
) -> None:
    if bad >= 0:
        raise ValueError(
            f"row {bad} asks for slot {slot_n[bad]} of tier {tier_n[bad]}; tiers have {rows_T.tolist()} rows"
        )


def _guard_places(
    tiers: Sequence[npt.NDArray[Any]],
    tier_n: npt.NDArray[np.uint8],
    slot_n: npt.NDArray[np.int64],
    dtype: np.dtype[Any],
    width: int,
) -> None:
    if tier_n.dtype != np.uint8 or slot_n.dtype != np.int64 or tier_n.shape != slot_n.shape or tier_n.ndim != 1:
        raise ValueError("tier_n must be uint8 and slot_n int64, both 1-D and of one length")
    if not tier_n.flags.c_contiguous or not slot_n.flags.c_contiguous:
        raise ValueError("tier_n and slot_n must be contiguous")
    if dtype.hasobject:
        raise ValueError(f"rows of {dtype} cannot be moved as bytes")
    for t, tier in enumerate(tiers):
        if tier.ndim != 2 or tier.dtype != dtype or tier.shape[1] != width:
            raise ValueError(f"tier {t} must hold {dtype} rows of {width} (got {tier.dtype} {tier.shape})")
        if len(tier) and width > 1 and tier.strides[1] != tier.itemsize:  # empty arrays have strides of 0
            raise ValueError(f"rows of tier {t} must be contiguous")


@njit(nogil=True, cache=True)
def _gather(
    base_T: npt.NDArray[np.uint64],
    stride_T: npt.NDArray[np.int64],
    rows_T: npt.NDArray[np.int64],
    row_bytes: int,
    tier_n: npt.NDArray[np.uint8],
    slot_n: npt.NDArray[np.int64],
    out_address: np.uint64,
) -> int:
    num_rows = len(tier_n)
    for i in range(num_rows):
        if i + _AHEAD < num_rows:
            t = tier_n[i + _AHEAD]
            if t < len(base_T):
                ahead = base_T[t] + np.uint64(slot_n[i + _AHEAD] * stride_T[t])
                for byte in range(0, row_bytes, _LINE_BYTES):
                    prefetch_address(ahead + np.uint64(byte))
        t = tier_n[i]
        if t >= len(base_T) or slot_n[i] < 0 or slot_n[i] >= rows_T[t]:
            return i
        copy_bytes(out_address + np.uint64(i * row_bytes), base_T[t] + np.uint64(slot_n[i] * stride_T[t]), row_bytes)
    return -1


@njit(nogil=True, cache=True)
def _addresses(
    base_T: npt.NDArray[np.uint64],
    stride_T: npt.NDArray[np.int64],
    rows_T: npt.NDArray[np.int64],
    tier_n: npt.NDArray[np.uint8],
    slot_n: npt.NDArray[np.int64],
    address_n: npt.NDArray[np.uint64],
) -> int:
    for i in range(len(tier_n)):
        t = tier_n[i]
        if t >= len(base_T) or slot_n[i] < 0 or slot_n[i] >= rows_T[t]:
            return i
        address_n[i] = base_T[t] + np.uint64(slot_n[i] * stride_T[t])
    return -1
