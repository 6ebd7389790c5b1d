"""How sampling for a profile keeps within a budget: with the adjacency in memory, or read block by block."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.cpu.hash_relabel import SLOT_BYTES, table_slots
from storage.blocks.buffer import LEAST_BLOCKS
from storage.expected_store import StoreSizes
from tasks.bounds import SEED_BYTES, SamplingSizes, batch_edges, batch_nodes, profile_bytes, topology_bytes
from tasks.hyperbatch_size import MOST_HYPERBATCH
from tasks.storage_need import SLACK_BYTES, TopologyShare, topology_share

_NODE_BYTES = 80  # of a mini-batch while it is sampled: id, offsets, degree, place in the bucket matrix
_EDGE_BYTES = 28  # global id, local position, draws
_LIST_ID_BYTES = 8
_BUFFERS = 2  # of adjacency lists, and of offsets


@dataclass(frozen=True)
class ProfilePlan:
    """Where the adjacency is while it is sampled, and what all of it takes."""

    memory_bytes: int
    """Peak of main memory."""
    share: TopologyShare | None
    """Buffers for an adjacency on disk; None: it is in memory."""
    hyperbatch: int
    """Mini-batches sampled together."""


def plan_profile(
    store: StoreSizes, sampling: SamplingSizes, memory_bytes: int, *, counts_bytes: int, longest_list: int = 0
) -> ProfilePlan:
    """Sample from memory where the adjacency fits, else from disk, as many mini-batches at once as memory holds.

    Where neither fits, the plan is the smallest there is, above `memory_bytes`: a small adjacency takes less than what
    reads it from disk. `counts_bytes` are those of all counts of one node; `longest_list` is the largest in-degree:
    inclusion probabilities take a list as a whole.
    """
    held = topology_bytes(store) + profile_bytes(store.info, sampling, store.info.split_sizes["train"], counts_bytes)
    in_memory = ProfilePlan(held, None, sampling.superbatch)
    if held <= memory_bytes:
        return in_memory
    from_disk = profile_from_disk(store, sampling, memory_bytes, counts_bytes=counts_bytes, longest_list=longest_list)
    return min(from_disk, in_memory, key=lambda plan: plan.memory_bytes)


def profile_from_disk(
    store: StoreSizes, sampling: SamplingSizes, memory_bytes: int, *, counts_bytes: int, longest_list: int = 0
) -> ProfilePlan:
    """Sample from disk, whatever memory would hold; parameters as of `plan_profile`."""
    batch = _batch_bytes(store, sampling)
    held = counts_bytes * store.info.num_nodes + SLACK_BYTES + sampling.threads * _table_bytes(store, sampling)
    held += 2 * _LIST_ID_BYTES * longest_list + SEED_BYTES * store.info.split_sizes["train"]
    # What a share of the rest buys is decided by the rest, so the smallest plan is that of no rest at all.
    smallest = topology_share(store, _BUFFERS * LEAST_BLOCKS * store.info.block_bytes)
    least = held + _share_bytes(smallest) + batch
    if memory_bytes < least:
        return ProfilePlan(least, smallest, 1)
    share = topology_share(store, memory_bytes - held)
    if held + _share_bytes(share) + batch > memory_bytes:
        share = smallest
    room = memory_bytes - held - _share_bytes(share)
    hyperbatch = max(1, min(MOST_HYPERBATCH, room // batch))
    return ProfilePlan(held + _share_bytes(share) + hyperbatch * batch, share, hyperbatch)


def _share_bytes(share: TopologyShare) -> int:
    return share.buffer + share.indptr


def _batch_bytes(store: StoreSizes, sampling: SamplingSizes) -> int:
    """Most bytes of one mini-batch while it is sampled."""
    return _NODE_BYTES * batch_nodes(store.info, sampling) + _EDGE_BYTES * batch_edges(store.info, sampling)


def _table_bytes(store: StoreSizes, sampling: SamplingSizes) -> int:
    """Most bytes of the hash table in which a thread numbers the nodes of a mini-batch."""
    most = min(store.info.num_nodes, batch_edges(store.info, sampling)) + batch_nodes(store.info, sampling)
    return SLOT_BYTES * table_slots(most)
