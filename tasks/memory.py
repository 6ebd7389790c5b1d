"""How much memory and disk ingest needs, from the sizes that a source declares."""

from __future__ import annotations

from storage.formats.base import CHUNK_BYTES, GraphSource
from storage.ingest import IngestOptions
from tasks.budgets import Estimate

_NODE_BYTES = 96  # while ingesting: offsets, degrees, labels, ids, split draws, and their sorted copies
_TEXT_COPIES = 3  # of names: as read, as stored, and an encoded copy of those that are no bytes yet


def ingest_estimate(source: GraphSource, options: IngestOptions) -> Estimate:
    """Bound what ingest needs by the sizes that the source declares.

    Where ids must be discovered first, N is not known yet: then this is what the edges alone need, and is to be
    asked again with the numbered source.
    """
    edges = source.approx_edges * (2 if options.symmetrize else 1)
    nodes, text = source.num_nodes or 0, _text_bytes(source)
    ids = ((4 if nodes < 2**31 else 8) + (4 if source.relations is not None else 0)) * edges
    feature_bytes = 4 * source.features.dim if source.features is not None else 0
    return Estimate(
        memory_bytes=ids + _NODE_BYTES * nodes + _TEXT_COPIES * text + _link_bytes(source) + 16 * CHUNK_BYTES,
        disk_bytes=ids
        + (_NODE_BYTES // 2 + feature_bytes) * nodes
        + text
        + _link_bytes(source)
        + 16 * options.block_bytes,
    )


def _text_bytes(source: GraphSource) -> int:
    """Bytes of the nodes' names, each as long as the longest."""
    names = source.original_ids
    return 0 if names is None or names.dtype.kind in "iu" else names.nbytes


def _link_bytes(source: GraphSource) -> int:
    """Bytes of the edges held out, and of the pairs to rank them against."""
    parts = [part for links in (source.links or {}).values() for part in vars(links).values() if part is not None]
    return sum(part.nbytes for part in parts)
