"""CSC of more edges than fit memory: spilled by ranges of destinations, each range sorted by itself and appended.

The edges are read once. A range that does not fit is split again, down to the list of one node, which is in order as it
stands. So the result is that of `build_csc`, entry for entry, whatever the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cpu.edge_ranges import count_between, count_rows, fill_rows, merge_duplicates, merge_list
from storage.blocks.writer import ArrayStream
from storage.csc import EdgeCounts, empty_ids, id_dtype, out_of_range
from storage.edge_spill import NO_RELATIONS, EdgeSpill, SpilledRange, write_exactly
from storage.formats.base import EdgeChunk, TypedChunk, read_ahead
from storage.progress import OpenProgress, no_progress
from storage.scratch_array import ScratchArray

_PART_BYTES = 1 << 15
"""Least memory for the write buffer of a range."""
_MOST_PARTS = 1 << 12
LEAST_WORK_BYTES = 4 << 20
"""Least memory to sort in, on top of a bit a node."""


@dataclass(frozen=True)
class ExternalCsc:
    """In-adjacency of a graph in scratch files."""

    num_nodes: int
    """N."""
    indices: ScratchArray
    """(E,) source ids, row by row."""
    in_degree: ScratchArray
    """(N,) int64 lengths of the rows."""
    out_degree: ScratchArray
    """(N,) int64: how many rows name each node."""
    relations: ScratchArray | None
    """(E,) int32 relation of each entry of `indices`."""
    counts: EdgeCounts
    """What was found and changed."""
    isolated_nodes: int
    """Nodes without any edge."""

    def indptr(self) -> ArrayStream:
        """(N + 1,) int64 offsets."""

        def chunks() -> Iterator[npt.NDArray[np.int64]]:
            yield np.zeros(1, np.int64)
            end = 0
            for degrees in self.in_degree.chunks():
                ends = end + np.cumsum(degrees)
                end = int(ends[-1])
                yield ends

        return ArrayStream((self.num_nodes + 1,), np.dtype(np.int64), chunks())


def build_external_csc(
    read_chunks: Callable[[], Iterable[EdgeChunk]],
    num_nodes: int,
    folder: Path,
    *,
    approx_edges: int,
    work_bytes: int,
    symmetrize: bool = False,
    deduplicate: bool = False,
    remove_self_loops: bool = False,
    read_typed: Callable[[], Iterable[TypedChunk]] | None = None,
    locate: Callable[[int], str] = "the edges, row {}".format,
    progress: OpenProgress = no_progress,
) -> ExternalCsc:
    """Build the CSC of a stream of edges in files; the same entries as `build_csc` finds.

    Parameters
    ----------
    read_chunks, num_nodes, symmetrize, deduplicate, remove_self_loops, read_typed, locate
        As for `build_csc`.
    folder : Path
        Directory for scratch files: up to twice the ids of all edges, and 16 bytes a node.
    approx_edges : int
        About how many edges there are: decides how many files they go to.
    work_bytes : int
        Memory to use beside a bit a node and what the reader holds; at least `LEAST_WORK_BYTES`.
    progress : callable
        Opens a display for each pass.

    Returns
    -------
    ExternalCsc

    Raises
    ------
    InputError
        An id is outside [0, num_nodes).
    """
    columns = 2 if read_typed is None else 3
    bytes_to_sort = 8 * (columns - 1) * approx_edges * (2 if symmetrize else 1) + 16 * num_nodes
    spill = EdgeSpill(
        folder,
        0,
        num_nodes,
        num_nodes=num_nodes,
        columns=columns,
        parts=_num_parts(bytes_to_sort, work_bytes),
        buffer_bytes=work_bytes,
    )
    typed = read_typed() if read_typed else ((src, dst, NO_RELATIONS) for src, dst in read_chunks())
    with progress("reading edges", "edges") as advance:
        for src, dst, relation in read_ahead(typed):
            if not spill.add(src, dst, relation, reverse_too=symmetrize, skip_loops=remove_self_loops):
                before, bad = spill.found.rows - spill.found.bad_position, spill.found.bad_position
                raise out_of_range(src, dst, bad, before, num_nodes, locate)
            del src, dst, relation  # before the next chunk but one is read
            advance(spill.found.rows, max(approx_edges, spill.found.rows))
    found, ranges = spill.found, spill.finish()
    del spill  # and its buffers
    counts = EdgeCounts(
        rows_read=found.rows,
        self_loops_found=found.self_loops,
        self_loops_removed=found.self_loops if remove_self_loops else 0,
        reverse_added=found.rows - found.self_loops if symmetrize else 0,
        duplicates_found=0,
        duplicates_removed=0,
    )
    sorter = _RangeSorter(folder, num_nodes, work_bytes, merge=symmetrize or deduplicate)
    return sorter.finish(ranges, counts, progress)


def external_csc_disk_bytes(num_edges: int, num_nodes: int, columns: int = 2) -> int:
    """Most bytes of scratch that `build_external_csc` writes, `num_edges` with the reverse ones it adds."""
    # While the last range is sorted all but it are sorted already, and their spilled edges are gone.
    return (columns + columns - 1) * id_dtype(num_nodes).itemsize * num_edges + 16 * num_nodes


def _num_parts(bytes_to_sort: int, work_bytes: int) -> int:
    """How many ranges to make so that each is likely to fit, and each has a buffer worth writing."""
    return min(_MOST_PARTS, max(2, work_bytes // _PART_BYTES), max(1, 2 * bytes_to_sort // work_bytes))


class _RangeSorter:
    """Sorts spilled ranges in ascending order and appends them to the files of the result."""

    def __init__(self, folder: Path, num_nodes: int, work_bytes: int, *, merge: bool) -> None:
        self._folder, self._num_nodes, self._work_bytes, self._merge = folder, num_nodes, work_bytes, merge
        self._seen = np.zeros(num_nodes // 64 + 1, np.uint64)
        self._edges_before = self._edges_after = self._duplicates = 0
        self._paths = {name: folder / name for name in ("indices", "in-degree", "out-degree", "relations")}

    def finish(self, ranges: list[SpilledRange], counts: EdgeCounts, progress: OpenProgress) -> ExternalCsc:
        """Sort all ranges, then count how many lists name each node."""
        columns = ranges[0].columns
        for path in self._paths.values():
            path.touch()
        total = sum(part.num_edges for part in ranges)
        with progress("sorting edges", "edges") as advance:
            waiting = ranges[::-1]
            while waiting:
                part = waiting.pop()
                if self._sort_bytes(part) <= self._work_bytes:
                    self._sort(part)
                elif part.last - part.first == 1:
                    self._append_list(part)
                else:
                    waiting += self._split(part)[::-1]
                part.path.unlink()
                advance(self._edges_before, total)
        indices = ScratchArray(self._paths["indices"], self._edges_after, id_dtype(self._num_nodes))
        isolated = self._count_occurrences(indices, progress)
        relations = ScratchArray(self._paths["relations"], self._edges_after, np.dtype(np.int32))
        return ExternalCsc(
            self._num_nodes,
            indices,
            ScratchArray(self._paths["in-degree"], self._num_nodes, np.dtype(np.int64)),
            ScratchArray(self._paths["out-degree"], self._num_nodes, np.dtype(np.int64)),
            relations if columns == 3 else None,
            replace(
                counts,
                duplicates_found=self._duplicates,
                duplicates_removed=self._edges_before - self._edges_after,
            ),
            isolated,
        )

    def _sort_bytes(self, part: SpilledRange) -> int:
        """Memory to sort a range in."""
        edge_bytes = part.dtype.itemsize + (4 if part.columns == 3 else 0)
        return edge_bytes * part.num_edges + 16 * (part.last - part.first + 2)

    def _sort(self, part: SpilledRange) -> None:
        """Sort one range by counting, as `build_csc` does for a whole graph."""
        indptr = np.zeros(part.last - part.first + 2, np.int64)
        for rows in part.chunks():
            count_rows(rows, part.first, indptr)
        np.cumsum(indptr, out=indptr)
        ids = empty_ids(part.num_edges, self._num_nodes)
        relations = np.empty(part.num_edges if part.columns == 3 else 0, np.int32)
        for rows in part.chunks():
            fill_rows(rows, part.first, indptr, ids, relations)
        indptr = indptr[:-1]
        self._duplicates += merge_duplicates(indptr, ids, self._seen, self._merge)
        self._append("in-degree", np.diff(indptr))
        self._append("indices", ids[: indptr[-1]])
        self._append("relations", relations)
        self._edges_before += part.num_edges
        self._edges_after += int(indptr[-1])

    def _append_list(self, part: SpilledRange) -> None:
        """Append the list of one node, which is in order as it stands."""
        length = 0
        for rows in part.chunks():
            ids = rows[:, 1].copy()
            found, kept = merge_list(ids, 0, len(ids), 0, self._seen, self._merge)
            self._duplicates += found
            self._append("indices", ids[:kept])
            if part.columns == 3:
                self._append("relations", np.ascontiguousarray(rows[:, 2], np.int32))
            length += kept
        self._seen.fill(0)
        self._append("in-degree", np.array([length]))
        self._edges_before += part.num_edges
        self._edges_after += length

    def _split(self, part: SpilledRange) -> list[SpilledRange]:
        """Scatter a range that does not fit over narrower ones."""
        spill = EdgeSpill(
            self._folder,
            part.first,
            part.last,
            num_nodes=self._num_nodes,
            columns=part.columns,
            parts=max(2, _num_parts(self._sort_bytes(part), self._work_bytes)),
            buffer_bytes=self._work_bytes,
        )
        for rows in part.chunks():
            relation = np.ascontiguousarray(rows[:, 2], np.int32) if part.columns == 3 else NO_RELATIONS
            spill.add(rows[:, 1], rows[:, 0], relation)
        return spill.finish()

    def _append(self, name: str, values: npt.NDArray[Any]) -> None:
        if len(values):
            with self._paths[name].open("ab", buffering=0) as file:
                write_exactly(file.write, values)

    def _count_occurrences(self, indices: ScratchArray, progress: OpenProgress) -> int:
        """Write how many lists name each node, in one pass over them for as many nodes as memory holds.

        Returns the number of nodes without any edge.
        """
        isolated, span = 0, max(1, self._work_bytes // 24)
        passes = -(-self._num_nodes // span)
        with progress("counting neighbors", "edges") as advance:
            for first in range(0, self._num_nodes, span):
                counts = np.zeros(min(span, self._num_nodes - first), np.int64)
                done = first // span * indices.length
                for ids in indices.chunks():
                    count_between(ids, first, counts)
                    done += len(ids)
                    advance(done, passes * indices.length)
                in_degree = np.fromfile(self._paths["in-degree"], np.int64, len(counts), offset=8 * first)
                isolated += int(np.count_nonzero((counts == 0) & (in_degree == 0)))
                self._append("out-degree", counts)
        return isolated
