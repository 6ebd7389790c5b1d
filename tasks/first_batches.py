"""The sizes of the first mini-batches from disk: they tell how large others are expected to be.

Which nodes a mini-batch holds is found out hop by hop in bits, some lists at a time: however large it is, this takes a
bit a node for each of four sets, and a few MiB; and where many neighbors are drawn of one list, what that takes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from kernels.cpu.bits import mark_bits, no_bits
from kernels.mfg import IdArray
from kernels.nn.model import ModelSpec
from kernels.rank_map import RankMap
from kernels.rng import stream_key
from kernels.sampler import join_seeds
from storage.blocks.buffer import LEAST_BLOCKS
from storage.blocks.hyperbatch import HyperbatchSampler
from storage.blocks.reached import drawn_in_pieces, ids_in_pieces
from storage.blocks.stored_topology import StoredTopology
from storage.blocks.wide_rows import DRAW_BYTES
from storage.errors import BudgetError
from storage.graph_store import GraphStore, StoreInfo
from tasks.batch_sizes import BatchSizes, sizes_of_hops
from tasks.step_costs import HopShape

PROBED = 2
"""Mini-batches that are looked at to learn how large they get."""
LONGEST = 2
"""Seeds with the longest lists that one mini-batch is likely to hold."""
_MARGIN = 1.15
"""How much larger than those others are expected to be, at most."""
_PIECE_NODES, _PIECE_EDGES = 1 << 14, 1 << 16
_SETS = 4
_PIECE_BYTES = 4 << 20
_ID_BYTES = 8

_NO_NODES = np.empty(0, np.int64)

Bits = npt.NDArray[np.uint64]
I64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FirstBatches:
    """What is known of the first mini-batches, or expected of them."""

    sizes: BatchSizes
    """At least as large as each of them."""
    shared_nodes: int
    """Input nodes that the first two have in common; none where there is but one."""
    list_bytes: int = 0
    """Bytes that a cache of some adjacency lists takes."""

    def expected(self, largest: BatchSizes) -> BatchSizes:
        """Sizes that others are expected to have, none above what is possible."""
        return self.sizes.times(_MARGIN).at_most(largest)


def probing_bytes(info: StoreInfo) -> int:
    """Bytes that `measure_first` takes, beside what one list takes of which more than `_PIECE_EDGES` are drawn."""
    return _SETS * info.num_nodes // 8 + 2 * LEAST_BLOCKS * info.block_bytes + _PIECE_BYTES


def measure_first(
    store: GraphStore,
    seeds: Sequence[IdArray],
    cached_lists: IdArray,
    sampler_of: Callable[[StoredTopology], HyperbatchSampler],
    *,
    threads: int,
    spec: ModelSpec | None = None,
    all_seeds: IdArray = _NO_NODES,
    host_budget: int = sys.maxsize,
    opening_bytes: int = 0,
) -> FirstBatches:
    """Find the sizes of the first mini-batches of epoch 0, without holding any of them.

    Where seeds take all of their neighbors, one is measured too that holds those with the longest lists: each epoch has
    such a mini-batch, and it may be many times as large as the first.

    Parameters
    ----------
    store : GraphStore
    seeds : sequence of (n,) integer arrays
        Of each mini-batch, at least one.
    cached_lists : (C,) integer
        Nodes whose lists an adjacency cache will hold.
    sampler_of : callable
        Makes what samples a topology.
    threads : int
        Sampling threads.
    spec : ModelSpec, optional
        Model whose steps count; without one they take nothing.
    all_seeds : (T,) integer, optional
        Seeds of an epoch.
    host_budget, opening_bytes : int
        Memory that may be taken, and what is taken of it beside what is drawn of one list, `probing_bytes` included.

    Returns
    -------
    FirstBatches

    Raises
    ------
    BudgetError
        If what is drawn of one list takes more than is left; names the least that would do.
    StorageError, MachineError
        If a block is damaged or cannot be read.
    """
    check_room = partial(_check_room, host_budget, opening_bytes)
    least = LEAST_BLOCKS * store.info.block_bytes
    with StoredTopology(
        store, np.empty(0, np.int64), buffer_bytes=least, indptr_buffer_bytes=least, threads=threads
    ) as topology:
        sampler, list_bytes = sampler_of(topology), _cache_bytes(topology, cached_lists)
        sizes, shared, before = list[BatchSizes](), 0, None
        are_integers = store.info.has_integer_features
        further = (
            [_with_longest_lists(topology, seeds[0], all_seeds)]
            if len(all_seeds) and tells_by_longest(sampler.fanouts)
            else []
        )
        for index, its_seeds in enumerate([*seeds, *further]):
            shapes, inputs = _grown(sampler, its_seeds, index, check_room)
            id_bytes = topology.id_dtype.itemsize
            counts = (_number(inputs), len(its_seeds), id_bytes)
            sizes.append(sizes_of_hops(shapes, *counts, spec, are_integers=are_integers))
            shared = _number(before & inputs) if before is not None and index == 1 < len(seeds) else shared
            before = inputs
        return FirstBatches(BatchSizes.largest(sizes), shared, list_bytes)


def tells_by_longest(fanouts: Sequence[int]) -> bool:
    """Whether how large a mini-batch gets hangs on the longest lists of its seeds."""
    return len(fanouts) > 0 and fanouts[-1] < 0


def _with_longest_lists(topology: StoredTopology, seeds: IdArray, all_seeds: IdArray) -> IdArray:
    """Seeds of a mini-batch, some of them in favor of those with the longest lists."""
    longest, lengths, in_order = np.empty(0, np.int64), np.empty(0, np.int64), np.sort(all_seeds)
    for first in range(0, len(in_order), _PIECE_NODES):
        part = in_order[first : first + _PIECE_NODES].astype(np.int64)
        nodes, degrees = np.append(longest, part), np.append(lengths, topology.lists(part)[1])
        top = np.argsort(-degrees, kind="stable")[:LONGEST]
        longest, lengths = nodes[top], degrees[top]
    longest = longest[: len(seeds)]
    return np.append(seeds[: len(seeds) - len(longest)].astype(np.int64), longest)


def _cache_bytes(topology: StoredTopology, cached_lists: IdArray) -> int:
    """Lists, their offsets and their map."""
    if not len(cached_lists):
        return 0
    edges = 0
    for first in range(0, len(cached_lists), _PIECE_NODES):
        edges += int(topology.lists(np.asarray(cached_lists[first : first + _PIECE_NODES], np.int64))[1].sum())
    offsets = 8 * (len(cached_lists) + 1) + RankMap.nbytes_for(topology.num_nodes)
    return edges * topology.id_dtype.itemsize + offsets


def _grown(
    sampler: HyperbatchSampler, seeds: IdArray, index: int, check_room: Callable[[int], None]
) -> tuple[list[HopShape], Bits]:
    """Hops of one mini-batch of epoch 0, that of the seeds first, and its input nodes."""
    nodes = no_bits(1, sampler.topology.num_nodes)[0]
    mark_bits(nodes, join_seeds([seeds], sampler.topology.num_nodes, sampler.topology.id_dtype)[0])
    shapes = list[HopShape]()
    for hop, fanout in enumerate(reversed(sampler.fanouts)):
        larger, edges = nodes.copy(), 0
        for neighbors in _neighbors(sampler, nodes, hop, fanout, index, check_room):
            mark_bits(larger, neighbors)
            edges += len(neighbors)
        shapes.append(HopShape(_number(nodes), _number(larger), edges))
        nodes = larger
    return shapes, nodes


def _neighbors(
    sampler: HyperbatchSampler, nodes: Bits, hop: int, fanout: int, index: int, check_room: Callable[[int], None]
) -> Iterator[IdArray]:
    """What a hop draws, some at a time."""
    topology = sampler.topology
    keys = np.array([stream_key(sampler.purpose, sampler.seed, 0, index, hop)], np.uint64)
    for part in ids_in_pieces(nodes):
        for _, neighbors in drawn_in_pieces(
            topology,
            part,
            np.array([0, len(part)]),
            fanout,
            stream_keys=keys,
            replace=sampler.replace,
            most_edges=_PIECE_EDGES,
            check_room=check_room,
        ):
            yield neighbors


def _check_room(host_budget: int, opening_bytes: int, fanout: int) -> None:
    """Refuse to draw so many neighbors of one list where there is no room for them."""
    needed = opening_bytes + (DRAW_BYTES + _ID_BYTES) * fanout
    if needed > host_budget:
        raise BudgetError(
            f"to draw {fanout} neighbors of one list, {needed} bytes of memory are needed and host_budget is "
            f"{host_budget}: set host_budget to at least {needed}, or use smaller sampling.fanouts",
            needed,
        )


def _number(nodes: Bits) -> int:
    return int(np.bitwise_count(nodes).sum())
