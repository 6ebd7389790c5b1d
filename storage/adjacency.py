"""The edges of a source, sorted into adjacency lists: in memory, or in scratch files; the same lists either way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.blocks.writer import ArrayStream, as_stream
from storage.csc import Csc, EdgeCounts, NodeRangeError, build_csc, count_occurrences
from storage.csc_external import build_external_csc
from storage.errors import InputError
from storage.formats.base import GraphSource
from storage.heap import return_freed_memory
from storage.leftovers import scratch_directory
from storage.progress import OpenProgress


@dataclass(frozen=True)
class Adjacency:
    """The sorted edges; each stream can be read once."""

    indptr: ArrayStream
    """(N + 1,) int64 offsets."""
    indices: ArrayStream
    """(E,) source ids, row by row."""
    out_degree: ArrayStream
    """(N,) int64: how many rows name each node."""
    relations: ArrayStream | None
    """(E,) int32 relation of each entry of `indices`."""
    counts: EdgeCounts
    """What was found and changed."""
    isolated_nodes: int
    """Nodes without any edge."""


@contextlib.contextmanager
def sorted_edges(
    source: GraphSource,
    num_nodes: int,
    folder: Path,
    work_bytes: int | None,
    *,
    symmetrize: bool,
    deduplicate: bool,
    remove_self_loops: bool,
    progress: OpenProgress,
) -> Iterator[Adjacency]:
    """Sort the edges of a source, in memory where `work_bytes` is None; scratch files in `folder` are gone at the end.

    Raises
    ------
    InputError
        An id is outside [0, num_nodes), or the edges changed while they were read.
    """
    options: dict[str, bool] = {
        "symmetrize": symmetrize, "deduplicate": deduplicate, "remove_self_loops": remove_self_loops
    }  # fmt: skip
    read_typed, locate = source.relations.chunks if source.relations else None, source.edges.locate
    if work_bytes is None:
        csc = build_csc(
            source.edge_chunks,
            num_nodes,
            read_typed=read_typed,
            locate=locate,
            approx_edges=source.approx_edges,
            progress=progress,
            **options,
        )
        yield _in_memory(csc, num_nodes)
        return
    with scratch_directory(folder, "edges-") as scratch:
        external = build_external_csc(
            source.edge_chunks,
            num_nodes,
            scratch,
            approx_edges=source.approx_edges,
            work_bytes=work_bytes,
            read_typed=read_typed,
            locate=locate,
            progress=progress,
            **options,
        )
        yield Adjacency(
            external.indptr(),
            external.indices.stream(),
            external.out_degree.stream(),
            external.relations.stream() if external.relations else None,
            external.counts,
            external.isolated_nodes,
        )


@contextlib.contextmanager
def explained(source: GraphSource, num_nodes: int) -> Iterator[None]:
    """Say what may be meant where edges name nodes that are not there; finding out takes another pass over them.

    Raises
    ------
    InputError
        In place of `NodeRangeError`.
    """
    try:
        yield
    except NodeRangeError as error:
        if not source.ids_are_rows:
            raise
        ends = [(min(src.min(), dst.min()), max(src.max(), dst.max())) for src, dst in source.edge_chunks() if len(src)]
        lowest, highest = min(low for low, _ in ends), max(high for _, high in ends)
        if (lowest, highest) == (1, num_nodes):
            raise InputError(
                f"{source.where}: ids start at 1 and end at {num_nodes}, but row 0 of features and labels is node 0: "
                "subtract 1 from the ids, or give features and labels an id column (--id-column, data.id_column)"
            ) from error
        raise InputError(
            f"{error}. Ids run from {lowest} to {highest}; where they are no row numbers, give features and labels an "
            "id column (--id-column, data.id_column)"
        ) from error


def _in_memory(csc: Csc, num_nodes: int) -> Adjacency:
    return_freed_memory()
    out_degree = count_occurrences(csc.indices, num_nodes)
    isolated = int(np.count_nonzero((np.diff(csc.indptr) == 0) & (out_degree == 0)))
    relations = as_stream(csc.relations) if csc.relations is not None else None
    streams = as_stream(csc.indptr), as_stream(csc.indices), as_stream(out_degree)
    return Adjacency(*streams, relations, csc.counts, isolated)
