"""What training from disk takes of the memory, part by part, whatever the budget is."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.rank_map import RankMap
from storage.blocks.buffer import DEFAULT_DEPTH, LEAST_BLOCKS, RUN_BYTES
from storage.blocks.spill_room import SpillRoom
from storage.expected_store import StoreSizes
from storage.graph_store import INDICES, INDPTR
from tasks.batch_sizes import BatchSizes
from tasks.hyperbatch_size import Hyperbatches

SLACK_BYTES = 8 << 20
"""What nobody counts: objects of the interpreter, stacks of threads, fragments of freed arrays."""
_COUNT_BYTES = 2  # a node: accesses within a hyperbatch
_MAPS = 3  # what the device tier holds, what the host caches of two hyperbatches hold
_PLACE_BYTES = 17  # an input node of a mini-batch in hand: tier, slot, order
ROWS_AT_ONCE = 2
"""Mini-batches whose rows are in memory: in hand, and the next one, ready or being read."""
ROWS_AT_ONCE_COPIED = 3
"""The same where rows are not read where they lie: the next one twice while its copy is made."""
_LARGER = (8.0, 4.0, 2.0, 1.5, 1.25)
"""How much larger than expected a mini-batch may be, where there is room but not for the largest possible one."""
_ROOM_SHARE = 4  # of what a budget has beyond the smallest one, mini-batches larger than expected get one part


@dataclass(frozen=True, slots=True)
class TopologyShare:
    """What sampling holds of the topology."""

    buffer: int
    """Bytes for blocks of adjacency lists."""
    indptr_buffer: int | None
    """Bytes for blocks of offsets; None holds all of them."""
    indptr: int
    """Bytes of offsets in memory, either way."""


def topology_share(store: StoreSizes, budget: int, *, may_be_whole: bool = True) -> TopologyShare:
    """All adjacency lists where an eighth of the budget holds them, else what keeps the disk busy.

    Each hop passes by most blocks once, in order, and meets few of those it left. Offsets are held whole where they may
    be and a sixth holds them.
    """
    block_bytes, whole = store.info.block_bytes, store.nbytes(INDPTR)
    lists = _buffer_bytes(store.nbytes(INDICES), block_bytes, budget // 8)
    if may_be_whole and whole <= budget // 6:
        return TopologyShare(lists, None, whole)
    buffer = _buffer_bytes(whole, block_bytes, budget // 16)
    return TopologyShare(lists, buffer, buffer)


def _buffer_bytes(nbytes: int, block_bytes: int, most: int) -> int:
    """Memory for blocks of a dataset: all of them, or a few in flight."""
    whole = _whole_blocks(nbytes, block_bytes)
    few = min(whole, (DEFAULT_DEPTH + 2) * max(block_bytes, RUN_BYTES))
    return max(LEAST_BLOCKS * block_bytes, whole if whole <= most else min(most, few))


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What training takes whatever the budget is."""

    store: StoreSizes
    threads: int
    held: int
    evaluation: int
    hyperbatch: int | None
    largest: BatchSizes
    num_batches: int
    shared_nodes: int
    room: SpillRoom
    rows_at_once: int

    def topology(self, budget: int, sizes: BatchSizes) -> TopologyShare:
        """A share of what mini-batches at hand leave of the budget; offsets block-wise where whole ones do not fit."""
        at_hand = sum(self.in_hand(sizes).values())
        left = max(0, budget - max(at_hand, self.evaluation) - self.held)
        share = topology_share(self.store, left)
        if share.indptr_buffer is None and self.smallest(sizes, sizes, share) > budget:
            share = min(share, topology_share(self.store, left, may_be_whole=False), key=lambda one: one.indptr)
        return share

    def in_hand(self, sizes: BatchSizes) -> dict[str, int]:
        """Bytes of mini-batches of such sizes that are in hand."""
        return in_hand(sizes, self.threads, self.store.info.feature_row_bytes, self.rows_at_once)

    def kept(self, topology: TopologyShare) -> dict[str, int]:
        """Bytes that are held while mini-batches train, and while the model is evaluated."""
        return {
            "held": self.held + SLACK_BYTES,
            "offsets": topology.indptr,
            "topology buffer": topology.buffer,
        }

    def while_training(self, sizes: BatchSizes) -> dict[str, int]:
        """Bytes that no hyperbatch changes; none of them is held while the model is evaluated."""
        info = self.store.info
        return {
            "accesses": _COUNT_BYTES * info.num_nodes + _MAPS * RankMap.nbytes_for(info.num_nodes),
            **self.in_hand(sizes),
        }

    def hyperbatches(self, sizes: BatchSizes, bound: BatchSizes) -> Hyperbatches:
        """What their size is decided by."""
        return Hyperbatches(
            store=self.store,
            expected=sizes,
            bound=bound,
            largest=self.largest,
            num_batches=self.num_batches,
            shared_nodes=self.shared_nodes,
            room=self.room.nbytes,
            is_disk_budgeted=self.room.is_budget,
        )

    def smallest(self, sizes: BatchSizes, bound: BatchSizes, topology: TopologyShare) -> int:
        """The smallest budget for mini-batches of such sizes, at these shares of the topology."""
        kept = sum(self.kept(topology).values()) + LEAST_BLOCKS * self.store.info.block_bytes
        training = sum(self.while_training(bound).values()) + self.least_hyperbatch(sizes, bound)
        return kept + max(training, self.evaluation)

    def least_hyperbatch(self, sizes: BatchSizes, bound: BatchSizes) -> int:
        """The least memory for hyperbatches of the size that was asked for."""
        return self.hyperbatches(sizes, bound).least_bytes(min(self.hyperbatch or 1, self.num_batches))

    def roomy(self, sizes: BatchSizes, larger: BatchSizes, topology: TopologyShare) -> int:
        """The smallest budget at which mini-batches may get larger than expected."""
        least = self.smallest(sizes, sizes, topology)
        return least + _ROOM_SHARE * max(0, self.smallest(sizes, larger, topology) - least)

    def bound(self, budget: int, sizes: BatchSizes, largest: BatchSizes) -> BatchSizes:
        """How large a mini-batch may get: as large as it ever can where there is room."""
        topology = self.topology(budget, sizes)
        for larger in (largest, *(sizes.times(factor).at_most(largest) for factor in _LARGER)):
            if self.roomy(sizes, larger, topology) <= budget:
                return larger
        return sizes

    def enough(self, budget: int, sizes: BatchSizes, larger: BatchSizes) -> int:
        """A budget, at least the given one, at which mini-batches may get so large: shares grow with the budget."""
        while (asked := self.roomy(sizes, larger, self.topology(budget, sizes))) > budget:
            budget = asked
        return budget


def in_hand(sizes: BatchSizes, threads: int, row_bytes: int, rows_at_once: int = ROWS_AT_ONCE) -> dict[str, int]:
    """Bytes of mini-batches while they are numbered, wait with their rows, and train."""
    return {
        "hash tables": threads * sizes.table_bytes,
        "rows at hand": rows_at_once * (sizes.nodes * (row_bytes + _PLACE_BYTES) + sizes.sample_bytes),
        "training step": sizes.step_bytes,
    }


def _whole_blocks(nbytes: int, block_bytes: int) -> int:
    return -(-nbytes // block_bytes) * block_bytes
