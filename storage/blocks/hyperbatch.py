"""The hyperbatch sampler: hop by hop over H mini-batches, each topology block read once for all of them (AGNES §3.3).

Same integers as `kernels.sampler.NeighborSampler`, whatever the block size, H, memory, buffers and threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kernels.cpu.hash_relabel import relabel_batch
from kernels.mfg import IdArray, Mfg, Sample, SuperBatch, TierReads
from kernels.rng import Purpose, stream_key
from kernels.sampler import check_fanouts, join_seeds
from storage.blocks.array_file import ArrayFile
from storage.blocks.drawn_hop import Draw, DrawnHop, most_waiting_bytes
from storage.blocks.growing import Growing, cut, fitting
from storage.blocks.stored_topology import StoredTopology

I64Array = npt.NDArray[np.int64]

FRONTIER_BYTES = 72
"""A node that is expanded: its id, place in the bucket matrix, offsets, degree, counts."""


def edge_bytes(id_bytes: int) -> int:
    """Bytes of an edge while it is drawn: its global id, twice, and its local position."""
    return 2 * id_bytes + 4


@dataclass(frozen=True, slots=True)
class SamplingMemory:
    """Memory that sampling keeps to wherever one mini-batch alone does."""

    work_bytes: int
    """While nodes are expanded: as many mini-batches at once as this holds."""
    kept_bytes: int
    """Of the hops so far: mini-batches that go beyond are left for the next hyperbatch."""
    directory: Path | None = None
    """Where neighbors may wait whose mini-batches do not fit the work space together; None reads blocks again."""
    waiting_bytes: int = sys.maxsize
    """Bytes there for them; where a hop may need more, blocks are read again."""
    check_alone: Callable[[int, int], None] = field(default=lambda frontier, edges: None, repr=False)
    """Called before a mini-batch that takes more than `work_bytes` alone is expanded, with the nodes of its frontier
    and the edges that it will have by then; raises where there is no room for it."""


@dataclass(frozen=True, slots=True)
class _Hop:
    """One hop of an epoch, and what to call from block to block."""

    number: int
    fanout: int
    epoch: int
    check_stop: Callable[[], None]


class HyperbatchSampler:
    """Draws mini-batches from a topology on disk; `sample` is that of `NeighborSampler`, with H for K.

    Parameters
    ----------
    topology : StoredTopology
    fanouts, seed, purpose, replace, edge_ids
        As for `NeighborSampler`.

    Raises
    ------
    ValueError
        If a fanout is neither positive nor -1.

    Notes
    -----
    Memory follows the mini-batches, not the graph: per node of a frontier its place in the bucket matrix, offset and
    degree, and per thread a hash table of one mini-batch.
    """

    def __init__(
        self,
        topology: StoredTopology,
        fanouts: Sequence[int],
        *,
        seed: int,
        purpose: Purpose,
        replace: bool = False,
        edge_ids: bool = False,
    ) -> None:
        check_fanouts(fanouts)
        self.topology = topology
        self.fanouts = tuple(int(fanout) for fanout in fanouts)
        self.seed, self.purpose, self.replace, self.edge_ids = seed, purpose, replace, edge_ids

    def sample(
        self,
        batches: Sequence[IdArray],
        *,
        epoch: int,
        first_batch: int,
        batch_step: int = 1,
        check_stop: Callable[[], None] = lambda: None,
    ) -> SuperBatch:
        """Sample H mini-batches together; parameters, result and errors are those of `NeighborSampler.sample`.

        `check_stop` is called from block to block; what it raises ends the sampling.

        Raises
        ------
        StorageError, MachineError
            If a block is damaged or cannot be read.
        """
        samples, reads = [], TierReads()
        for sample, its_reads in self.each(
            batches, epoch=epoch, first_batch=first_batch, batch_step=batch_step, check_stop=check_stop
        ):
            samples.append(sample)
            reads.add(its_reads)
        return SuperBatch(tuple(samples), reads)

    def each(
        self,
        batches: Sequence[IdArray],
        *,
        epoch: int,
        first_batch: int,
        batch_step: int = 1,
        memory: SamplingMemory | None = None,
        check_stop: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[Sample, TierReads]]:
        """Sample mini-batches together, and give one after the other as soon as its last hop is done.

        Parameters
        ----------
        batches, epoch, first_batch, batch_step, check_stop
            As for `sample`.
        memory : SamplingMemory, optional
            Expand fewer mini-batches at once than all, and give fewer than all, where that is what it takes.

        Yields
        ------
        Sample, TierReads
            The mini-batch, and the adjacency lists and bytes that sampling it read; at least the first one.

        Raises
        ------
        StorageError, MachineError
            As `sample`.
        """
        nodes, batch_ptr = join_seeds(batches, self.topology.num_nodes, self.topology.id_dtype)
        growing = [
            self._seeded(first_batch + i * batch_step, nodes[begin:end])
            for i, (begin, end) in enumerate(pairwise(batch_ptr))
        ]
        for hop, fanout in enumerate(reversed(self.fanouts[1:])):
            growing = self._kept(self._expanded(growing, _Hop(hop, fanout, epoch, check_stop), memory), memory)
        if not self.fanouts:
            yield from (one.finish() for one in growing)
            return
        last = _Hop(len(self.fanouts) - 1, self.fanouts[0], epoch, check_stop)
        for piece in self._expanded(growing, last, memory):
            yield from (one.finish() for one in piece)

    def _seeded(self, index: int, seeds: IdArray) -> Growing:
        uniq, inverse = self._number(seeds[:0], seeds)
        return Growing(index, uniq, inverse.astype(np.int64), len(uniq))

    def _pieces(self, growing: list[Growing], fanout: int, memory: SamplingMemory | None) -> Iterator[list[Growing]]:
        """Consecutive mini-batches that can be expanded together within the memory, at least one."""
        if memory is None or not growing:
            yield growing
            return
        edge = edge_bytes(self.topology.id_dtype.itemsize)
        if fanout > 0:
            node = FRONTIER_BYTES + fanout * edge
            for part in cut(growing, [node * len(one.frontier) for one in growing], memory.work_bytes):
                if len(part) == 1 and node * len(part[0].frontier) > memory.work_bytes:
                    self._check_alone(part[0], self._num_drawn(part, fanout)[0], memory)
                yield part
            return
        # A list taken whole is as long as its offsets say: they are read first, of as many nodes as there is room for.
        for part in cut(growing, [FRONTIER_BYTES * len(one.frontier) for one in growing], memory.work_bytes):
            drawn = self._num_drawn(part, fanout)
            for one, edges in zip(part, drawn, strict=True):
                self._check_alone(one, edges, memory)
            needed = [FRONTIER_BYTES * len(one.frontier) + edge * edges for one, edges in zip(part, drawn, strict=True)]
            yield from cut(part, needed, memory.work_bytes)

    def _check_alone(self, one: Growing, edges: int, memory: SamplingMemory) -> None:
        """Ask whether there is room for a mini-batch that takes more than was planned."""
        if FRONTIER_BYTES * len(one.frontier) + edge_bytes(self.topology.id_dtype.itemsize) * edges > memory.work_bytes:
            memory.check_alone(len(one.frontier), edges + sum(hop.num_edges for hop in one.hops))

    def _num_drawn(self, growing: list[Growing], fanout: int) -> list[int]:
        """Edges that each mini-batch draws of its frontier's lists."""
        _, degree_U = self.topology.lists(np.concatenate([one.frontier for one in growing]))
        if fanout > 0:
            most = np.minimum(degree_U, fanout)
            degree_U = np.where(degree_U > 0, fanout, 0) if self.replace else most
        ends = np.cumsum([len(one.frontier) for one in growing])
        return [int(degree.sum()) for degree in np.split(degree_U, ends[:-1])]

    def _kept(self, pieces: Iterator[list[Growing]], memory: SamplingMemory | None) -> list[Growing]:
        """The first mini-batches after one more hop, as many as may be kept, at least one."""
        done = list[Growing]()
        for piece in pieces:
            done += piece
            if memory is not None and sum(one.nbytes for one in done) > memory.kept_bytes:
                break
        return done if memory is None else fitting(done, memory.kept_bytes)

    def _expanded(self, growing: list[Growing], hop: _Hop, memory: SamplingMemory | None) -> Iterator[list[Growing]]:
        """One more hop, of as many mini-batches at a time as memory holds: their structures, their next frontiers."""
        pieces: Iterable[list[Growing]] = self._pieces(growing, hop.fanout, memory)
        if memory is not None and memory.directory is not None and hop.fanout > 0 and not self.edge_ids:
            pieces = list(pieces)
            most_nodes = self._most_nodes(growing, hop, memory)
            if len(pieces) > 1 and most_nodes is not None:
                with ArrayFile(memory.directory, self.topology.stats) as file:
                    yield from self._by_disk(pieces, hop, file, most_nodes)
                return
        for piece in pieces:
            self._expand(piece, hop)
            yield piece

    def _most_nodes(self, growing: list[Growing], hop: _Hop, memory: SamplingMemory) -> int | None:
        """Nodes to expand at once where neighbors wait on disk; None where the disk may not hold them."""
        id_bytes, num_nodes = self.topology.id_dtype.itemsize, sum(len(one.frontier) for one in growing)
        most_nodes = memory.work_bytes // (FRONTIER_BYTES + hop.fanout * edge_bytes(id_bytes))
        needed = most_waiting_bytes(num_nodes, len(growing), most_nodes, hop.fanout, id_bytes)
        return most_nodes if needed <= memory.waiting_bytes else None

    def _by_disk(
        self, pieces: list[list[Growing]], hop: _Hop, file: ArrayFile, most_nodes: int
    ) -> Iterator[list[Growing]]:
        """One more hop, drawn for all mini-batches before any of them is numbered."""
        growing = list(chain.from_iterable(pieces))
        drawn = DrawnHop(file, [one.frontier for one in growing], most_nodes, self._draw_of(growing, hop))
        number = 0
        for piece in pieces:
            self._number_drawn(piece, drawn, number)
            number += len(piece)
            yield piece

    def _draw_of(self, growing: list[Growing], hop: _Hop) -> Draw:
        """What draws neighbors of nodes of these mini-batches."""
        keys = [stream_key(self.purpose, self.seed, hop.epoch, one.index, hop.number) for one in growing]

        def draw(uniq: IdArray, uniq_ptr: I64Array) -> tuple[I64Array, IdArray, I64Array, list[TierReads]]:
            return self.topology.sample_neighbors(
                uniq,
                uniq_ptr,
                hop.fanout,
                stream_keys=np.array(keys, np.uint64),
                replace=self.replace,
                edge_ids=self.edge_ids,
                check_stop=hop.check_stop,
            )

        return draw

    def _expand(self, piece: list[Growing], hop: _Hop) -> None:
        """One hop of some mini-batches together."""
        frontiers = [one.frontier for one in piece]
        uniq: IdArray = np.concatenate([np.empty(0, self.topology.id_dtype), *frontiers])
        uniq_ptr = np.cumsum([0, *map(len, frontiers)], dtype=np.int64)
        row_ptr, neighbors, ids, reads = self._draw_of(piece, hop)(uniq, uniq_ptr)
        edge_ptr = row_ptr[uniq_ptr]
        pieces = [neighbors[begin:end] for begin, end in pairwise(edge_ptr)]
        numbered = self.topology.pool.map(self._number, frontiers, pieces)
        for i, (one, (src, local)) in enumerate(zip(piece, numbered, strict=True)):
            own = slice(edge_ptr[i], edge_ptr[i + 1])
            indptr = row_ptr[uniq_ptr[i] : uniq_ptr[i + 1] + 1] - edge_ptr[i]
            one.add(Mfg(indptr, local, len(src), ids[own] if self.edge_ids else None), src, reads[i])

    def _number_drawn(self, piece: list[Growing], drawn: DrawnHop, first: int) -> None:
        """The same hop of some mini-batches, `first` the number of the first of them, whose neighbors wait on disk."""

        def numbered(number: int, one: Growing) -> None:
            indptr, neighbors, reads = drawn.of(number, one.frontier)
            src, local = self._number(one.frontier, neighbors)
            one.add(Mfg(indptr, local, len(src)), src, reads)

        list(self.topology.pool.map(numbered, range(first, first + len(piece)), piece))

    def _number(self, uniq: IdArray, neighbors: IdArray) -> tuple[IdArray, npt.NDArray[np.int32]]:
        return relabel_batch(uniq, neighbors, self.topology.num_nodes)
