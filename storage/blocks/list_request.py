"""Which parts of which lists are to be read from a dataset."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.cpu.superbatch import full_limit
from kernels.mfg import IdArray

I64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ListRequest:
    """Which parts of which lists to read: all of each, or `fanout` entries drawn from it."""

    uniq: IdArray
    """(U,) node of each row, batch after batch."""
    uniq_ptr: I64Array
    """(K + 1,) where each batch begins."""
    begin_U: I64Array
    """(U,) first entry of each list in the dataset; negative where it lies elsewhere."""
    degree_U: I64Array
    """(U,) entries of each list."""
    fanout: int
    """Entries to draw; -1 takes all."""
    stream_keys: npt.NDArray[np.uint64]
    """(K,) stream of each batch."""
    replace: bool = False
    """Draw with replacement."""

    @property
    def limit(self) -> int:
        """Length up to which a list is taken whole."""
        return full_limit(self.fanout, self.replace)

    def row_ptr(self) -> I64Array:
        """(U + 1,) offsets of each row's entries in what is read."""
        count_U = (
            self.degree_U if self.fanout < 0 else np.where(self.degree_U <= self.limit, self.degree_U, self.fanout)
        )
        row_ptr = np.zeros(len(count_U) + 1, np.int64)
        np.cumsum(count_U, out=row_ptr[1:])
        return row_ptr
