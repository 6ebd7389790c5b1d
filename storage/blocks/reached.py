"""Which nodes mini-batches reach, hop by hop, and no more: nothing is numbered, and no edge is kept.

The nodes are those of the samples of `storage.blocks.hyperbatch`. A mini-batch takes a bit a node, and the ids of the
nodes it expands, however many neighbors it draws; each hop passes by every block of lists once for all mini-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kernels.cpu.bits import mark_bits, no_bits, take_ids
from kernels.cpu.superbatch import full_limit
from kernels.mfg import IdArray
from kernels.rng import stream_key
from kernels.sampler import join_seeds
from storage.blocks.drawn_hop import windows
from storage.blocks.hyperbatch import FRONTIER_BYTES, HyperbatchSampler, edge_bytes
from storage.blocks.stored_topology import StoredTopology

I64Array = npt.NDArray[np.int64]
U64Array = npt.NDArray[np.uint64]
Visit = Callable[[int, IdArray], None]

_PIECE_NODES = 1 << 14
_PARTS = 4  # in which mini-batches are marked side by side


def visit_reached(
    sampler: HyperbatchSampler,
    batches: Sequence[IdArray],
    visit: Visit,
    *,
    epoch: int,
    first_batch: int,
    work_bytes: int,
) -> None:
    """Tell which nodes some mini-batches reach.

    Parameters
    ----------
    sampler : HyperbatchSampler
    batches : sequence of (n,) integer arrays
        Seeds of each.
    visit : callable
        Called with a number of hops and some nodes that a mini-batch reaches within so many, seeds with 0: all nodes
        of all mini-batches, each once a mini-batch and number.
    epoch, first_batch : int
        As for `HyperbatchSampler.sample`.
    work_bytes : int
        Memory while neighbors are drawn, as far as one node's do not take more.

    Raises
    ------
    StorageError, MachineError
        If a block is damaged or cannot be read.
    """
    topology = sampler.topology
    seeds, seed_ptr = join_seeds(batches, topology.num_nodes, topology.id_dtype)
    bits_HW = no_bits(len(batches), topology.num_nodes)
    for bits_W, (begin, end) in zip(bits_HW, pairwise(seed_ptr), strict=True):
        mark_bits(bits_W, seeds[begin:end])
    for hop in range(len(sampler.fanouts)):
        frontier, ptr = _members(bits_HW, topology)
        visit(hop, frontier)
        keys = [stream_key(sampler.purpose, sampler.seed, epoch, first_batch + h, hop) for h in range(len(batches))]
        _mark_drawn(sampler, hop, frontier, ptr, np.array(keys, np.uint64), work_bytes, bits_HW)
        del frontier
    for bits_W in bits_HW:
        for ids in ids_in_pieces(bits_W):
            visit(len(sampler.fanouts), ids)


def ids_in_pieces(bits_W: U64Array) -> Iterator[I64Array]:
    """Ids of a set in ascending order, some at a time."""
    start = 0
    while True:
        ids = np.empty(_PIECE_NODES, np.int64)
        count, start = take_ids(bits_W, start, ids)
        if not count:
            return
        yield ids[:count]


def drawn_in_pieces(
    topology: StoredTopology,
    uniq: IdArray,
    uniq_ptr: I64Array,
    fanout: int,
    *,
    stream_keys: npt.NDArray[np.uint64],
    replace: bool,
    most_edges: int,
    check_room: Callable[[int], None] = lambda fanout: None,
) -> Iterator[tuple[I64Array, IdArray]]:
    """Draw neighbors, not too many at a time; a long list that is taken whole comes in parts.

    Parameters
    ----------
    topology : StoredTopology
        Without cached lists.
    uniq, uniq_ptr, fanout, stream_keys, replace
        As for `StoredTopology.sample_neighbors`.
    most_edges : int
        At once, or as many as are drawn of one list.
    check_room : callable
        Called with the fanout before more than `most_edges` may be drawn of one list; raises where they have no room.

    Yields
    ------
    edge_ptr : (H + 1,) int64
    neighbors : (n,) ids
        Of mini-batch h those in [edge_ptr[h], edge_ptr[h + 1]).
    """
    if fanout > 0 and len(uniq) * fanout <= most_edges:
        row_ptr, neighbors, _, _ = topology.sample_neighbors(
            uniq, uniq_ptr, fanout, stream_keys=stream_keys, replace=replace
        )
        yield row_ptr[uniq_ptr], neighbors
        return
    begin_U, degree_U = topology.lists(uniq)
    limit = full_limit(fanout, replace)
    for first, last in pairwise(_cuts(np.where(degree_U <= limit, degree_U, fanout), most_edges)):
        ptr, degree = np.clip(uniq_ptr, first, last) - first, int(degree_U[first])
        if last - first == 1 and most_edges < degree <= limit:
            for done in range(0, degree, most_edges):
                part = np.array([min(most_edges, degree - done)])
                yield part[0] * ptr, topology.read_lists(begin_U[first:last] + done, part)
            continue
        if fanout > most_edges and degree > limit:
            check_room(fanout)
        row_ptr, neighbors, _, _ = topology.sample_neighbors(
            uniq[first:last], ptr, fanout, stream_keys=stream_keys, replace=replace
        )
        yield row_ptr[ptr], neighbors


def _cuts(count_U: I64Array, most: int) -> list[int]:
    """Where to cut rows of so many edges into pieces, of one row or as many as a piece may hold."""
    ends, cuts = np.cumsum(count_U), [0]
    while cuts[-1] < len(count_U):
        done = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
        cuts.append(max(cuts[-1] + 1, int(np.searchsorted(ends, done + most, side="right"))))
    return cuts


def _members(bits_HW: U64Array, topology: StoredTopology) -> tuple[IdArray, I64Array]:
    """Ids of each set in ascending order, one set after the other, and where each begins."""
    ptr = np.cumsum([0, *(int(np.bitwise_count(bits_W).sum(dtype=np.int64)) for bits_W in bits_HW)], dtype=np.int64)
    ids: IdArray = np.empty(int(ptr[-1]), topology.id_dtype)
    for bits_W, (begin, end) in zip(bits_HW, pairwise(ptr), strict=True):
        take_ids(bits_W, 0, ids[begin:end])
    return ids, ptr


def _mark_drawn(
    sampler: HyperbatchSampler,
    hop: int,
    frontier: IdArray,
    ptr: I64Array,
    stream_keys: npt.NDArray[np.uint64],
    work_bytes: int,
    bits_HW: U64Array,
) -> None:
    """Add to each set what is drawn of its nodes: window by window of nodes, so that blocks come once, in order."""
    topology, fanout = sampler.topology, sampler.fanouts[len(sampler.fanouts) - 1 - hop]
    most_edges = max(1, work_bytes // 2 // edge_bytes(topology.id_dtype.itemsize))
    most_nodes = work_bytes // 2 // FRONTIER_BYTES
    parts = [range(part, len(bits_HW), _PARTS) for part in range(_PARTS)]
    for uniq, uniq_ptr in windows(frontier, ptr, most_nodes if fanout < 0 else min(most_nodes, most_edges // fanout)):
        for edge_ptr, neighbors in drawn_in_pieces(
            topology,
            uniq,
            uniq_ptr,
            fanout,
            stream_keys=stream_keys,
            replace=sampler.replace,
            most_edges=most_edges,
        ):

            def mark(part: range, edge_ptr: I64Array = edge_ptr, neighbors: IdArray = neighbors) -> None:
                for h in part:
                    mark_bits(bits_HW[h], neighbors[edge_ptr[h] : edge_ptr[h + 1]])

            list(topology.pool.map(mark, parts))
