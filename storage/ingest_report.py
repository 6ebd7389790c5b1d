"""What an ingest found in a graph, and what it changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import numpy as np

from storage.adjacency import Adjacency
from storage.features import FeatureFacts
from storage.formats.base import GraphSource
from storage.scratch_array import ScratchArray
from storage.splits import Labels, Splits, count_labelled


@dataclass(frozen=True)
class IngestReport:
    """What was found in a graph, and what was changed."""

    num_nodes: int
    """Nodes in the store."""
    num_edges: int
    """Edges in the store."""
    rows_read: int
    """Edges in the input."""
    self_loops_found: int
    """Edges from a node to itself in the input."""
    self_loops_removed: int
    """Those dropped on request."""
    reverse_edges_added: int
    """Reverse edges added on request, before duplicates were merged."""
    duplicates_found: int
    """Edges that repeat an earlier one."""
    duplicates_removed: int
    """Those merged on request."""
    ids_remapped: int
    """Nodes whose id in the store is not the one in the input."""
    isolated_nodes: int
    """Nodes without any edge in the store."""
    features_non_finite: int
    """Feature values that were NaN or infinite and are stored as 0."""
    feature_zero_rows: int
    """Nodes whose features are all 0."""
    unlabelled_nodes: int
    """Nodes without a label (0 where the graph has no labels at all)."""
    split_sizes: Mapping[str, int]
    """Nodes in train, valid and test."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """Counts of the format's own."""

    def as_dict(self) -> dict[str, int]:
        """Flatten to one number a name, for logs and metrics."""
        flat = {key: value for key, value in asdict(self).items() if isinstance(value, int)}
        return flat | {f"split_{key}": size for key, size in self.split_sizes.items()} | dict(self.notes)


def report_of(
    source: GraphSource,
    adjacency: Adjacency,
    num_nodes: int,
    facts: FeatureFacts,
    labels: Labels | None,
    splits: Splits,
) -> IngestReport:
    """Count what was found, and what is stored.

    Parameters
    ----------
    source : GraphSource
        Its nodes numbered.
    adjacency : Adjacency
    num_nodes : int
    facts : FeatureFacts
    labels : array, optional
    splits : mapping
    """
    counts = adjacency.counts
    return IngestReport(
        num_nodes=num_nodes,
        num_edges=adjacency.indices.shape[0],
        rows_read=counts.rows_read,
        self_loops_found=counts.self_loops_found,
        self_loops_removed=counts.self_loops_removed,
        reverse_edges_added=counts.reverse_added,
        duplicates_found=counts.duplicates_found,
        duplicates_removed=counts.duplicates_removed,
        ids_remapped=_count_remapped(source.original_ids),
        isolated_nodes=adjacency.isolated_nodes,
        features_non_finite=facts.non_finite,
        feature_zero_rows=facts.zero_rows,
        unlabelled_nodes=num_nodes - count_labelled(labels, num_nodes),
        split_sizes={split: len(nodes) for split, nodes in splits.items()},
        notes=dict(source.notes),
    )


def _count_remapped(original_ids: ScratchArray | None) -> int:
    """Nodes whose id in the store is not the one in the input."""
    if original_ids is None or original_ids.dtype.kind not in "iu":
        return 0 if original_ids is None else len(original_ids)
    remapped = start = 0
    for ids in original_ids.chunks():
        remapped += int(np.count_nonzero(ids != np.arange(start, start + len(ids))))
        start += len(ids)
    return remapped
