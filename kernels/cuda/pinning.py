"""Host memory that kernels read in place: whole pages, pinned once however many arrays lie on them."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernels.cuda.launch import PinnedMemoryError

# cudaHostRegisterPortable, Mapped and ReadOnly, which CuPy does not name.
_PORTABLE, _MAPPED, _READ_ONLY = 1, 2, 8
_CHUNK_BYTES = 64 << 30
"""Most that is registered by one call: drivers from 580 on refuse 512 GiB."""
_SLOW_BYTES = 8 << 30
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pages:
    """One registration with the driver."""

    begin: int
    end: int
    device_begin: int
    holders: int = 0


@dataclass(slots=True)
class _Held:
    """An array within reach; it is kept so that its memory is not given to another."""

    array: Any
    pages: list[_Pages]
    holders: int = 1


class PinnedMemory:
    """What the driver has pinned for this process.

    The driver refuses a page that it has pinned already, and small arrays share pages: the pages of an array that are
    not pinned yet are, and each stays for as long as an array on it is held.

    Parameters
    ----------
    runtime : module
        `cupy.cuda.runtime`.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._pages: list[_Pages] = []
        self._held: dict[tuple[int, int], _Held] = {}

    def hold(self, array: Any) -> None:
        """Pin an array; again for each time that it is let go.

        Raises
        ------
        PinnedMemoryError
            If the driver refuses: memory is short, or the system pins none (WSL 2, some containers).
        """
        begin, size = place = _place(array)
        if place in self._held:
            self._held[place].holders += 1
            return
        if size >= _SLOW_BYTES:
            _logger.info("pinning %.0f GiB of host memory, which takes about 0.1 s a GiB", size / 2**30)
        pages = [known for known in self._pages if known.begin < begin + size and begin < known.end]
        try:
            for first, end in list(self._unpinned(begin, begin + size)):
                pages.append(self._register(first, end, is_written=array.flags.writeable))
        except self._runtime.CUDARuntimeError as error:
            self._drop_idle()
            raise PinnedMemoryError(
                f"{size / 2**30:.1f} GiB of host memory could not be pinned ({error}): free memory, or do without "
                "(cache.pinned=off)"
            ) from error
        for part in pages:
            part.holders += 1
        self._held[place] = _Held(array, pages)

    def let_go(self, array: Any) -> None:
        """Unpin what no array needs any more."""
        held = self._held.get(_place(array))
        if held is None:
            return
        held.holders -= 1
        if not held.holders:
            del self._held[_place(array)]
            for part in held.pages:
                part.holders -= 1
            self._drop_idle()

    def holds(self, array: Any) -> bool:
        """Whether the array, as it was held, is."""
        return _place(array) in self._held

    def address(self, begin: int, size: int) -> int | None:
        """Address for kernels of host memory that an array held covers; None where none does."""
        for (first, num_bytes), held in self._held.items():
            if first <= begin and begin + size <= first + num_bytes:
                part = next(part for part in held.pages if part.begin <= begin < part.end)
                _check_adjoining(held.pages, begin, begin + size)
                return part.device_begin + begin - part.begin
        return None

    def _unpinned(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """The stretches of an array's pages that are not pinned."""
        place, last = begin // mmap.PAGESIZE * mmap.PAGESIZE, -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
        for known in sorted(self._pages, key=lambda part: part.begin):
            if known.end <= place or known.begin >= last:
                continue
            yield from _chunks(place, known.begin)
            place = known.end
        yield from _chunks(place, last)

    def _register(self, begin: int, end: int, *, is_written: bool) -> _Pages:
        try:
            self._runtime.hostRegister(begin, end - begin, _PORTABLE | _MAPPED)
        except self._runtime.CUDARuntimeError:
            # Only a mapping that nobody may write to needs the flag, and few devices know it.
            if is_written:
                raise
            self._runtime.hostRegister(begin, end - begin, _PORTABLE | _MAPPED | _READ_ONLY)
        device_begin = int(self._runtime.pointerGetAttributes(begin).devicePointer)
        self._pages.append(_Pages(begin, end, device_begin))
        return self._pages[-1]

    def _drop_idle(self) -> None:
        for part in [part for part in self._pages if not part.holders]:
            self._runtime.hostUnregister(part.begin)
            self._pages.remove(part)


def _chunks(begin: int, end: int) -> Iterator[tuple[int, int]]:
    for first in range(begin, end, _CHUNK_BYTES):
        yield first, min(first + _CHUNK_BYTES, end)


def _check_adjoining(pages: list[_Pages], begin: int, end: int) -> None:
    """Refuse parts that adjoin in host memory but not for kernels, which take one address for all of an array."""
    used = [part for part in pages if part.begin < end and begin < part.end]
    if len({part.device_begin - part.begin for part in used}) > 1:
        raise PinnedMemoryError("parts of an array have addresses on the device that do not adjoin")


def _place(array: Any) -> tuple[int, int]:
    """Where an array begins, and its bytes."""
    return int(array.ctypes.data), int(array.nbytes)
