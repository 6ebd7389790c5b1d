"""How sampling for a profile keeps within a budget: with the adjacency in memory, or read block by block."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.cpu.bits import bits_bytes
from storage.blocks.buffer import LEAST_BLOCKS
from storage.blocks.hyperbatch import FRONTIER_BYTES, edge_bytes
from storage.blocks.wide_rows import draw_bytes
from storage.cache.pre_sampling import WORK_BYTES
from storage.csc import id_dtype
from storage.expected_store import StoreSizes
from tasks.batch_sizes import most_hops
from tasks.bounds import SEED_BYTES, SamplingSizes, profile_bytes, topology_bytes
from tasks.hyperbatch_size import MOST_HYPERBATCH
from tasks.storage_need import SLACK_BYTES, TopologyShare, topology_share

_LEAST_WORK_BYTES = 1 << 20
_WORK_SHARE = 8  # neighbors that are drawn get one part of what a budget leaves
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
    work_bytes: int = WORK_BYTES
    """Memory from disk while neighbors are drawn."""


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
    batch, least_work = _batch_bytes(store, sampling), _least_work_bytes(store, sampling, longest_list)
    held = counts_bytes * store.info.num_nodes + SLACK_BYTES + SEED_BYTES * store.info.split_sizes["train"]
    held += 2 * _LIST_ID_BYTES * longest_list + draw_bytes(_most_drawn(sampling, longest_list), sampling.threads)
    # What a share of the rest buys is decided by the rest, so the smallest plan is that of no rest at all.
    smallest = topology_share(store, _BUFFERS * LEAST_BLOCKS * store.info.block_bytes)
    least = held + _share_bytes(smallest) + least_work + batch
    if memory_bytes < least:
        return ProfilePlan(least, smallest, 1, least_work)
    share = topology_share(store, memory_bytes - held)
    if held + _share_bytes(share) + least_work + batch > memory_bytes:
        share = smallest
    room = memory_bytes - held - _share_bytes(share)
    work = max(least_work, min(WORK_BYTES, room // _WORK_SHARE, room - batch))
    hyperbatch = _even(store, sampling, min(MOST_HYPERBATCH, (room - work) // batch))
    return ProfilePlan(held + _share_bytes(share) + work + hyperbatch * batch, share, hyperbatch, work)


def _share_bytes(share: TopologyShare) -> int:
    return share.buffer + share.indptr


def _even(store: StoreSizes, sampling: SamplingSizes, most: int) -> int:
    """Mini-batches of hyperbatches that cut an epoch into equal parts, at most so many."""
    num_batches = max(1, -(-store.info.split_sizes["train"] // sampling.batch_size))
    return -(-num_batches // -(-num_batches // most))


def _batch_bytes(store: StoreSizes, sampling: SamplingSizes) -> int:
    """Most bytes of one mini-batch: a bit a node, the nodes it expands, and one of them while that is expanded."""
    info = store.info
    graph = (info.num_nodes, info.num_edges)
    hops, _ = most_hops(*graph, sampling.fanouts, sampling.batch_size, replace=sampling.replace)
    frontier = max((hop.num_dst for hop in hops), default=0)
    return bits_bytes(info.num_nodes) + id_dtype(info.num_nodes).itemsize * frontier + FRONTIER_BYTES


def _least_work_bytes(store: StoreSizes, sampling: SamplingSizes, longest_list: int) -> int:
    """The least memory for neighbors that are drawn: those of one node fit the half of it that is for edges."""
    edges = _most_drawn(sampling, longest_list)
    return max(_LEAST_WORK_BYTES, 2 * edge_bytes(id_dtype(store.info.num_nodes).itemsize) * edges)


def _most_drawn(sampling: SamplingSizes, longest_list: int) -> int:
    """Neighbors that are drawn of one list at most; where all are taken, a long list comes in parts."""
    return max((fanout if sampling.replace else min(fanout, longest_list) for fanout in sampling.fanouts), default=0)
