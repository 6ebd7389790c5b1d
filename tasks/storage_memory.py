"""How `host_budget` is shared out when topology and features stay on disk, and the smallest budget that would do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from kernels.mfg import SuperBatch
from kernels.rank_map import RankMap
from storage.blocks.buffer import DEFAULT_DEPTH, LEAST_BLOCKS
from storage.blocks.spill import SPARE_BUFFERS, padded
from storage.errors import BudgetError
from storage.graph_store import INDICES, INDPTR, GraphStore
from tasks.batch_sizes import BatchSizes, sizes_of

_logger = logging.getLogger(__name__)

MOST_HYPERBATCH = 1024
SLACK_BYTES = 8 << 20
"""What nobody counts: objects of the interpreter, stacks of threads, fragments of freed arrays."""
_COUNT_BYTES = 2  # a node: accesses within a hyperbatch
_MAPS = 3  # what the device tier holds, what the host caches of two hyperbatches hold
_PLACE_BYTES = 17  # an input node of a mini-batch in hand: tier, slot, order
_ROWS_AT_ONCE = 3  # mini-batches whose rows are in memory: in hand, ready, being read
_IDS_AT_ONCE = 2  # hyperbatches whose samples are: being sampled, being used
_LARGER = (8.0, 4.0, 2.0, 1.5, 1.25)
"""How much larger than expected a mini-batch may be, where there is room but not for the largest possible one."""
_ROOM_SHARE = 4  # of what a budget has beyond the smallest one, mini-batches larger than expected get one part
_LEAST_PIECE_BYTES, _GOOD_PIECE_BYTES = 16 << 10, 256 << 10


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """Shares of the budget, in bytes."""

    topology_buffer: int
    """Blocks of adjacency lists."""
    indptr_buffer: int | None
    """Blocks of offsets; None holds all offsets."""
    feature_buffer: int
    """Blocks of features."""
    hyperbatch: int
    """Mini-batches sampled and gathered together."""
    cache: int
    """Rows of the host cache."""
    spill: int
    """Buffers in front of the spill file."""
    parts: Mapping[str, int]
    """Everything, by name; adds up to at most the budget."""
    budget: int
    """What was shared out."""
    enough: int
    """A budget at which no mini-batch can be too large."""
    most_spilled: int
    """Bytes that no hyperbatch spills more than."""

    @property
    def total(self) -> int:
        """Bytes in all."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class TopologyShare:
    """What sampling holds of the topology: decided before any mini-batch is known."""

    buffer: int
    """Bytes for blocks of adjacency lists."""
    indptr_buffer: int | None
    """Bytes for blocks of offsets; None holds all of them."""
    indptr: int
    """Bytes of offsets in memory, either way."""


def topology_share(store: GraphStore, budget: int) -> TopologyShare:
    """An eighth of the budget for adjacency lists; offsets whole where a sixth holds them, else block-wise."""
    block_bytes, whole = store.info.block_bytes, store.nbytes(INDPTR)
    least = LEAST_BLOCKS * block_bytes
    lists = max(least, min(budget // 8, _whole_blocks(store.nbytes(INDICES), block_bytes)))
    if whole <= budget // 6:
        return TopologyShare(lists, None, whole)
    buffer = max(least, min(budget // 16, _whole_blocks(whole, block_bytes)))
    return TopologyShare(lists, buffer, buffer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """What training takes whatever the budget is."""

    store: GraphStore
    threads: int
    held: int
    evaluation: int
    hyperbatch: int

    def fixed(self, sizes: BatchSizes, topology: TopologyShare) -> dict[str, int]:
        """Bytes that no hyperbatch changes."""
        info = self.store.info
        between = {
            "accesses": _COUNT_BYTES * info.num_nodes + _MAPS * RankMap.nbytes_for(info.num_nodes),
            **in_hand(sizes, self.threads, info.feature_row_bytes),
        }
        return {
            "held": self.held + SLACK_BYTES,
            "offsets": topology.indptr,
            "topology buffer": topology.buffer,
            **between,
            "evaluation": max(0, self.evaluation - sum(between.values())),
        }

    def beside(self, sizes: BatchSizes) -> int:
        """The least bytes of hyperbatches and of the buffers in front of the spill file."""
        return self.hyperbatch * (sampled_bytes(sizes) + _LEAST_PIECE_BYTES) + SPARE_BUFFERS * _LEAST_PIECE_BYTES

    def smallest(self, sizes: BatchSizes, topology: TopologyShare) -> int:
        """The smallest budget for mini-batches of such sizes, at these shares of the topology."""
        least_buffer = LEAST_BLOCKS * self.store.info.block_bytes
        return sum(self.fixed(sizes, topology).values()) + least_buffer + self.beside(sizes)

    def roomy(self, sizes: BatchSizes, larger: BatchSizes, topology: TopologyShare) -> int:
        """The smallest budget at which mini-batches may get larger than expected."""
        least = self.smallest(sizes, topology)
        return least + _ROOM_SHARE * max(0, self.smallest(larger, topology) - least)

    def bound(self, budget: int, sizes: BatchSizes, largest: BatchSizes, topology: TopologyShare) -> BatchSizes:
        """How large a mini-batch may get: as large as it ever can where there is room."""
        for larger in (largest, *(sizes.times(factor).at_most(largest) for factor in _LARGER)):
            if self.roomy(sizes, larger, topology) <= budget:
                return larger
        return sizes

    def enough(self, budget: int, sizes: BatchSizes, larger: BatchSizes) -> int:
        """A budget, at least the given one, at which mini-batches may get so large: shares grow with the budget."""
        while (asked := self.roomy(sizes, larger, topology_share(self.store, budget))) > budget:
            budget = asked
        return budget


def in_hand(sizes: BatchSizes, threads: int, row_bytes: int) -> dict[str, int]:
    """Bytes of mini-batches while they are numbered, wait with their rows, and train."""
    return {
        "hash tables": threads * sizes.table_bytes,
        "rows at hand": _ROWS_AT_ONCE * sizes.nodes * (row_bytes + _PLACE_BYTES),
        "training step": sizes.step_bytes,
    }


def sampled_bytes(sizes: BatchSizes) -> int:
    """Bytes of a mini-batch as one of a hyperbatch."""
    return _IDS_AT_ONCE * sizes.sample_bytes + sizes.sampling_bytes + 2 * sizes.nodes * sizes.id_bytes


def plan_storage(
    store: GraphStore,
    budget: int,
    topology: TopologyShare,
    sizes: BatchSizes,
    *,
    num_batches: int,
    held_bytes: int,
    evaluation_bytes: int,
    threads: int,
    hyperbatch: int | None = None,
    largest: BatchSizes | None = None,
) -> StoragePlan:
    """Share out the budget.

    Parameters
    ----------
    store : GraphStore
    budget : int
        Bytes of memory above the libraries' own.
    topology : TopologyShare
    sizes : BatchSizes
        As large as the mini-batches to come are expected to be.
    num_batches : int
        Mini-batches an epoch.
    held_bytes : int
        What is held beside it: labels, splits, degrees, the device tier.
    evaluation_bytes : int
        The least that exact evaluation takes between epochs, when mini-batches take nothing.
    threads : int
        Sampling threads.
    hyperbatch : int, optional
        Mini-batches to sample and gather together; by default as many as fit a third of what is left.
    largest : BatchSizes, optional
        As large as any can be; room is kept for them, or for some in between, where the budget has it.

    Returns
    -------
    StoragePlan

    Raises
    ------
    BudgetError
        If the budget is too small; names the smallest one that would do.
    """
    need = _Need(store=store, threads=threads, held=held_bytes, evaluation=evaluation_bytes, hyperbatch=hyperbatch or 1)
    if budget < need.smallest(sizes, topology):
        fixed, smallest = need.fixed(sizes, topology), need.enough(budget, sizes, sizes)
        raise BudgetError(
            f"training from disk needs {smallest} bytes of memory ({_listed(fixed)}, and {hyperbatch or 1} "
            f"mini-batches of {sampled_bytes(sizes)} bytes) and host_budget is {budget}: set host_budget to at least "
            f"{smallest}, or use smaller sampling.batch_size or fanouts"
        )
    bound = need.bound(budget, sizes, largest or sizes, topology)
    fixed, one = need.fixed(bound, topology), sampled_bytes(bound)
    block_bytes = store.info.block_bytes
    rest = budget - sum(fixed.values())
    wanted = min((DEFAULT_DEPTH + 2) * max(block_bytes, 1 << 20), rest // 8, rest - need.beside(bound))
    feature_buffer = max(LEAST_BLOCKS * block_bytes, wanted)
    rest -= feature_buffer
    fits = max(1, min(rest // 3 // (one + _GOOD_PIECE_BYTES), num_batches, MOST_HYPERBATCH))
    count = min(hyperbatch or fits, num_batches)
    ids = count * one
    spill = (count + SPARE_BUFFERS) * min(_GOOD_PIECE_BYTES, max(_LEAST_PIECE_BYTES, (rest - ids) // 4 // (count + 4)))
    cache = max(0, rest - ids - spill)
    parts = fixed | {"feature buffer": feature_buffer, "samples": ids, "spill buffers": spill, "host cache": cache}
    enough = need.enough(budget, sizes, largest or sizes)
    most_spilled = count * padded((largest or sizes).nodes * store.info.feature_row_bytes)
    plan = StoragePlan(
        topology.buffer,
        topology.indptr_buffer,
        feature_buffer,
        count,
        cache,
        spill,
        parts,
        budget,
        enough,
        most_spilled,
    )
    _logger.info("training from disk in %d bytes, hyperbatches of %d: %s", budget, count, _listed(parts))
    return plan


def check_bytes(plan: StoragePlan, sampled: SuperBatch, found: BatchSizes, *, threads: int, row_bytes: int) -> None:
    """Refuse a hyperbatch that does not fit the memory planned for it, before its rows take any.

    Parameters
    ----------
    plan : StoragePlan
    sampled : SuperBatch
    found : BatchSizes
        At least as large as each of its mini-batches.
    threads : int
        Sampling threads.
    row_bytes : int
        Of a feature row.

    Raises
    ------
    BudgetError
        Names a budget at which no mini-batch can be too large.
    """
    room = plan.parts["samples"] + plan.budget - plan.total
    asked = sum(sampled_bytes(sizes_of(sample)) for sample in sampled.samples)
    for name, nbytes in in_hand(found, threads, row_bytes).items():
        room, asked = room + plan.parts[name], asked + nbytes
    if asked > room:
        raise BudgetError(
            f"{len(sampled.samples)} mini-batches, the largest of {found.nodes} input nodes and {found.edges} edges, "
            f"take {asked} bytes and host_budget leaves {room}: the first ones were smaller; set host_budget to at "
            f"least {plan.enough}, which holds the largest possible ones, or use smaller sampling.batch_size or fanouts"
        )


def _whole_blocks(nbytes: int, block_bytes: int) -> int:
    return -(-nbytes // block_bytes) * block_bytes


def _listed(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {nbytes / 1e6:.1f} MB" for name, nbytes in parts.items())
