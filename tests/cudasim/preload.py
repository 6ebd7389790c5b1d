"""When reading a whole list into shared memory moves no more than reading drawn ids in place (the paper's D_max)."""

from __future__ import annotations

from functools import cache
from math import comb

_SECTOR_BYTES = 32
_LONGEST = 512


def direct_sectors(degree: int, fanout: int, id_bytes: int) -> float:
    """Sectors of 32 bytes that `fanout` ids drawn from a list touch, on average over draws and alignments."""
    held = _SECTOR_BYTES // id_bytes
    touched = 0.0
    for shift in range(held):
        for begin in range(-shift, degree, held):
            inside = min(begin + held, degree) - max(begin, 0)
            if inside > 0:
                touched += 1 - comb(degree - inside, fanout) / comb(degree, fanout)
    return touched / held


def whole_sectors(degree: int, id_bytes: int) -> float:
    """Sectors that the whole list touches, on average over alignments."""
    return direct_sectors(degree, degree, id_bytes)


@cache
def preload_limit(fanout: int, id_bytes: int, *, extra: float = 0.1) -> int:
    """Length up to which reading whole lists moves at most a share more than reading drawn ids in place.

    Preloading never moves less; it makes requests fuller. So the limit depends on the fanout and the width of ids, and
    lists in host memory are never preloaded: there the bytes decide.

    Parameters
    ----------
    fanout : int
    id_bytes : int
        4 or 8.
    extra : float
        Share of sectors more that is allowed.

    Returns
    -------
    int
        Largest degree above the fanout for which that holds for all degrees up to it; 0 where there is none.
    """
    limit = 0
    for degree in range(fanout + 1, _LONGEST):
        if whole_sectors(degree, id_bytes) > (1 + extra) * direct_sectors(degree, fanout, id_bytes):
            break
        limit = degree
    return limit
