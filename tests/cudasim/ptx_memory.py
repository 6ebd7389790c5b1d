"""Memory as the interpreter of PTX sees it: the arrays themselves, and what each request to them touches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.cudasim.ptx import PtxError

LANES, SECTOR_BYTES = 32, 32
SHARED_BASE = 1 << 62
"""Shared memory lies in a window of its own among all addresses."""
_SHARED_BYTES = 64 << 10


@dataclass(slots=True)
class Requests:
    """Requests to global memory of one kind."""

    warps: int = 0
    """Warp instructions."""
    lanes: int = 0
    """Lanes that took part, all together."""
    sectors: int = 0
    """Sectors of 32 bytes, all together."""
    bytes: int = 0
    """Bytes asked for, all together."""

    def add(self, other: Requests) -> None:
        """Add another count."""
        self.warps += other.warps
        self.lanes += other.lanes
        self.sectors += other.sectors
        self.bytes += other.bytes


@dataclass(frozen=True, slots=True)
class _Held:
    """An array that kernels reach, as if its memory began where a device's does: on a boundary of many bytes."""

    address: int
    data: Any
    kind: str
    phase: int

    @classmethod
    def of(cls, array: Any, kind: str) -> _Held:
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        phase = array.ctypes.data - owner.ctypes.data
        return cls(array.ctypes.data, array.reshape(-1).view(np.uint8), kind, phase)


class Memory:
    """Global memory of a launch and the shared memory of its CTAs."""

    def __init__(self, arrays: dict[str, list[Any]], num_ctas: int, warps_per_cta: int) -> None:
        """`arrays` by the kind that loads from them are counted as, if not as loads."""
        held = (_Held.of(array, kind) for kind, part in arrays.items() for array in part if array.nbytes)
        self._arrays = sorted(held, key=lambda one: one.address)
        self._bases = np.array([one.address for one in self._arrays], np.uint64)
        self._cta_W1 = np.arange(num_ctas * warps_per_cta)[:, None] // warps_per_cta
        self._shared = np.zeros((num_ctas, _SHARED_BYTES), np.uint8)
        self.requests: dict[str, Requests] = {}
        """By kind."""

    def places(self, address: Any, dtype: np.dtype[Any], mask: Any, kind: str, length: int) -> Sequence[Any]:
        """Lanes, the array that each reads, and its first element of `length`; requests are counted by the way."""
        num_bytes = dtype.itemsize * length
        if not mask.any():
            return []
        first = address[mask]
        if first[0] >= SHARED_BASE:
            return self._shared_places(address, dtype, mask)
        found = np.searchsorted(self._bases, first, side="right") - 1
        places = []
        for k in np.unique(found):
            held = self._arrays[k]
            where = mask & (np.searchsorted(self._bases, address, side="right") - 1 == k)
            start = (address - np.uint64(held.address)).astype(np.int64)
            inner = start[where]
            if k < 0 or (inner + num_bytes > len(held.data)).any() or ((inner + held.phase) % num_bytes).any():
                raise PtxError(f"a {kind} of {num_bytes} bytes outside every array, or misaligned")
            self._count(held.kind if held.kind and kind == "load" else kind, start + held.phase, where, num_bytes)
            whole = len(held.data) // dtype.itemsize * dtype.itemsize
            places.append((where, held.data[:whole].view(dtype), inner // dtype.itemsize))
        return places

    def _shared_places(self, address: Any, dtype: np.dtype[Any], mask: Any) -> Sequence[Any]:
        start = (address[mask] - np.uint64(SHARED_BASE)).astype(np.int64) // dtype.itemsize
        cta = np.broadcast_to(self._cta_W1, mask.shape)
        return [(mask, self._shared.view(dtype), (cta[mask], start))]

    def _count(self, kind: str, start: Any, where: Any, size: int) -> None:
        requests = self.requests.setdefault(kind, Requests())
        sector = np.where(where, start // SECTOR_BYTES, -1)
        ordered = np.sort(sector, axis=1)
        distinct = (ordered[:, 1:] != ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        lanes = int(where.sum())
        requests.warps += int(where.any(axis=1).sum())
        requests.lanes += lanes
        requests.sectors += int(distinct.sum()) + int((ordered[:, 0] >= 0).sum())
        requests.bytes += lanes * size
