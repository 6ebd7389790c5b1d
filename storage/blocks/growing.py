"""Mini-batches between two hops: what each holds so far, and how many fit a number of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray, Mfg, Sample, TierReads

I64Array = npt.NDArray[np.int64]


@dataclass(slots=True)
class Growing:
    """A mini-batch between two hops."""

    index: int
    """Of the mini-batch within its epoch."""
    frontier: IdArray
    """(U,) nodes to expand next, each once."""
    seed_inverse: I64Array
    """Row of each seed among the distinct ones."""
    num_seed_rows: int
    """Distinct seeds."""
    hops: list[Mfg] = field(default_factory=list)
    """Structures of the hops so far."""
    reads: TierReads = field(default_factory=TierReads)
    """What drawing them read."""

    def add(self, hop: Mfg, src: IdArray, reads: TierReads) -> None:
        """Take one more hop, its source nodes, and what drawing it read."""
        self.hops.append(hop)
        self.frontier = src
        self.reads.add(reads)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.frontier.nbytes + self.seed_inverse.nbytes + sum(hop.nbytes for hop in self.hops)

    def finish(self) -> tuple[Sample, TierReads]:
        """The mini-batch, once all hops are done, and what it read; nothing of it is held any longer."""
        sample = Sample(self.index, tuple(self.hops), self.frontier, self.seed_inverse, self.num_seed_rows)
        self.hops, self.frontier, self.seed_inverse = [], self.frontier[:0].copy(), self.seed_inverse[:0].copy()
        return sample, self.reads


def cut(growing: list[Growing], needed: list[int], most: int) -> Iterator[list[Growing]]:
    """Consecutive mini-batches that need no more bytes together, at least one."""
    piece, nbytes = list[Growing](), 0
    for one, its_bytes in zip(growing, needed, strict=True):
        if piece and nbytes + its_bytes > most:
            yield piece
            piece, nbytes = [], 0
        piece.append(one)
        nbytes += its_bytes
    yield piece


def fitting(growing: list[Growing], most: int) -> list[Growing]:
    """The first mini-batches that hold no more bytes together, at least one."""
    kept = np.cumsum([one.nbytes for one in growing])
    return growing[: max(1, int(np.searchsorted(kept, most, side="right")))]
