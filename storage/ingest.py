"""Ingest: checks a graph source whole, then writes it as a store, and counts what was found and changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from kernels.rng import Purpose, stream_key, uniform_u64
from storage.csc import Csc, build_csc, count_occurrences
from storage.errors import InputError
from storage.extras import Extras
from storage.features import FeatureFacts, NanPolicy, Normalization, inspect_features, stored_features
from storage.formats.base import GraphSource, IdArray
from storage.graph_store import DEFAULT_BLOCK_BYTES, SPLITS, write_store
from storage.heap import return_freed_memory
from storage.node_ids import number_integers

SplitRule = Literal["provided", "full", "random"]
Task = Literal["auto", "single", "multi"]
Labels = npt.NDArray[np.int64] | npt.NDArray[np.int8]


@dataclass(frozen=True)
class IngestOptions:
    """What to do about the quirks of a graph."""

    symmetrize: bool = False
    """Add the reverse of every edge, and merge duplicates."""
    deduplicate: bool = False
    """Merge repeated edges."""
    self_loops: Literal["keep", "remove"] = "keep"
    """What to do with self loops."""
    nan_policy: NanPolicy = "refuse"
    """What to do with features that are not finite."""
    normalize_features: Normalization = "none"
    """`row` divides each feature row by its sum."""
    split: SplitRule = "provided"
    """`provided`: the source's own; `full`: its validation and test nodes, all other labelled nodes train; `random`."""
    train_fraction: float = 0.6
    """Share of labelled nodes to train on (random)."""
    valid_fraction: float = 0.2
    """Share of labelled nodes to validate on (random); the rest is the test set."""
    split_seed: int = 0
    """Seed of the random split."""
    task: Task = "auto"
    """Whether a node has one class (`single`) or may have several labels (`multi`); `auto`: as the labels look."""
    block_bytes: int = DEFAULT_BLOCK_BYTES
    """Unit of storage I/O."""


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


def ingest(
    source: GraphSource, options: IngestOptions, path: Path, *, on_numbered: Callable[[GraphSource], None] | None = None
) -> IngestReport:
    """Check a graph and write it as a store.

    Everything is checked before anything is written. Edges are read twice (once more where ids must be discovered),
    features twice.

    Parameters
    ----------
    source : GraphSource
    options : IngestOptions
    path : Path
        Store file to write.
    on_numbered : callable, optional
        Given the source once its nodes are numbered, before anything else of their number is made; what it raises
        ends the ingest.

    Returns
    -------
    IngestReport

    Raises
    ------
    InputError
        The input is wrong; the message names file and row and says what to do.
    MachineError
        The disk is full.
    """
    source, num_nodes = _number(source)
    _check_relations(source, options)
    if on_numbered is not None:
        on_numbered(source)
    facts = _check_features(source, num_nodes, options)
    labels = _check_labels(source, num_nodes, options.task)
    splits = _make_splits(source, labels, num_nodes, options)
    return_freed_memory()
    csc = build_csc(
        source.edge_chunks,
        num_nodes,
        symmetrize=options.symmetrize,
        deduplicate=options.deduplicate,
        remove_self_loops=options.self_loops == "remove",
        read_typed=source.relations.chunks if source.relations else None,
        locate=source.edges.locate,
    )
    return_freed_memory()
    out_degree = count_occurrences(csc.indices, num_nodes)
    write_store(
        path,
        indptr=csc.indptr,
        indices=csc.indices,
        features=stored_features(source.features, facts, options.normalize_features) if source.features else None,
        labels=labels,
        label_names=source.labels.names if source.labels else None,
        splits=splits,
        out_degree=out_degree,
        original_ids=source.original_ids,
        extras=_extras(source, csc, num_nodes),
        block_bytes=options.block_bytes,
    )
    return _report(source, csc, out_degree, facts, labels, splits)


def _number(source: GraphSource) -> tuple[GraphSource, int]:
    """The source with its nodes numbered, and how many they are."""
    if source.num_nodes is None:
        numbered = source.number_nodes() if source.number_nodes else number_integers(source.edges)
        parts = {part.name: getattr(numbered, part.name) for part in fields(numbered)}
        source = replace(source, **{name: part for name, part in parts.items() if part is not None})
    if not source.num_nodes:
        raise InputError(f"{source.where} is empty: a graph needs at least one node")
    return source, source.num_nodes


def _check_relations(source: GraphSource, options: IngestOptions) -> None:
    if source.relations is not None and (options.symmetrize or options.deduplicate):
        raise InputError(
            f"{source.where} is a knowledge graph: reversed or merged edges would lose their relations; set "
            "symmetrize=false and deduplicate=false"
        )


def _extras(source: GraphSource, csc: Csc, num_nodes: int) -> Extras:
    """What the store holds beside nodes and edges."""
    for split, links in (source.links or {}).items():
        for pairs in (links.edges, links.negatives):
            if pairs is not None:
                _refuse_outside(pairs, f"{source.where}: the {split} links name", num_nodes)
    return Extras(
        relations=csc.relations,
        relation_names=source.relations.names if source.relations else (),
        links=source.links or {},
        graph_ids=source.graph_ids,
        graph_labels=source.graph_labels,
    )


def _check_features(source: GraphSource, num_nodes: int, options: IngestOptions) -> FeatureFacts:
    if source.features is None:
        return FeatureFacts(0, False, 0)
    return inspect_features(source.features, num_nodes, options.nan_policy)


def _check_labels(source: GraphSource, num_nodes: int, task: Task) -> Labels | None:
    """The labels, of which there must be one a node, or one row a node."""
    if source.labels is None:
        return None
    labels_N, rows_NC = source.labels.labels_N, source.labels.rows_NC
    if len(labels_N) != num_nodes:
        raise InputError(
            f"{source.where} has {len(labels_N)} labels, but {num_nodes} nodes: give one label a node, negative where "
            "there is none"
        )
    if task == "single" and not source.labels.one_class:
        several = np.flatnonzero((np.asarray(rows_NC) == 1).sum(axis=1) > 1)
        what = f"row {several[0]} of the labels names several classes" if len(several) else "some labels are unknown"
        raise InputError(f"{source.where}: {what}: set task=multi, or give one class a node")
    if task == "multi" and rows_NC is None:
        raise InputError(f"{source.where} has one label a node: give rows of 0 and 1, or set task=single")
    return rows_NC if task == "multi" or not source.labels.one_class else labels_N


def _has_label(labels: Labels) -> npt.NDArray[np.bool_]:
    """(N,) whether each node has a class, or any known label."""
    known: npt.NDArray[np.bool_] = np.asarray(labels >= 0)
    return known if labels.ndim == 1 else np.asarray(known.any(axis=1))


def _make_splits(
    source: GraphSource, labels: Labels | None, num_nodes: int, options: IngestOptions
) -> dict[str, npt.NDArray[np.int64]]:
    """Train, valid and test nodes by the rule asked for."""
    labelled = np.arange(num_nodes) if labels is None else np.flatnonzero(_has_label(labels))
    if options.split == "random":
        return _random_splits(labelled, options)
    if source.splits is None and source.links is not None:
        return {split: np.empty(0, np.int64) for split in SPLITS}
    if source.splits is None:
        raise InputError(f"{source.where} brings no split of its own: set split=random")
    splits = {split: _checked_split(source, split, num_nodes) for split in SPLITS}
    if options.split == "full":
        splits["train"] = np.setdiff1d(labelled, np.concatenate([splits["valid"], splits["test"]]))
    return {split: np.intersect1d(nodes, labelled) for split, nodes in splits.items()}


def _checked_split(source: GraphSource, split: str, num_nodes: int) -> npt.NDArray[np.int64]:
    assert source.splits is not None
    nodes: IdArray = source.splits[split]
    _refuse_outside(nodes, f"{source.where}: the {split} split names", num_nodes)
    return nodes.astype(np.int64)


def _refuse_outside(ids: IdArray, subject: str, num_nodes: int) -> None:
    """Name the first id that no node has, and where it stands."""
    outside = np.argwhere((ids < 0) | (ids >= num_nodes))
    if len(outside):
        place = tuple(outside[0])
        raise InputError(
            f"{subject} node {ids[place]}, but ids end at {num_nodes - 1}: correct entry {place[0]} (counted from 0)"
        )


def _random_splits(labelled: npt.NDArray[np.int64], options: IngestOptions) -> dict[str, npt.NDArray[np.int64]]:
    """Order the labelled nodes by a hash of each, and cut."""
    hashes = uniform_u64(stream_key(Purpose.SPLIT, options.split_seed), labelled)
    order = labelled[np.argsort(hashes, kind="stable")]
    train = round(len(order) * options.train_fraction)
    valid = min(len(order), train + round(len(order) * options.valid_fraction))
    return {"train": order[:train], "valid": order[train:valid], "test": order[valid:]}


def _report(
    source: GraphSource,
    csc: Csc,
    out_degree: npt.NDArray[np.int64],
    facts: FeatureFacts,
    labels: Labels | None,
    splits: Mapping[str, IdArray],
) -> IngestReport:
    num_nodes, counts, ids = len(out_degree), csc.counts, source.original_ids
    is_moved = ids is not None and (ids != np.arange(num_nodes) if ids.dtype.kind in "iu" else np.ones(num_nodes))
    return IngestReport(
        num_nodes=num_nodes,
        num_edges=len(csc.indices),
        rows_read=counts.rows_read,
        self_loops_found=counts.self_loops_found,
        self_loops_removed=counts.self_loops_removed,
        reverse_edges_added=counts.reverse_added,
        duplicates_found=counts.duplicates_found,
        duplicates_removed=counts.duplicates_removed,
        ids_remapped=int(np.count_nonzero(is_moved)),
        isolated_nodes=int(np.count_nonzero((np.diff(csc.indptr) == 0) & (out_degree == 0))),
        features_non_finite=facts.non_finite,
        feature_zero_rows=facts.zero_rows,
        unlabelled_nodes=0 if labels is None else int(np.count_nonzero(~_has_label(labels))),
        split_sizes={split: len(nodes) for split, nodes in splits.items()},
        notes=dict(source.notes),
    )
