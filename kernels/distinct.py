"""Each of some integers once, by sorting: `np.unique` alone takes a hash table of several times their memory."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kernels.rank_map import is_ascending

Ids = TypeVar("Ids", bound=np.integer[Any])


def distinct(ids: npt.NDArray[Ids]) -> npt.NDArray[Ids]:
    """Each of some integers once, in ascending order.

    Parameters
    ----------
    ids : (n,) integer

    Returns
    -------
    (m,) array of the same type
        `ids` itself where they ascend strictly already; else this takes as much memory as they do, a byte each, and
        what is returned.
    """
    return ids if is_ascending(ids) else distinct_of_sorted(np.sort(ids))


def distinct_of_sorted(ids: npt.NDArray[Ids]) -> npt.NDArray[Ids]:
    """Each once of (n,) integers that ascend, repeats among them."""
    is_first = np.ones(len(ids), np.bool_)
    np.not_equal(ids[1:], ids[:-1], out=is_first[1:])
    return ids[is_first]
