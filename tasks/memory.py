"""How much memory sampling needs: the bounds that stages add up before they start."""

from __future__ import annotations

from conf.schema import SamplingConfig
from storage.formats.base import CHUNK_BYTES, GraphSource
from storage.graph_store import INDICES, INDPTR, GraphStore, StoreInfo
from storage.ingest import IngestOptions
from tasks.budgets import Estimate

COUNT_BYTES = 8 * 8
"""Bytes a node of an access profile while it is counted: two sets of three int64 counts, and what they become."""
_NODE_BYTES = 96  # while ingesting: offsets, degrees, labels, ids, split draws, and their sorted copies
_STAMP_BYTES = 8  # a node, in each sampling thread's table
_ID_BYTES = 8
_EDGE_BYTES = 16  # a sampled edge while it is relabelled: global id, local position, draws


def ingest_estimate(source: GraphSource, options: IngestOptions) -> Estimate:
    """Bound what ingest needs by the sizes that the source declares (ids that must be discovered: two an edge)."""
    edges = source.approx_edges * (2 if options.symmetrize else 1)
    nodes = source.num_nodes if source.num_nodes is not None else 2 * source.approx_edges
    ids = (4 if nodes < 2**31 else 8) * edges
    feature_bytes = 4 * source.features.dim if source.features is not None else 0
    return Estimate(
        memory_bytes=ids + _NODE_BYTES * nodes + 16 * CHUNK_BYTES,
        disk_bytes=ids + (_NODE_BYTES // 2 + feature_bytes) * nodes + 16 * options.block_bytes,
    )


def topology_bytes(store: GraphStore) -> int:
    """Return the bytes of the adjacency in memory."""
    return store.nbytes(INDPTR) + store.nbytes(INDICES)


def batch_nodes(info: StoreInfo, sampling: SamplingConfig) -> int:
    """Return the most input nodes that one mini-batch can have."""
    nodes = sampling.batch_size
    for fanout in sampling.fanouts:
        nodes *= 1 + (info.num_nodes if fanout < 0 else fanout)
        if nodes >= info.num_nodes:
            return info.num_nodes
    return nodes


def batch_edges(info: StoreInfo, sampling: SamplingConfig) -> int:
    """Return the most edges that one mini-batch can have, all hops together."""
    edges, nodes = 0, min(sampling.batch_size, info.num_nodes)
    for fanout in reversed(sampling.fanouts):
        hop = info.num_edges if fanout < 0 else nodes * fanout
        if not sampling.replace:
            hop = min(hop, info.num_edges)
        edges += hop
        nodes = min(nodes + hop, info.num_nodes)
    return edges


def sampling_bytes(info: StoreInfo, sampling: SamplingConfig) -> int:
    """Return the most bytes that sampling ahead takes: a scratch table a thread, and super-batches in flight."""
    in_flight = (sampling.threads + 1) * sampling.superbatch
    batch = _ID_BYTES * batch_nodes(info, sampling) + _EDGE_BYTES * batch_edges(info, sampling)
    return sampling.threads * _STAMP_BYTES * info.num_nodes + in_flight * batch


def profile_bytes(info: StoreInfo, sampling: SamplingConfig) -> int:
    """Return the most bytes that profiling takes beside the adjacency."""
    return sampling_bytes(info, sampling) + COUNT_BYTES * info.num_nodes
