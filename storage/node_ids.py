"""Node ids: from the integers that occur in a file (gaps and all) to 0..N-1, in one pass over the edges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numba
import numpy as np
import numpy.typing as npt

from kernels.rng import mix64
from storage.csc import empty_ids, id_dtype
from storage.distinct import DistinctSketch
from storage.errors import BudgetError, InputError
from storage.formats.base import EdgeChunk, EdgeReader, IdArray, NumberedEdges, read_ahead
from storage.id_hash import HashIndex, capacity
from storage.id_set import IdSet
from storage.progress import OpenProgress, no_progress

_jit = numba.njit(nogil=True, cache=True)

_TABLE_SPREAD = 4
_GROWTH = 4  # a set of ids takes so many times its size when it grows, and when its ids are listed in order
_FIXED_BYTES = 32 << 20
_MARGIN = 1.1  # for what an estimate of their number is off


@dataclass(frozen=True)
class NodeIds:
    """The ids that occur in a graph, in ascending order: the position of an id is its node."""

    ids_N: npt.NDArray[np.int64]
    """(N,) ids, ascending."""

    @property
    def num_nodes(self) -> int:
        """Number of ids."""
        return len(self.ids_N)

    @property
    def is_identity(self) -> bool:
        """Whether the ids are 0..N-1 already."""
        return self.num_nodes == 0 or (self.ids_N[0] == 0 and self.ids_N[-1] == self.num_nodes - 1)

    def finder(self) -> Callable[[IdArray], IdArray]:
        """Make what finds the node of each id, -1 for one that is not there; it holds a table of `map_bytes`."""
        if self.is_identity:
            return lambda ids: np.where((ids >= 0) & (ids < self.num_nodes), ids, -1)
        first, spread = int(self.ids_N[0]), _spread(self.ids_N)
        if spread > _TABLE_SPREAD * self.num_nodes:
            return HashIndex(self.ids_N).look_up
        table = empty_ids(spread, self.num_nodes)
        table.fill(-1)
        _fill_table(table, first, self.ids_N)
        return lambda ids: _look_up(table, first, ids)

    def map_chunks(self, chunks: Iterable[EdgeChunk]) -> Iterator[EdgeChunk]:
        """Replace the ids of edges by their nodes; an id that is not there becomes -1."""
        find = self.finder()
        for src, dst in chunks:
            yield find(src), find(dst)

    def numbered(self, reader: EdgeReader) -> NumberedEdges:
        """Give edges with these ids as edges between nodes."""
        if self.is_identity:
            return NumberedEdges(reader, self.num_nodes, None)
        return NumberedEdges(_MappedEdges(reader, self), self.num_nodes, self.ids_N)


@dataclass(frozen=True)
class _MappedEdges:
    """Edges with their ids replaced by nodes."""

    reader: EdgeReader
    ids: NodeIds

    def chunks(self) -> Iterator[EdgeChunk]:
        """Read and map the edges anew."""
        return self.ids.map_chunks(self.reader.chunks())

    def locate(self, row: int) -> str:
        """Say where edge number `row` stands."""
        return self.reader.locate(row)


def number_integers(
    reader: EdgeReader, most_bytes: int | None = None, *, approx_edges: int = 0, progress: OpenProgress = no_progress
) -> NumberedEdges:
    """Number the integers that occur in edges, in ascending order; arguments are those of `discover_ids`.

    Raises
    ------
    InputError
        An id is negative.
    BudgetError
        They do not fit `most_bytes`.
    """
    return discover_ids(reader, most_bytes, approx_edges=approx_edges, progress=progress).numbered(reader)


def discover_ids(
    reader: EdgeReader,
    most_bytes: int | None = None,
    *,
    further: Iterable[IdArray] = (),
    approx_edges: int = 0,
    progress: OpenProgress = no_progress,
) -> NodeIds:
    """Collect the ids that occur in edges, in one pass.

    Memory: see `IdSet`.

    Parameters
    ----------
    reader : EdgeReader
    most_bytes : int, optional
        Memory to keep within.
    further : iterable of arrays
        Ids of nodes that need not occur in edges; none is negative.
    approx_edges : int
        About how many edges there are, to show how far the pass is.
    progress : callable
        Opens a display.

    Returns
    -------
    NodeIds

    Raises
    ------
    InputError
        An id is negative.
    BudgetError
        The ids do not fit; the smallest budget that will do is found by estimating how many they are.
    """
    found, row, fits, largest = IdSet(), 0, True, -1
    sketch = DistinctSketch()
    with progress("numbering nodes", "edges") as advance:
        for chunk in chain(read_ahead(reader.chunks()), ((ids,) for ids in further)):
            for ids in chunk:
                if ids.min(initial=0) < 0:
                    place = int(np.argmax(ids < 0))
                    raise InputError(f"{reader.locate(row + place)}: id {ids[place]} is negative: correct the row")
                largest = max(largest, int(ids.max(initial=-1)))
                if fits and most_bytes is not None and _GROWTH * found.bytes_with(largest) > most_bytes:
                    fits = False
                    sketch.add(mix64(found.sorted().astype(np.uint64)))  # from here on only their number is of interest
                    found = IdSet()
                if fits:
                    found.add(ids)
                else:
                    sketch.add(mix64(ids.astype(np.uint64)))
            row += len(chunk[0])
            del chunk, ids  # before the next chunk but one is read
            advance(row, max(approx_edges, row))
    if not fits:
        raise _too_many(sketch.estimate(), largest, most_bytes)
    return NodeIds(found.sorted())


def _too_many(num_ids: int, largest: int, most_bytes: int | None) -> BudgetError:
    """Say how many ids there are, about, and what they need."""
    least = _GROWTH * IdSet.bytes_for(int(_MARGIN * num_ids), largest) + _FIXED_BYTES
    return BudgetError(
        f"numbering about {num_ids} ids of nodes up to {largest} needs {least} bytes of memory and host_budget leaves "
        f"{most_bytes}: set host_budget to at least {least}, or give ids without large gaps"
    )


def numbering_bytes(ids_N: IdArray) -> int:
    """Memory within which `discover_ids` finds these ids, ascending ones."""
    return _GROWTH * IdSet.bytes_for(len(ids_N), int(ids_N[-1])) if len(ids_N) else 0


def map_bytes(ids_N: IdArray) -> int:
    """Bytes of the table by which `NodeIds.map_chunks` finds the nodes of ids."""
    spread = _spread(ids_N)
    slots = spread if spread <= _TABLE_SPREAD * len(ids_N) else capacity(len(ids_N))
    return slots * id_dtype(len(ids_N)).itemsize


def _spread(ids_N: IdArray) -> int:
    return int(ids_N[-1]) - int(ids_N[0]) + 1 if len(ids_N) else 0


@_jit
def _fill_table(table: IdArray, first: int, ids_N: npt.NDArray[np.int64]) -> None:
    for node in range(len(ids_N)):
        table[ids_N[node] - first] = node


@_jit
def _look_up(table: IdArray, first: int, ids: IdArray) -> IdArray:
    out = np.empty(len(ids), table.dtype)
    for i in range(len(ids)):
        offset = ids[i] - first
        out[i] = table[offset] if 0 <= offset < len(table) else -1
    return out
