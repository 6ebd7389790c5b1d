"""Rows through all tiers in one launch, and access counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.cuda.launch import Array, Launcher, launch
from kernels.cuda.source import Kernel, c_type

DEVICE, HOST, STAGED, DYNAMIC = 0, 1, 2, 3
"""Tiers as `gather.cu` numbers them."""

_WORDS = (("uint4", 16), ("u64", 8), ("u32", 4), ("u8", 1))
_VIEWS = {"u64": np.uint64, "u32": np.uint32, "u8": np.uint8}
_WARP = 32
_NOTHING_BAD = np.uint64(2**64 - 1)


@dataclass(frozen=True, slots=True)
class TierTable:
    """Where tiers begin: their arrays may lie on the device or in host memory that it reaches."""

    tiers: tuple[Any, ...]
    """(rows_t, width) arrays, kept alive."""
    base_T: Array
    """(T,) uint64 addresses on the device."""
    stride_T: Array
    """(T,) int64 bytes from row to row."""
    rows_T: Array
    """(T,) int64 rows."""
    word: str
    """Widest C++ type that every row of every tier is made of."""
    word_bytes: int
    """Its size."""

    @classmethod
    def of(cls, launcher: Launcher, tiers: Sequence[Any]) -> TierTable:
        """Describe tiers of one dtype and width, each row contiguous.

        Raises
        ------
        ValueError
            If the tiers do not fit together.
        """
        first = tiers[0]
        for t, tier in enumerate(tiers):
            if tier.ndim != 2 or tier.dtype != first.dtype or tier.shape[1] != first.shape[1]:
                raise ValueError(f"tier {t} must hold {first.dtype} rows of {first.shape[1]} (got {tier.dtype})")
            if len(tier) and tier.shape[1] > 1 and tier.strides[1] != tier.itemsize:
                raise ValueError(f"rows of tier {t} must be contiguous")
        base = [launcher.address(tier) if len(tier) else 0 for tier in tiers]
        stride = [tier.strides[0] for tier in tiers]
        row_bytes = first.shape[1] * first.dtype.itemsize
        word, word_bytes = next(
            (name, size) for name, size in _WORDS if all(part % size == 0 for part in (row_bytes, *base, *stride))
        )
        sizes = launcher.to_device(np.array([len(tier) for tier in tiers], np.int64))
        return cls(
            tuple(tiers),
            launcher.to_device(np.array(base, np.uint64)),
            launcher.to_device(np.array(stride, np.int64)),
            sizes,
            word,
            word_bytes,
        )


def gather_rows(launcher: Launcher, table: TierTable, tier_n: Array, slot_n: Array, out: Array) -> Array:
    """Copy row `slot_n[i]` of tier `tier_n[i]` to `out[i]`, for every i, in one launch.

    Parameters
    ----------
    launcher : Launcher
    table : TierTable
    tier_n, slot_n : (n,) uint8, (n,) int64 on the device
    out : (n, width) on the device

    Returns
    -------
    (1,) uint64 on the device
        The first row outside its tier, which is left as it was; 2**64 - 1 where there is none. `check_rows` waits for
        it and refuses.

    Raises
    ------
    ValueError
        If shapes or dtypes do not agree.
    """
    first = table.tiers[0]
    if out.shape != (len(tier_n), first.shape[1]) or out.dtype != first.dtype:
        raise ValueError(f"out must be {first.dtype} of shape {(len(tier_n), first.shape[1])} (got {out.shape})")
    if tier_n.shape != slot_n.shape:
        raise ValueError("tier_n and slot_n must be of one length")
    row_bytes = out.shape[1] * out.dtype.itemsize
    aligned = launcher.address(out) % table.word_bytes == 0
    word, size = (table.word, table.word_bytes) if aligned else ("u8", 1)
    # A lane a word: one request for as much of a row as a warp reads at once, which is what a link is best at.
    lanes = min(_WARP, 1 << max(0, row_bytes // size - 1).bit_length())
    flat = out.reshape(-1)
    target = flat.view(_VIEWS[word]) if word in _VIEWS else flat
    bad = launcher.xp.full(1, _NOTHING_BAD, np.uint64)
    arguments = (
        len(tier_n), row_bytes // size, len(table.tiers), table.base_T, table.stride_T, table.rows_T, tier_n, slot_n,
        target, bad,
    )  # fmt: skip
    launch(launcher, Kernel("gather", "gather_rows", (word, str(lanes))), len(tier_n) * lanes, arguments)
    return bad


def check_rows(launcher: Launcher, bad: Array, tier_n: Array, slot_n: Array) -> None:
    """Refuse a gather that asked for a row outside its tier; waits for the device.

    Raises
    ------
    ValueError
        If there was one; the message names the first.
    """
    row = int(launcher.to_host(bad)[0])  # synchronize!
    if row != int(_NOTHING_BAD):
        raise ValueError(
            f"row {row} asks for slot {int(slot_n[row])} of tier {int(tier_n[row])}, which has no such row"
        )


def row_addresses(launcher: Launcher, table: TierTable, tier_n: Array, slot_n: Array) -> tuple[Array, Array]:
    """Address of each row where it lies, (n,) uint64; and as `gather_rows`, the first row outside its tier."""
    xp = launcher.xp
    address_n, bad = xp.empty(len(tier_n), np.uint64), xp.full(1, _NOTHING_BAD, np.uint64)
    arguments = (
        len(tier_n), len(table.tiers), table.base_T, table.stride_T, table.rows_T, tier_n, slot_n, address_n, bad,
    )  # fmt: skip
    launch(launcher, Kernel("gather", "row_addresses"), len(tier_n), arguments)
    return address_n, bad


def count_accesses(launcher: Launcher, counts_N: Array, ids: Array) -> None:
    """Add one to `counts_N[v]` for every `v` in `ids`, repeats included, in place.

    Parameters
    ----------
    launcher : Launcher
    counts_N : (N,) int64
    ids : (n,) int32 or int64, in [0, N)
    """
    arguments = (len(ids), ids, counts_N.view(np.uint64))
    launch(launcher, Kernel("gather", "count_accesses", (c_type(ids.dtype),)), len(ids), arguments)
