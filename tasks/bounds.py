"""How much memory sampling can need at most, from plain sizes: no configuration model, no look at the machine."""

from __future__ import annotations

from typing import Protocol

from storage.cache.profile import count_dtype
from storage.expected_store import StoreSizes
from storage.graph_store import INDICES, INDPTR, StoreInfo
from tasks.batch_sizes import most_hops
from tasks.in_flight import most_batch_bytes

WRITTEN_COUNTS = 5
"""Counts a node while an access profile is sampled and written: three kinds, and what is expected of two."""
PROFILE_COUNTS = 7
"""Counts a node of a finished access profile."""
SEED_BYTES = 40
"""Bytes a training node while mini-batches are cut: its id, the order of an epoch and of the one before."""
SCORE_BYTES = 16
"""Bytes a node of the scores of a dynamic cache, and of the copy that an update chooses by."""
_FIXED_BYTES = 3 << 20  # however small the graph is: the adjacency's pieces while they are checked, stacks of threads
_STAMP_BYTES = 8  # a node, in each sampling thread's table
_ID_BYTES = 8
_EDGE_BYTES = 16  # a sampled edge while it is relabelled: global id, local position, draws


class SamplingSizes(Protocol):
    """What decides how large samples get."""

    @property
    def fanouts(self) -> tuple[int, ...]:
        """Neighbors a node, from the input layer to the seed layer; -1 takes all."""

    @property
    def batch_size(self) -> int:
        """Seed nodes a mini-batch."""

    @property
    def superbatch(self) -> int:
        """Mini-batches sampled as one."""

    @property
    def threads(self) -> int:
        """Sampling threads."""

    @property
    def replace(self) -> bool:
        """Whether neighbors are drawn with replacement."""


def topology_bytes(store: StoreSizes) -> int:
    """Return the bytes of the adjacency in memory."""
    return store.nbytes(INDPTR) + store.nbytes(INDICES)


def batch_nodes(info: StoreInfo, sampling: SamplingSizes) -> int:
    """Return the most input nodes that one mini-batch can have."""
    nodes = min(sampling.batch_size, info.num_nodes)
    for fanout in sampling.fanouts:
        nodes *= 1 + (info.num_nodes if fanout < 0 else fanout)
        if nodes >= info.num_nodes:
            return info.num_nodes
    return nodes


def batch_edges(info: StoreInfo, sampling: SamplingSizes) -> int:
    """Return the most edges that one mini-batch can have, all hops together."""
    graph = (info.num_nodes, info.num_edges)
    hops, _ = most_hops(*graph, sampling.fanouts, sampling.batch_size, replace=sampling.replace)
    return sum(hop.num_edges for hop in hops)


def sampling_bytes(info: StoreInfo, sampling: SamplingSizes) -> int:
    """Return the most bytes that sampling ahead takes: a scratch table a thread, and super-batches in flight."""
    in_flight = (sampling.threads + 1) * sampling.superbatch
    batch = _ID_BYTES * batch_nodes(info, sampling) + _EDGE_BYTES * batch_edges(info, sampling)
    return sampling.threads * _STAMP_BYTES * info.num_nodes + in_flight * batch


def superbatch_bytes(info: StoreInfo, sampling: SamplingSizes) -> int:
    """Return the most bytes of a super-batch with the rows of all its mini-batches: what loading reserves for it."""
    graph, row_bytes = (info.num_nodes, info.num_edges), info.feature_row_bytes
    num_seeds = min(sampling.batch_size, info.num_nodes)  # training visits no node twice
    batch = most_batch_bytes(*graph, sampling.fanouts, num_seeds, row_bytes, replace=sampling.replace)
    return sampling.superbatch * batch


def loading_bytes(info: StoreInfo, sampling: SamplingSizes, in_flight_bytes: int) -> int:
    """Return the most bytes that loading ahead takes: scratch tables, what is in flight, the mini-batch in hand."""
    group = superbatch_bytes(info, sampling)
    in_flight = min((sampling.threads + 2) * group, max(in_flight_bytes, group))
    return sampling.threads * _STAMP_BYTES * info.num_nodes + in_flight + group // sampling.superbatch


def count_bytes(num_seeds: int, sampling: SamplingSizes, epochs: int, heldout_epochs: int) -> int:
    """Return the bytes of one count of an access profile over so many epochs."""
    num_batches = -(-num_seeds // sampling.batch_size)
    return count_dtype(num_batches, epochs, heldout_epochs, len(sampling.fanouts)).itemsize


def profile_bytes(info: StoreInfo, sampling: SamplingSizes, num_seeds: int, counts_bytes: int) -> int:
    """Return the most bytes that profiling takes beside the adjacency.

    Parameters
    ----------
    info, sampling
    num_seeds : int
        Nodes to train on.
    counts_bytes : int
        Of all counts of one node.
    """
    return _FIXED_BYTES + sampling_bytes(info, sampling) + counts_bytes * info.num_nodes + SEED_BYTES * num_seeds
