"""How `host_budget` is shared out when topology and features stay on disk, and the smallest budget that would do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from kernels.rank_map import RankMap
from storage.blocks.buffer import DEFAULT_DEPTH, LEAST_BLOCKS
from storage.blocks.hyperbatch import SamplingMemory
from storage.blocks.spill import padded
from storage.errors import BudgetError
from storage.graph_store import INDICES, INDPTR, GraphStore
from tasks.batch_sizes import BatchSizes
from tasks.hyperbatch_size import GENERATIONS_OF_IDS, Hyperbatches, held_bytes, work_bytes

_logger = logging.getLogger(__name__)

SLACK_BYTES = 8 << 20
"""What nobody counts: objects of the interpreter, stacks of threads, fragments of freed arrays."""
_COUNT_BYTES = 2  # a node: accesses within a hyperbatch
_MAPS = 3  # what the device tier holds, what the host caches of two hyperbatches hold
_PLACE_BYTES = 17  # an input node of a mini-batch in hand: tier, slot, order
_ROWS_AT_ONCE = 3  # mini-batches whose rows are in memory: in hand, ready, being read
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


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """Shares of the budget, in bytes."""

    topology: TopologyShare
    """What sampling holds of the topology."""
    feature_buffer: int
    """Blocks of features."""
    hyperbatch: int
    """Mini-batches sampled and gathered together, if they are as large as expected."""
    spills_samples: bool
    """Whether samples wait on disk until they are used."""
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

    @property
    def sampling_memory(self) -> SamplingMemory:
        """Memory of sampling a hyperbatch, and what of it may stay."""
        return SamplingMemory(self.parts["sampling"], self.parts["samples"] // GENERATIONS_OF_IDS)


def topology_share(store: GraphStore, budget: int, *, may_be_whole: bool = True) -> TopologyShare:
    """An eighth of the budget for adjacency lists; offsets whole where they may be and a sixth holds them."""
    block_bytes, whole = store.info.block_bytes, store.nbytes(INDPTR)
    least = LEAST_BLOCKS * block_bytes
    lists = max(least, min(budget // 8, _whole_blocks(store.nbytes(INDICES), block_bytes)))
    if may_be_whole and whole <= budget // 6:
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
    hyperbatch: int | None
    num_batches: int
    shared_nodes: int
    may_spill_samples: bool

    def topology(self, budget: int, sizes: BatchSizes) -> TopologyShare:
        """A share of what mini-batches at hand leave of the budget; offsets block-wise where whole ones do not fit."""
        at_hand = sum(in_hand(sizes, self.threads, self.store.info.feature_row_bytes).values())
        left = max(0, budget - at_hand - self.held)
        share = topology_share(self.store, left)
        if share.indptr_buffer is None and self.smallest(sizes, sizes, share) > budget:
            share = min(share, topology_share(self.store, left, may_be_whole=False), key=lambda one: one.indptr)
        return share

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

    def hyperbatches(self, sizes: BatchSizes, bound: BatchSizes) -> Hyperbatches:
        """What their size is decided by."""
        return Hyperbatches(
            store=self.store,
            expected=sizes,
            bound=bound,
            num_batches=self.num_batches,
            shared_nodes=self.shared_nodes,
            may_spill_samples=self.may_spill_samples,
        )

    def smallest(self, sizes: BatchSizes, bound: BatchSizes, topology: TopologyShare) -> int:
        """The smallest budget for mini-batches of such sizes, at these shares of the topology."""
        least_buffer = LEAST_BLOCKS * self.store.info.block_bytes
        hyperbatches = self.hyperbatches(sizes, bound).least_bytes(min(self.hyperbatch or 1, self.num_batches))
        return sum(self.fixed(bound, topology).values()) + least_buffer + hyperbatches

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


def in_hand(sizes: BatchSizes, threads: int, row_bytes: int) -> dict[str, int]:
    """Bytes of mini-batches while they are numbered, wait with their rows, and train."""
    return {
        "hash tables": threads * sizes.table_bytes,
        "rows at hand": _ROWS_AT_ONCE * (sizes.nodes * (row_bytes + _PLACE_BYTES) + sizes.sample_bytes),
        "training step": sizes.step_bytes,
    }


def plan_storage(
    store: GraphStore,
    budget: int,
    sizes: BatchSizes,
    *,
    num_batches: int,
    kept_bytes: int,
    evaluation_bytes: int,
    threads: int,
    hyperbatch: int | None = None,
    largest: BatchSizes | None = None,
    shared_nodes: int = 0,
    may_spill_samples: bool = True,
) -> StoragePlan:
    """Share out the budget.

    Parameters
    ----------
    store : GraphStore
    budget : int
        Bytes of memory above the libraries' own.
    sizes : BatchSizes
        As large as the mini-batches to come are expected to be.
    num_batches : int
        Mini-batches an epoch.
    kept_bytes : int
        What is held beside it: labels, splits, degrees, the device tier.
    evaluation_bytes : int
        The least that exact evaluation takes between epochs, when mini-batches take nothing.
    threads : int
        Sampling threads.
    hyperbatch : int, optional
        Mini-batches to sample and gather together; by default as many as move the fewest bytes.
    largest : BatchSizes, optional
        As large as any can be; room is kept for the few that are in flight to be so, or for some sizes in between,
        where the budget has it.
    shared_nodes : int
        Input nodes that two mini-batches have in common.
    may_spill_samples : bool
        Whether samples may wait on disk.

    Returns
    -------
    StoragePlan

    Raises
    ------
    BudgetError
        If the budget is too small; names the smallest one that would do.
    """
    need = _Need(
        store=store,
        threads=threads,
        held=kept_bytes,
        evaluation=evaluation_bytes,
        hyperbatch=hyperbatch,
        num_batches=num_batches,
        shared_nodes=shared_nodes,
        may_spill_samples=may_spill_samples,
    )
    topology = need.topology(budget, sizes)
    if budget < need.smallest(sizes, sizes, topology):
        fixed, smallest = need.fixed(sizes, topology), need.enough(budget, sizes, sizes)
        raise BudgetError(
            f"training from disk needs {smallest} bytes of memory ({_listed(fixed)}, and the samples of "
            f"{hyperbatch or 1} mini-batches) and host_budget is {budget}: set host_budget to at least {smallest}, or "
            "use smaller sampling.batch_size or fanouts",
            smallest,
        )
    bound = need.bound(budget, sizes, largest or sizes)
    fixed, hyperbatches = need.fixed(bound, topology), need.hyperbatches(sizes, bound)
    rest = budget - sum(fixed.values())
    feature_buffer = _feature_buffer(
        store.info.block_bytes, rest, hyperbatches.least_bytes(min(hyperbatch or 1, num_batches))
    )
    share = hyperbatches.best(rest - feature_buffer, hyperbatch)
    parts = fixed | {
        "feature buffer": feature_buffer,
        "samples": share.samples,
        "sampling": share.sampling,
        "spill buffers": share.spill,
        "host cache": share.cache,
    }
    plan = StoragePlan(
        topology=topology,
        feature_buffer=feature_buffer,
        hyperbatch=share.count,
        spills_samples=share.spills_samples,
        cache=share.cache,
        spill=share.spill,
        parts=parts,
        budget=budget,
        enough=need.enough(budget, sizes, largest or sizes),
        most_spilled=share.count * padded((largest or sizes).nodes * store.info.feature_row_bytes),
    )
    _logger.info(
        "training from disk in %d bytes, hyperbatches of %d that move %.1f MB a mini-batch, samples %s: %s",
        budget, share.count, share.moved / 1e6, "on disk" if share.spills_samples else "in memory", _listed(parts),
    )  # fmt: skip
    return plan


def check_bytes(plan: StoragePlan, found: BatchSizes, *, threads: int, row_bytes: int) -> None:
    """Refuse a mini-batch that does not fit the memory planned for it, before its rows take any.

    Parameters
    ----------
    plan : StoragePlan
    found : BatchSizes
        Sizes of the mini-batch.
    threads : int
        Sampling threads.
    row_bytes : int
        Of a feature row.

    Raises
    ------
    BudgetError
        Names a budget at which no mini-batch can be too large.
    """
    waiting = {
        "samples": GENERATIONS_OF_IDS * held_bytes(found, spills=plan.spills_samples),
        "sampling": work_bytes(found),
    }
    # Others may fill what is planned for these two while this one is in hand; nothing is evaluated meanwhile.
    needed = in_hand(found, threads, row_bytes) | {
        name: max(plan.parts[name], nbytes) for name, nbytes in waiting.items()
    }
    room = plan.budget - plan.total + sum(plan.parts[name] for name in (*needed, "evaluation"))
    if (asked := sum(needed.values())) > room:
        raise BudgetError(
            f"a mini-batch of {found.nodes} input nodes and {found.edges} edges takes {asked} bytes and host_budget "
            f"leaves {room}: the first ones were smaller; set host_budget to at least {plan.enough}, which holds the "
            "largest possible ones, or use smaller sampling.batch_size or fanouts"
        )


def _feature_buffer(block_bytes: int, rest: int, beside: int) -> int:
    """Blocks of features: enough to keep the disk busy, an eighth of what is left at most."""
    wanted = min((DEFAULT_DEPTH + 2) * max(block_bytes, 1 << 20), rest // 8, rest - beside)
    return max(LEAST_BLOCKS * block_bytes, wanted)


def _whole_blocks(nbytes: int, block_bytes: int) -> int:
    return -(-nbytes // block_bytes) * block_bytes


def _listed(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {nbytes / 1e6:.1f} MB" for name, nbytes in parts.items())
