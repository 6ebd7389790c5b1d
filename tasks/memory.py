"""How much memory and disk ingest needs, from the sizes that a source declares, and how it keeps within a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from storage.csc import id_dtype
from storage.csc_external import LEAST_WORK_BYTES, external_csc_disk_bytes
from storage.distinct_keys import LEAST_WORK_BYTES as LEAST_NUMBERING_BYTES
from storage.formats.base import CHUNK_BYTES, GraphSource
from storage.id_hash import HashIndex
from storage.ingest import IngestOptions
from storage.keyed_rows import LEAST_SPILL_BYTES, spill_disk_bytes, spill_memory_bytes
from storage.node_ids import index_bytes
from storage.numbering import Room
from storage.splits import labels_nbytes
from tasks.budgets import Budgets, Estimate, available_memory

_NODE_BYTES = 96  # while sorting in memory: offsets, degrees, labels, ids, split draws, and their sorted copies
_FILE_NODE_BYTES = 48  # in the store: offsets, degrees, label, ids, split
_MORE_SORTING_BYTES = 64 << 20
"""What the sort in scratch files may take beyond the least however small the graph is: it is faster with more."""


@dataclass(frozen=True)
class IngestPlan:
    """How ingest sorts edges, and what it needs in all."""

    estimate: Estimate
    """Memory and disk."""
    work_bytes: int | None
    """Memory to sort edges with in scratch files; None: they are sorted in memory."""


def plan_ingest(source: GraphSource, options: IngestOptions, memory_bytes: int) -> IngestPlan:
    """Sort in memory where that fits into `memory_bytes`, else in scratch files with what is left of it.

    Where not even that fits, the plan is the smallest there is, above `memory_bytes`.
    """
    in_memory = ingest_estimate(source, options)
    if in_memory.memory_bytes <= memory_bytes:
        return IngestPlan(in_memory, None)
    held, edges = _held_bytes(source), ingested_edges(source, options)
    columns, nodes = 3 if source.relations is not None else 2, source.num_nodes or 0
    enough = 8 * (columns - 1) * edges + 16 * nodes + _MORE_SORTING_BYTES
    row_sort = _row_sort_bytes(source).memory_bytes
    least = max(LEAST_WORK_BYTES, LEAST_SPILL_BYTES if row_sort else 0)
    work_bytes = min(max(enough, row_sort), max(least, memory_bytes - held))
    scratch = external_csc_disk_bytes(edges, nodes, columns)
    sorted_bytes = scratch * (columns - 1) // (2 * columns - 1)
    disk = max(scratch, sorted_bytes + 16 * nodes + in_memory.disk_bytes)
    memory = max(held + work_bytes, _opening_bytes(source), _numbering_bytes(source))
    return IngestPlan(
        Estimate(
            memory_bytes=memory,
            disk_bytes=disk,
            held_memory_bytes=_there_bytes(source),
            is_final=_is_final(source),
        ),
        work_bytes,
    )


def numbering_room(budgets: Budgets, directory: Path, held_bytes: int = 0) -> Room:
    """What numbering nodes may take, of disk where that has a budget and `held_bytes` of it are there already."""
    disk = None if budgets.disk_bytes is None else budgets.free_disk_bytes(directory, held_bytes)
    return Room(budgets.memory_bytes(), disk, held_bytes)


def ingest_planner(options: IngestOptions, budgets: Budgets, folder: Path) -> Callable[[GraphSource], int | None]:
    """Give the plan of an ingest into `folder` as `ingest` takes it; it refuses what does not fit."""
    free = available_memory()  # less is free once nodes are numbered, and what is not is this stage's own

    def plan(source: GraphSource) -> int | None:
        planned = plan_ingest(source, options, budgets.memory_bytes(free))
        budgets.check("ingest", planned.estimate, folder, free_memory=free)
        return planned.work_bytes

    return plan


def ingest_estimate(source: GraphSource, options: IngestOptions) -> Estimate:
    """Bound what ingest in memory needs by the sizes that the source declares.

    Where ids must be discovered first, N is not known yet: then this is what the edges alone need, and is to be
    asked again with the numbered source.
    """
    nodes, text = source.num_nodes or 0, _text_bytes(source)
    id_bytes = id_dtype(nodes).itemsize + (4 if source.relations is not None else 0)
    ids = id_bytes * ingested_edges(source, options)
    feature_bytes = 4 * source.features.dim if source.features is not None else 0
    row_sort = _row_sort_bytes(source)
    chunks = max(16 * CHUNK_BYTES, row_sort.memory_bytes + source.chunk_bytes)
    rows = _label_row_bytes(source)
    held = ids + _NODE_BYTES * nodes + rows + _map_bytes(source) + _link_bytes(source)
    return Estimate(
        memory_bytes=max(held + chunks, _numbering_bytes(source)),
        disk_bytes=ids
        + _scratch_disk_bytes(source)
        + (_FILE_NODE_BYTES + feature_bytes) * nodes
        + rows
        + text
        + _link_bytes(source)
        + 16 * options.block_bytes,
        held_memory_bytes=_there_bytes(source),
        is_final=_is_final(source),
    )


def ingested_bytes(source: GraphSource, options: IngestOptions) -> int:
    """Bound the store that ingest leaves."""
    return ingest_estimate(source, options).disk_bytes - _scratch_disk_bytes(source)


def ingested_edges(source: GraphSource, options: IngestOptions) -> int:
    """About how many edges ingest writes."""
    return source.approx_edges * (2 if options.symmetrize else 1)


def _is_final(source: GraphSource) -> bool:
    """Whether the nodes are known."""
    return source.num_nodes is not None and source.read_labels is None


def _row_sort_bytes(source: GraphSource) -> Estimate:
    """What bringing features into the order of the nodes takes, where their rows name the nodes."""
    table = source.features
    if table is None or table.keyed is None:
        return Estimate(0, 0)
    rows = (table.num_rows, table.dtype.itemsize * table.dim)
    return Estimate(spill_memory_bytes(*rows), spill_disk_bytes(*rows))


def _scratch_disk_bytes(source: GraphSource) -> int:
    """Disk of what is there while the store is written: rows that wait, and ids with a hash each."""
    hashes = 8 * (len(source.original_ids) if source.original_ids is not None else 0)
    return _row_sort_bytes(source).disk_bytes + _text_bytes(source) + hashes


def _held_bytes(source: GraphSource) -> int:
    """Bytes that ingest holds beside the sort: what the source has in memory, the splits, and chunks on their way."""
    nodes = source.num_nodes or 0
    splits = (source.splits or {}).values()
    split_bytes = sum(part.nbytes for part in splits) + id_dtype(nodes).itemsize * nodes
    graphs = source.graph_ids.nbytes if source.graph_ids is not None else 0
    held = _label_bytes(source) + split_bytes + _map_bytes(source) + graphs + _link_bytes(source) + source.held_bytes
    return held + nodes // 8 + source.chunk_bytes


def _there_bytes(source: GraphSource) -> int:
    """Bytes of it that are in memory as soon as there is a source."""
    return labels_nbytes(source) + sum(part.nbytes for part in (source.splits or {}).values())


def _opening_bytes(source: GraphSource) -> int:
    """Bytes that reading labels and cutting splits takes, before any edge is read."""
    largest = max((len(part) for part in (source.splits or {}).values()), default=0)
    drawn = 3 * source.held_bytes  # what a reader makes of hashes of all nodes takes so much meanwhile
    nodes = source.num_nodes or 0
    return _label_bytes(source) + _map_bytes(source) + 8 * nodes + 32 * largest + drawn + source.chunk_bytes


def _numbering_bytes(source: GraphSource) -> int:
    """Bytes that numbering the nodes takes at least, where they have, or had, to be."""
    known = source.num_nodes is not None and source.number_nodes is None and source.original_ids is None
    return 0 if known else source.chunk_bytes + LEAST_NUMBERING_BYTES


def _label_bytes(source: GraphSource) -> int:
    """Bytes of the labels, also where they are still to be read."""
    return 4 * (source.num_nodes or 0) if source.read_labels is not None else labels_nbytes(source)


def _map_bytes(source: GraphSource) -> int:
    """Bytes of what finds the nodes of ids."""
    ids = source.original_ids
    if ids is None or not len(ids):
        return 0
    return (
        index_bytes(len(ids), int(ids[0]), int(ids[-1])) if ids.dtype.kind in "iu" else HashIndex.nbytes_for(len(ids))
    )


def _label_row_bytes(source: GraphSource) -> int:
    """Bytes of labels where a node may have several."""
    return 0 if source.labels is None or source.labels.rows_NC is None else source.labels.rows_NC.nbytes


def _text_bytes(source: GraphSource) -> int:
    """Bytes of the nodes' names, each as long as the longest."""
    names = source.original_ids
    return 0 if names is None or names.dtype.kind in "iu" else names.nbytes


def _link_bytes(source: GraphSource) -> int:
    """Bytes of the edges held out, and of the pairs to rank them against."""
    parts = [part for links in (source.links or {}).values() for part in vars(links).values() if part is not None]
    return sum(part.nbytes for part in parts)
