"""How much memory and disk ingest needs, from the sizes that a source declares."""

from __future__ import annotations

from storage.formats.base import CHUNK_BYTES, GraphSource
from storage.ingest import IngestOptions
from tasks.budgets import Estimate

_NODE_BYTES = 96  # while ingesting: offsets, degrees, labels, ids, split draws, and their sorted copies


def ingest_estimate(source: GraphSource, options: IngestOptions, num_nodes: int | None = None) -> Estimate:
    """Bound what ingest needs by the sizes that the source declares.

    Where ids must be discovered first, N is not known yet: then this is what the edges alone need, and is to be
    asked again with `num_nodes` once it is.
    """
    edges = source.approx_edges * (2 if options.symmetrize else 1)
    nodes = num_nodes if num_nodes is not None else source.num_nodes or 0
    ids = ((4 if nodes < 2**31 else 8) + (4 if source.relations is not None else 0)) * edges
    feature_bytes = 4 * source.features.dim if source.features is not None else 0
    return Estimate(
        memory_bytes=ids + _NODE_BYTES * nodes + 16 * CHUNK_BYTES,
        disk_bytes=ids + (_NODE_BYTES // 2 + feature_bytes) * nodes + 16 * options.block_bytes,
    )
