"""How much memory and disk ingest needs, from the sizes that a source declares."""

from __future__ import annotations

from storage.formats.base import CHUNK_BYTES, GraphSource
from storage.ingest import IngestOptions
from tasks.budgets import Estimate

_NODE_BYTES = 96  # while ingesting: offsets, degrees, labels, ids, split draws, and their sorted copies


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
