"""How many bytes of mini-batches are under way: reserved at their most before sampling, given back as they are used."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from kernels.mfg import IdArray, SuperBatch
from kernels.sampler import NeighborSampler
from tasks.batch_sizes import most_hops

DEFAULT_IN_FLIGHT_BYTES = 1 << 30
"""Bound where nothing is said."""
_EDGE_BYTES = 16  # while it is sampled: global id, local position, draws
_ID_BYTES = 8


class InFlight:
    """A count of bytes with an upper limit; one thread reserves, others release.

    One reservation is always admitted when nothing else is held, whatever its size: loading has to go on.

    Parameters
    ----------
    limit_bytes : int
    """

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 1:
            raise ValueError(f"in_flight_bytes must be >= 1 (got {limit_bytes})")
        self._limit, self._held = limit_bytes, 0
        self._changed = threading.Condition()
        self.peak_bytes = 0
        """Most bytes that were held at once."""

    def try_reserve(self, nbytes: int) -> bool:
        """Reserve if it fits, or if nothing else is held."""
        with self._changed:
            if self._held and self._held + nbytes > self._limit:
                return False
            self._held += nbytes
            self.peak_bytes = max(self.peak_bytes, self._held)
            return True

    def release(self, nbytes: int) -> None:
        """Give bytes back."""
        with self._changed:
            self._held -= nbytes
            self._changed.notify_all()

    def wait_for_release(self, timeout_s: float) -> None:
        """Wait until something is given back, or for so long."""
        with self._changed:
            self._changed.wait(timeout_s)


def most_bytes(sampler: NeighborSampler, batches: Sequence[IdArray], row_bytes: int) -> int:
    """Return the most bytes that a super-batch can take while it is sampled, with the rows of all its mini-batches."""
    graph, fanouts = (sampler.topology.num_nodes, sampler.topology.num_edges), sampler.fanouts
    return sum(most_batch_bytes(*graph, fanouts, len(batch), row_bytes, replace=sampler.replace) for batch in batches)


def most_batch_bytes(
    num_nodes: int, num_edges: int, fanouts: Sequence[int], num_seeds: int, row_bytes: int, *, replace: bool
) -> int:
    """Return the most bytes that one mini-batch can take while it is sampled, with its rows.

    Parameters
    ----------
    num_nodes, num_edges : int
        Of the graph.
    fanouts : sequence of int
        From the input layer to the seed layer.
    num_seeds : int
    row_bytes : int
        Of a feature row.
    replace : bool
        Whether neighbors are drawn with replacement.
    """
    hops, inputs = most_hops(num_nodes, num_edges, fanouts, num_seeds, replace=replace)
    total = _ID_BYTES * num_seeds + inputs * (_ID_BYTES + row_bytes)
    return total + sum(_ID_BYTES * (hop.num_dst + 1) + _EDGE_BYTES * hop.num_edges for hop in hops)


def bytes_of(super_batch: SuperBatch, row_bytes: int) -> int:
    """Return the bytes of a sampled super-batch and of the rows that its mini-batches will need."""
    return super_batch.nbytes + sum(len(sample.input_nodes) for sample in super_batch.samples) * row_bytes
