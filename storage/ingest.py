"""Ingest: checks a graph source whole, then writes it as a store, and counts what was found and changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from storage.adjacency import explained, sorted_edges
from storage.blocks.writer import ArrayStream, watched
from storage.disk_full import explaining_full_disk
from storage.errors import InputError
from storage.extras import Extras
from storage.features import FeatureFacts, NanPolicy, Normalization, inspect_features, stored_features
from storage.formats.base import GraphSource
from storage.graph_store import DEFAULT_BLOCK_BYTES, write_store
from storage.heap import return_freed_memory
from storage.ingest_report import IngestReport, report_of
from storage.keyed_rows import OneRowEach, in_node_order
from storage.leftovers import scratch_directory
from storage.numbering import Room, labelled, numbered
from storage.progress import OpenProgress, no_progress
from storage.splits import Labels, SplitRule, Splits, provided_splits, random_splits, refuse_outside

Task = Literal["auto", "single", "multi"]


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


def ingest(
    source: GraphSource,
    options: IngestOptions,
    path: Path,
    *,
    plan: Callable[[GraphSource], int | None] = lambda _: None,
    room: Room | None = None,
    progress: OpenProgress = no_progress,
) -> IngestReport:
    """Check a graph and write it as a store.

    Everything is checked before anything of the store is written. Edges are read twice, or once where they are sorted
    in scratch files (once more where ids must be discovered), features twice. The store is the same either way.

    Parameters
    ----------
    source : GraphSource
    options : IngestOptions
    path : Path
        Store file to write; scratch files go beside it.
    plan : callable
        Given the source once its nodes are numbered, before anything else of their number is made, and again once
        labels by id are read: the bytes of memory to sort edges with in scratch files, or None to sort them in memory.
        What it raises ends the ingest.
    room : Room, optional
        What numbering the nodes may take, where that takes a pass over the edges.
    progress : callable
        Opens a display for each pass over edges and features.

    Returns
    -------
    IngestReport

    Raises
    ------
    BudgetError
        `room` has too little disk; names what will do.
    InputError
        The input is wrong; the message names file and row and says what to do.
    MachineError
        The disk is full.
    """
    with explaining_full_disk(path), contextlib.ExitStack() as stack:
        if source.num_nodes is None:
            folder = stack.enter_context(scratch_directory(path.parent, "numbering-"))
            source = numbered(source, folder, room, progress)
        if source.read_labels is not None:
            plan(source)
            source = labelled(source)
        work_bytes = plan(source)
        return _ingest_numbered(source, options, path, work_bytes, progress)


def _ingest_numbered(
    source: GraphSource, options: IngestOptions, path: Path, work_bytes: int | None, progress: OpenProgress
) -> IngestReport:
    num_nodes = source.num_nodes
    if not num_nodes:
        raise InputError(f"{source.where} is empty: a graph needs at least one node")
    _check_relations(source, options)
    labels = _check_labels(source, num_nodes, options.task)
    splits = _make_splits(source, labels, num_nodes, options)
    facts = _check_features(source, num_nodes, options, progress)
    return_freed_memory()
    with (
        explained(source, num_nodes),
        sorted_edges(
            source,
            num_nodes,
            path.parent,
            work_bytes,
            symmetrize=options.symmetrize,
            deduplicate=options.deduplicate,
            remove_self_loops=options.self_loops == "remove",
            progress=progress,
        ) as adjacency,
        _stored_features(source, num_nodes, facts, options, path.parent, work_bytes) as features,
    ):
        if source.needs_edges and not adjacency.counts.rows_read:
            raise InputError(f"{source.where} holds no edges: check the file, or set data.num_nodes if that is meant")
        write_store(
            path,
            indptr=adjacency.indptr,
            indices=watched(adjacency.indices, progress, "writing adjacency lists"),
            features=watched(features, progress, "writing features") if features else None,
            labels=labels,
            label_names=source.labels.names if source.labels else None,
            splits=splits,
            out_degree=adjacency.out_degree,
            original_ids=source.original_ids.stream() if source.original_ids else None,
            extras=_extras(source, adjacency.relations, num_nodes),
            block_bytes=options.block_bytes,
        )
    return report_of(source, adjacency, num_nodes, facts, labels, splits)


def _check_relations(source: GraphSource, options: IngestOptions) -> None:
    if source.relations is not None and (options.symmetrize or options.deduplicate):
        raise InputError(
            f"{source.where} is a knowledge graph: reversed or merged edges would lose their relations; set "
            "symmetrize=false and deduplicate=false"
        )


def _extras(source: GraphSource, relations: ArrayStream | None, num_nodes: int) -> Extras:
    """What the store holds beside nodes and edges."""
    for split, links in (source.links or {}).items():
        for ids in links.nodes().values():
            refuse_outside(ids, f"{source.where}: the {split} links name", num_nodes)
    return Extras(
        relations=relations,
        relation_names=source.relations.names if source.relations else (),
        links=source.links or {},
        graph_ids=source.graph_ids,
        graph_labels=source.graph_labels,
    )


def _check_features(
    source: GraphSource, num_nodes: int, options: IngestOptions, progress: OpenProgress
) -> FeatureFacts:
    table = source.features
    if table is None:
        return FeatureFacts(0, False, 0)
    if table.keyed is None:
        return inspect_features(table, num_nodes, options.nan_policy, progress)
    each, keyed = OneRowEach(num_nodes, table.where, source.name_of), table.keyed
    in_file_order = replace(table, num_rows=num_nodes, chunks=lambda: each.watch(keyed()))
    facts = inspect_features(in_file_order, num_nodes, options.nan_policy, progress)
    return replace(facts, in_order=each.in_order)


@contextlib.contextmanager
def _stored_features(
    source: GraphSource,
    num_nodes: int,
    facts: FeatureFacts,
    options: IngestOptions,
    folder: Path,
    work_bytes: int | None,
) -> Iterator[ArrayStream | None]:
    """Features as they are stored; rows that come in another order than their nodes are sorted in scratch files."""
    table = source.features
    if table is None or table.keyed is None:
        yield stored_features(table, facts, options.normalize_features) if table else None
        return
    keyed = table.keyed
    with contextlib.nullcontext(folder) if facts.in_order else scratch_directory(folder, "rows-") as scratch:

        def chunks() -> Iterator[npt.NDArray[Any]]:
            if facts.in_order:
                return (rows for _, rows in keyed())
            return in_node_order(keyed(), num_nodes, scratch, work_bytes)

        yield stored_features(replace(table, num_rows=num_nodes, chunks=chunks), facts, options.normalize_features)


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


def _make_splits(source: GraphSource, labels: Labels | None, num_nodes: int, options: IngestOptions) -> Splits:
    """Train, valid and test nodes by the rule asked for."""
    if options.split != "random":
        return provided_splits(source, labels, num_nodes, full=options.split == "full")
    return random_splits(
        labels,
        num_nodes,
        train_fraction=options.train_fraction,
        valid_fraction=options.valid_fraction,
        seed=options.split_seed,
    )
