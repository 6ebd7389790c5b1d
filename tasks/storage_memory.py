"""How `host_budget` is shared out when topology and features stay on disk, and the smallest budget that would do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from kernels.cpu.hash_relabel import SLOT_BYTES, table_slots
from kernels.mfg import Mfg, SuperBatch
from kernels.nn.model import ModelSpec, build_model
from kernels.rank_map import RankMap
from storage.blocks.buffer import DEFAULT_DEPTH, LEAST_BLOCKS
from storage.blocks.spill import SPARE_BUFFERS
from storage.errors import BudgetError
from storage.graph_store import INDICES, INDPTR, GraphStore

_logger = logging.getLogger(__name__)

MOST_HYPERBATCH = 1024
SLACK_BYTES = 8 << 20
"""What nobody counts: objects of the interpreter, stacks of threads, fragments of freed arrays."""
_FLOAT_BYTES = 4
_COUNT_BYTES = 2  # a node: accesses within a hyperbatch
_MAPS = 3  # what the device tier holds, what the host caches of two hyperbatches hold
_FRONTIER_BYTES = 72  # a node that is expanded: its id, place in the bucket matrix, offsets, degree, counts
_EDGE_BYTES = 12  # while it is sampled: a global id and a local position
_PLACE_BYTES = 17  # an input node of a mini-batch in hand: tier, slot, order
_ROWS_AT_ONCE = 3  # mini-batches whose rows are in memory: in hand, ready, being read
_IDS_AT_ONCE = 2  # hyperbatches whose samples are: being sampled, being used
_LEAST_PIECE_BYTES, _GOOD_PIECE_BYTES = 16 << 10, 256 << 10


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Sizes of one mini-batch."""

    nodes: int
    """Input nodes."""
    edges: int
    """Sampled edges of all hops."""
    frontier: int
    """Destinations of the last hop, the largest."""
    id_bytes: int
    """Bytes of an id."""

    @classmethod
    def largest(cls, sampled: SuperBatch) -> BatchSizes:
        """At least as large as each of the mini-batches in every respect."""
        samples = sampled.samples
        return cls(
            max(len(sample.input_nodes) for sample in samples),
            max(sum(hop.num_edges for hop in sample.hops) for sample in samples),
            max((hop.num_dst for sample in samples for hop in sample.hops), default=0),
            max(sample.input_nodes.itemsize for sample in samples),
        )

    def times(self, factor: float) -> BatchSizes:
        """Larger by a factor."""
        return BatchSizes(
            int(self.nodes * factor), int(self.edges * factor), int(self.frontier * factor), self.id_bytes
        )

    @property
    def sample_bytes(self) -> int:
        """Bytes of its sample."""
        return self.nodes * self.id_bytes + 4 * self.edges + 16 * self.frontier

    @property
    def sampling_bytes(self) -> int:
        """Bytes while its last hop is sampled, beside what stays."""
        return _FRONTIER_BYTES * self.frontier + _EDGE_BYTES * self.edges

    @property
    def table_bytes(self) -> int:
        """Bytes of a thread's hash table while its nodes are numbered."""
        return SLOT_BYTES * table_slots(self.frontier + self.edges)


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


def plan_storage(
    store: GraphStore,
    budget: int,
    topology: TopologyShare,
    sizes: BatchSizes,
    *,
    num_batches: int,
    held_bytes: int,
    step_bytes: int,
    evaluation_bytes: int,
    threads: int,
    hyperbatch: int | None = None,
) -> StoragePlan:
    """Share out the budget.

    Parameters
    ----------
    store : GraphStore
    budget : int
        Bytes of memory above the libraries' own.
    topology : TopologyShare
    sizes : BatchSizes
        Of the largest mini-batch to come.
    num_batches : int
        Mini-batches an epoch.
    held_bytes : int
        What is held beside it: labels, splits, degrees, the device tier.
    step_bytes : int
        A training step's own memory.
    evaluation_bytes : int
        The least that exact evaluation takes between epochs, when mini-batches take nothing.
    threads : int
        Sampling threads.
    hyperbatch : int, optional
        Mini-batches to sample and gather together; by default as many as fit a third of what is left.

    Returns
    -------
    StoragePlan

    Raises
    ------
    BudgetError
        If the budget is too small; names the smallest one that would do.
    """
    info, block_bytes = store.info, store.info.block_bytes
    fixed = {
        "held": held_bytes + SLACK_BYTES,
        "offsets": topology.indptr,
        "topology buffer": topology.buffer,
        "accesses": _COUNT_BYTES * info.num_nodes + _MAPS * RankMap.nbytes_for(info.num_nodes),
        "hash tables": threads * sizes.table_bytes,
        "rows at hand": _ROWS_AT_ONCE * sizes.nodes * (info.feature_row_bytes + _PLACE_BYTES),
        "training step": step_bytes,
    }
    between = sum(fixed[name] for name in ("accesses", "hash tables", "rows at hand", "training step"))
    fixed["evaluation"] = max(0, evaluation_bytes - between)
    one = _IDS_AT_ONCE * sizes.sample_bytes + sizes.sampling_bytes + 2 * sizes.nodes * sizes.id_bytes
    least_buffer = LEAST_BLOCKS * block_bytes
    wanted = hyperbatch or 1
    smallest = (
        sum(fixed.values()) + least_buffer + wanted * (one + _LEAST_PIECE_BYTES) + SPARE_BUFFERS * _LEAST_PIECE_BYTES
    )
    rest = budget - sum(fixed.values())
    if budget < smallest:
        raise BudgetError(
            f"training from disk needs {smallest} bytes of memory ({_listed(fixed)}, and {wanted} mini-batches of "
            f"{one} bytes) and host_budget is {budget}: set host_budget to at least {smallest}, or use smaller "
            "sampling.batch_size or fanouts"
        )
    feature_buffer = max(least_buffer, min((DEFAULT_DEPTH + 2) * max(block_bytes, 1 << 20), rest // 8))
    rest -= feature_buffer
    fits = max(1, min(rest // 3 // (one + _GOOD_PIECE_BYTES), num_batches, MOST_HYPERBATCH))
    count = min(hyperbatch or fits, num_batches)
    ids = count * one
    spill = (count + SPARE_BUFFERS) * min(_GOOD_PIECE_BYTES, max(_LEAST_PIECE_BYTES, (rest - ids) // 4 // (count + 4)))
    cache = max(0, rest - ids - spill)
    parts = fixed | {"feature buffer": feature_buffer, "samples": ids, "spill buffers": spill, "host cache": cache}
    plan = StoragePlan(topology.buffer, topology.indptr_buffer, feature_buffer, count, cache, spill, parts)
    _logger.info("training from disk in %d bytes, hyperbatches of %d: %s", budget, count, _listed(parts))
    return plan


def step_bytes(spec: ModelSpec, sampled: SuperBatch) -> int:
    """Bound what a training step on any of these mini-batches takes: rows of all layers, their gradients, weights."""
    layers = build_model(spec, seed=0).ordered_layers()
    most = 0
    for sample in sampled.samples:
        hops: list[Mfg | None] = [*reversed(sample.hops)] or [None] * len(layers)
        total = 0
        for index, (layer, hop) in enumerate(zip(layers, hops, strict=True)):
            num_dst, num_src = (len(sample.input_nodes),) * 2 if hop is None else (hop.num_dst, hop.num_src)
            wide = spec.num_heads * (layer.out_dim + 2) if spec.kind == "gat" else layer.projected_dim
            projected = num_src * 2 * wide if index or layer.transform_first else 0
            attention = 3 * spec.num_heads * hop.num_edges if spec.kind == "gat" and hop is not None else 0
            total += num_dst * (2 * layer.in_dim + 5 * layer.out_dim) + projected + attention
        most = max(most, total)
    weights = sum(parameter.numel() for layer in layers for parameter in layer.parameters())
    return _FLOAT_BYTES * (most + 6 * weights)


def _whole_blocks(nbytes: int, block_bytes: int) -> int:
    return -(-nbytes // block_bytes) * block_bytes


def _listed(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {nbytes / 1e6:.1f} MB" for name, nbytes in parts.items())
