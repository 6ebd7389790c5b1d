"""The sampled structures that cross folders: one hop (`Mfg`), one mini-batch (`Sample`), K of them (`SuperBatch`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IdArray = npt.NDArray[np.int32] | npt.NDArray[np.int64]


class SampleTooLargeError(ValueError):
    """A hop has more sources than an int32 counts: the configuration asks for too much at once (exit code 2)."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Mfg:
    """Message-flow graph of one hop: a bipartite graph from sources to destinations.

    Destinations are the first `num_dst` sources, so a layer's output rows line up with the
    first rows of its input.
    """

    indptr: npt.NDArray[np.int64]
    """(num_dst + 1,) offsets into `indices`, one row a destination."""
    indices: npt.NDArray[np.int32]
    """(num_edges,) local source positions, in draw order within a row."""
    num_src: int
    """Number of sources, destinations included."""
    edge_ids: npt.NDArray[np.int64] | None = None
    """(num_edges,) position of each edge in the `indices` of the whole graph, where the sampler was asked for them."""

    @property
    def num_dst(self) -> int:
        """Number of destinations."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of sampled edges."""
        return len(self.indices)

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        edge_id_bytes = 0 if self.edge_ids is None else self.edge_ids.nbytes
        return self.indptr.nbytes + self.indices.nbytes + edge_id_bytes


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled mini-batch, a pure function of (seed, epoch, batch index) and the store."""

    batch_index: int
    """Position of the batch within its epoch."""
    hops: tuple[Mfg, ...]
    """Hops from the seeds outward: `hops[0]` has the seeds as destinations."""
    input_nodes: IdArray
    """(num_inputs,) ids of all nodes whose features are needed; the unique seeds come first."""
    seed_inverse: npt.NDArray[np.int64]
    """(num_seeds,) row of the output that belongs to each seed given (duplicates share a row)."""
    num_seed_rows: int
    """Number of unique seeds, which is the number of output rows."""

    @property
    def seed_nodes(self) -> IdArray:
        """(num_seed_rows,) the unique seeds in order of first appearance."""
        return self.input_nodes[: self.num_seed_rows]

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        return sum(hop.nbytes for hop in self.hops) + self.input_nodes.nbytes + self.seed_inverse.nbytes


@dataclass(slots=True)
class TierReads:
    """What one kind of object (feature rows or adjacency lists) cost, tier by tier."""

    device_rows: int = 0
    """Requests served on the device."""
    host_rows: int = 0
    """Requests that the device cache missed, before grouping."""
    device_bytes: int = 0
    """Bytes read from the device cache."""
    host_bytes: int = 0
    """Bytes that crossed from host memory (a row missed by several batches of a group counts once)."""
    dynamic_rows: int = 0
    """Of `device_rows`, those that the dynamic cache served."""

    @classmethod
    def total(cls, parts: Iterable[TierReads]) -> TierReads:
        """The sum of some counts."""
        found = cls()
        for part in parts:
            found.add(part)
        return found

    def add(self, other: TierReads) -> None:
        """Add another count to this one."""
        self.device_rows += other.device_rows
        self.host_rows += other.host_rows
        self.device_bytes += other.device_bytes
        self.host_bytes += other.host_bytes
        self.dynamic_rows += other.dynamic_rows

    def since(self, before: TierReads) -> TierReads:
        """What was read after an earlier count of the same tiers."""
        return TierReads(
            self.device_rows - before.device_rows,
            self.host_rows - before.host_rows,
            self.device_bytes - before.device_bytes,
            self.host_bytes - before.host_bytes,
            self.dynamic_rows - before.dynamic_rows,
        )

    @property
    def hit_rate(self) -> float:
        """Share of requests served by the device cache (0 where nothing was requested)."""
        total = self.device_rows + self.host_rows
        return self.device_rows / total if total else 0.0


@dataclass(frozen=True, slots=True)
class SuperBatch:
    """K mini-batches sampled and classified as one (GARDEN §IV-D)."""

    samples: tuple[Sample, ...]
    """The mini-batches in batch order."""
    adjacency_reads: TierReads
    """Adjacency lists and bytes that sampling them read."""

    @property
    def nbytes(self) -> int:
        """Bytes held by the samples."""
        return sum(sample.nbytes for sample in self.samples)
