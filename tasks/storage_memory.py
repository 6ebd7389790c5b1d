"""How `host_budget` is shared out when topology and features stay on disk, and the smallest budget that would do."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from storage.blocks.buffer import DEFAULT_DEPTH, LEAST_BLOCKS, RUN_BYTES
from storage.blocks.hyperbatch import SamplingMemory
from storage.blocks.spill_room import ENDLESS, SpillRoom, spilled_bytes
from storage.errors import BudgetError
from storage.expected_store import StoreSizes
from tasks.batch_sizes import BatchSizes
from tasks.hyperbatch_options import GENERATIONS
from tasks.hyperbatch_size import GENERATIONS_OF_IDS, Hyperbatches, NoRoomError, Share, Traffic
from tasks.storage_need import ROWS_AT_ONCE, Need, TopologyShare

_logger = logging.getLogger(__name__)
_WORTH_NAMING = 4  # a quarter of the least memory
_BLOCK_BUFFERS = 3  # of offsets, adjacency and features
_NEIGHBOR_SHARE = 4  # of what the disk has beyond the least for rows and samples, waiting neighbors get one part


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
    one_cache: bool
    """Whether hyperbatches that spill share one cache."""
    spill: int
    """Buffers in front of the spill file."""
    parts: Mapping[str, int]
    """Everything, by name; adds up to at most the budget."""
    rows_at_once: int
    """Mini-batches whose rows are in memory."""
    budget: int
    """What was shared out."""
    enough: int
    """A budget at which no mini-batch can be too large."""
    row_room: SpillRoom
    """Room on disk for spilled rows."""
    sample_room: SpillRoom
    """Room on disk for samples that wait there."""
    neighbor_bytes: int
    """Bytes on disk, beside those two, for neighbors that wait until they are numbered; none of a `disk_budget`."""
    hyperbatches: Hyperbatches
    """What their size was decided by."""

    @property
    def total(self) -> int:
        """Bytes in all."""
        return sum(self.parts.values())

    def traffic(self, sizes: BatchSizes) -> Traffic:
        """What mini-batches of such sizes move."""
        hyperbatches = dataclasses.replace(self.hyperbatches, expected=sizes)
        return hyperbatches.traffic(self.hyperbatch, self.cache, self.parts["sampling"], spills=self.spills_samples)

    def sampling_memory(self, directory: Path | None) -> SamplingMemory:
        """Memory of sampling a hyperbatch, what of it may stay, and where neighbors may wait."""
        kept = self.parts["samples"] // GENERATIONS_OF_IDS
        waiting = directory if self.neighbor_bytes else None
        return SamplingMemory(self.parts["sampling"], kept, waiting, self.neighbor_bytes)


def plan_storage(
    store: StoreSizes,
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
    room: SpillRoom = ENDLESS,
    rows_at_once: int = ROWS_AT_ONCE,
) -> StoragePlan:
    """Share out the budget.

    Parameters
    ----------
    store : StoreSizes
    budget : int
        Bytes of memory above the libraries' own.
    sizes : BatchSizes
        As large as the mini-batches to come are expected to be.
    num_batches : int
        Mini-batches an epoch.
    kept_bytes : int
        What is held beside it: labels, splits, degrees, the device tier.
    evaluation_bytes : int
        The least that exact evaluation, or the beginning of an epoch, takes in place of mini-batches.
    threads : int
        Sampling threads.
    hyperbatch : int, optional
        Mini-batches to sample and gather together; by default as many as make an epoch short.
    largest : BatchSizes, optional
        As large as any can be; room is kept for the few that are in flight to be so, or for some sizes in between,
        where the budget has it.
    shared_nodes : int
        Input nodes that two mini-batches have in common.
    room : SpillRoom
        Room on disk for spilled rows, and for samples where they wait there.
    rows_at_once : int
        Mini-batches whose rows are in memory.

    Returns
    -------
    StoragePlan

    Raises
    ------
    BudgetError
        If the budget is too small, or that of the disk; names the smallest one that would do.
    MachineError
        If the disk is too small.
    """
    largest = largest or sizes
    need = Need(
        store=store,
        threads=threads,
        held=kept_bytes,
        evaluation=evaluation_bytes,
        hyperbatch=hyperbatch,
        largest=largest,
        num_batches=num_batches,
        shared_nodes=shared_nodes,
        room=room,
        rows_at_once=rows_at_once,
    )
    topology = need.topology(budget, sizes)
    if budget < need.smallest(sizes, sizes, topology):
        raise _too_small(need, budget, sizes, topology)
    bound = need.bound(budget, sizes, largest)
    kept, hyperbatches = need.kept(topology), need.hyperbatches(sizes, bound)
    fixed = kept | need.while_training(bound)
    rest, unkept = budget - sum(fixed.values()), budget - sum(kept.values())
    most_buffer = min(rest - need.least_hyperbatch(sizes, bound), unkept - evaluation_bytes)
    feature_buffer = _feature_buffer(store.info.block_bytes, rest, most_buffer)
    try:
        share = hyperbatches.best(rest - feature_buffer, hyperbatch)
    except NoRoomError as error:
        raise room.short("training from disk spills", error.needed) from error
    parts = fixed | {
        "feature buffer": feature_buffer,
        "samples": share.samples,
        "sampling": share.sampling,
        "spill buffers": share.spill,
        "host cache": share.cache,
    }
    sample_room, enough_room = hyperbatches.sample_room(share), hyperbatches.enough_room(hyperbatch)
    most_rows = GENERATIONS * spilled_bytes(share.count * largest.nodes, store.info.feature_row_bytes, share.count)
    rows_bytes, neighbor_bytes = _row_and_neighbor_bytes(room, share, sample_room, most_rows)
    plan = StoragePlan(
        topology=topology,
        feature_buffer=feature_buffer,
        hyperbatch=share.count,
        spills_samples=share.spills_samples,
        cache=share.cache,
        one_cache=share.traffic.one_cache,
        spill=share.spill,
        parts=parts,
        rows_at_once=rows_at_once,
        budget=budget,
        enough=need.enough(budget, sizes, largest),
        row_room=room.part(rows_bytes, enough_room),
        sample_room=room.part(sample_room, enough_room),
        neighbor_bytes=neighbor_bytes,
        hyperbatches=hyperbatches,
    )
    _log(plan, share)
    return plan


def _too_small(need: Need, budget: int, sizes: BatchSizes, topology: TopologyShare) -> BudgetError:
    """Make the error of a budget too small."""
    smallest = need.enough(budget, sizes, sizes)
    return BudgetError(
        f"training from disk needs {smallest} bytes of memory ({_listed(need.kept(topology))}; then "
        f"{_listed(need.while_training(sizes))}, and the samples of {need.hyperbatch or 1} mini-batches, or "
        f"{need.evaluation / 1e6:.1f} MB between epochs) and host_budget is {budget}: set host_budget to at "
        f"least {smallest}, or use {_smaller(need, sizes, smallest)}",
        smallest,
    )


def _smaller(need: Need, sizes: BatchSizes, smallest: int) -> str:
    """Name what would shrink the least that training needs, by what takes a good part of it."""
    ways = ["smaller sampling.batch_size or fanouts"]
    if need.threads > 1 and _WORTH_NAMING * need.threads * sizes.table_bytes > smallest:
        ways.append("fewer sampling.threads")
    if _WORTH_NAMING * _BLOCK_BUFFERS * LEAST_BLOCKS * need.store.info.block_bytes > smallest:
        ways.append("a smaller layout.block_bytes")
    return " or ".join(ways)


def _log(plan: StoragePlan, share: Share) -> None:
    _logger.info(
        "training from disk in %d bytes, hyperbatches of %d that move %.1f MB a mini-batch and spill up to %.1f MB of "
        "rows, samples %s: %s",
        plan.budget, share.count, share.traffic.moved / 1e6, plan.row_room.nbytes / 1e6,
        f"on disk, up to {plan.sample_room.nbytes / 1e6:.1f} MB" if share.spills_samples else "in memory",
        _listed(plan.parts),
    )  # fmt: skip


def _row_and_neighbor_bytes(room: SpillRoom, share: Share, sample_room: int, most_rows: int) -> tuple[int, int]:
    """What of the disk spilled rows get, at least what they need, and what neighbors that wait get beside them."""
    if room.is_budget:
        return min(room.nbytes - sample_room, most_rows), 0
    needed = share.good_room if share.good_room <= room.nbytes else share.least_room
    rows = min(room.nbytes - sample_room - (room.nbytes - needed) // _NEIGHBOR_SHARE, most_rows)
    return rows, room.nbytes - sample_room - rows


def _feature_buffer(block_bytes: int, rest: int, most: int) -> int:
    """Blocks of features: enough to keep the disk busy, an eighth of what is left at most, or four blocks."""
    wanted = min(
        (DEFAULT_DEPTH + 2) * max(block_bytes, RUN_BYTES), max(rest // 8, min(4 * block_bytes, rest // 4)), most
    )
    return max(LEAST_BLOCKS * block_bytes, wanted)


def _listed(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {nbytes / 1e6:.1f} MB" for name, nbytes in parts.items())
