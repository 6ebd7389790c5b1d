"""Node ids: from the integers that occur in a file (gaps and all) to 0..N-1, in one pass over the edges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

from kernels.distinct import distinct_of_sorted
from kernels.rank_map import RankMap
from kernels.rng import mix64
from storage.csc import id_dtype
from storage.distinct_keys import DistinctKeys
from storage.errors import InputError
from storage.formats.base import EdgeChunk, EdgeReader, IdArray, NumberedEdges, Numbering, read_ahead
from storage.id_hash import HashIndex
from storage.id_set import IdSet, rank_map_of
from storage.scratch_array import ScratchArray

_BITS_SHARE = 4
"""What part of the memory bits may take, however few ids there are."""
_MOST_BITS_BYTES = 48 << 20
"""The same in bytes."""


@dataclass(frozen=True)
class NodeIds:
    """The ids that occur in a graph, in ascending order: the position of an id is its node."""

    num_nodes: int
    """Number of ids."""
    ids: ScratchArray | None
    """(N,) int64, ascending; None: they are 0..N-1."""

    @cached_property
    def _index(self) -> tuple[int, RankMap | HashIndex]:
        """The least id, and what finds the position of an id."""
        assert self.ids is not None
        first, spread = int(self.ids[0]), int(self.ids[-1]) - int(self.ids[0]) + 1
        if _is_dense(self.num_nodes, spread):
            return first, rank_map_of(self.ids.chunks(), first, self.num_nodes, spread)
        ids = self.ids
        return first, HashIndex(lambda: (_hashes(piece) for piece in ids.chunks()), self.num_nodes)

    def look_up(self, ids: IdArray) -> IdArray:
        """Node of each id, -1 for one that is not there."""
        if self.ids is None:
            return np.where((ids >= 0) & (ids < self.num_nodes), ids, -1)
        first, index = self._index
        if isinstance(index, HashIndex):
            return index.look_up(_hashes(ids))
        inside = (ids >= first) & (ids - first < index.num_nodes)
        nodes = index.slots(np.where(inside, ids - first, 0))
        return np.where(inside, nodes, -1).astype(id_dtype(self.num_nodes), copy=False)

    def numbered(self, reader: EdgeReader) -> NumberedEdges:
        """Give edges with these ids as edges between nodes."""
        if self.ids is None:
            return NumberedEdges(reader, self.num_nodes, None)
        return NumberedEdges(_MappedEdges(reader, self), self.num_nodes, self.ids)


@dataclass(frozen=True)
class _MappedEdges:
    """Edges with their ids replaced by nodes."""

    reader: EdgeReader
    ids: NodeIds

    def chunks(self) -> Iterator[EdgeChunk]:
        """Read and map the edges anew."""
        for src, dst in self.reader.chunks():
            yield self.ids.look_up(src), self.ids.look_up(dst)

    def locate(self, row: int) -> str:
        """Say where edge number `row` stands."""
        return self.reader.locate(row)


def number_integers(reader: EdgeReader, numbering: Numbering) -> NumberedEdges:
    """Number the integers that occur in edges, in ascending order.

    Raises
    ------
    InputError
        An id is negative.
    BudgetError
        Scratch files would take more than `disk_budget`.
    """
    return discover_ids(reader, numbering).numbered(reader)


def discover_ids(reader: EdgeReader, numbering: Numbering, *, further: Iterable[IdArray] = ()) -> NodeIds:
    """Collect the ids that occur in edges, in one pass.

    Parameters
    ----------
    reader : EdgeReader
    numbering : Numbering
        Where files go, and within which memory and disk.
    further : iterable of arrays
        Ids of nodes that need not occur in edges; none is negative.

    Raises
    ------
    InputError
        An id is negative.
    BudgetError
        Scratch files would take more than `disk_budget`.
    """
    found, row = _Integers(numbering), 0
    with numbering.progress("numbering nodes", "edges") as advance:
        for chunk in chain(read_ahead(reader.chunks()), ((ids,) for ids in further)):
            for ids in chunk:
                if ids.min(initial=0) < 0:
                    place = int(np.argmax(ids < 0))
                    raise InputError(f"{reader.locate(row + place)}: id {ids[place]} is negative: correct the row")
                found.add(ids)
            row += len(chunk[0])
            del chunk, ids  # before the next chunk but one is read
            advance(row, max(numbering.approx_edges, row))
    return found.finish()


class _Integers:
    """Collects integers: as bits while they lie close together, else as keys."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering
        self._close: IdSet | None = IdSet()
        self._far: DistinctKeys[IdArray] | None = None
        work = numbering.limits[0]
        self._most_bits = _MOST_BITS_BYTES if work is None else min(_MOST_BITS_BYTES, work // _BITS_SHARE)

    def add(self, ids: IdArray) -> None:
        if self._close is not None:
            largest = max(self._close.largest, int(ids.max(initial=-1)))
            if IdSet.bytes_for(largest) <= self._most_bits:
                self._close.add(ids)
                return
            self._far = DistinctKeys(_IntegerKind(), self._numbering.folder, *self._numbering.limits)
            for piece in self._close.ascending():
                self._far.add(piece)
            self._close = None
        assert self._far is not None
        self._far.add(ids)

    def finish(self) -> NodeIds:
        if self._close is not None and self._close.count() == self._close.largest + 1:
            return NodeIds(self._close.largest + 1, None)
        pieces = self._close.ascending() if self._close is not None else self._far.ascending() if self._far else ()
        ids = ScratchArray.written(self._numbering.folder / "ids", pieces, np.dtype(np.int64))
        is_identity = int(ids[-1]) == len(ids) - 1
        return NodeIds(len(ids), None if is_identity else ids)


def index_bytes(num_ids: int, first: int, last: int) -> int:
    """Bytes of what finds the nodes of so many integers between two."""
    spread = last - first + 1
    return RankMap.nbytes_for(spread) if _is_dense(num_ids, spread) else HashIndex.nbytes_for(num_ids)


def _is_dense(num_ids: int, spread: int) -> bool:
    """Whether a bit for each integer takes less than a hash of each id."""
    return num_ids < 2**32 and RankMap.nbytes_for(spread) <= HashIndex.nbytes_for(num_ids)


def _hashes(ids: IdArray) -> npt.NDArray[np.uint64]:
    """A hash of each id, no two of which are equal."""
    return mix64(ids.astype(np.uint64))


class _IntegerKind:
    """Integers as `DistinctKeys` takes them."""

    work_factor = 4  # measured

    def distinct(self, parts: Sequence[IdArray]) -> IdArray:
        keys = np.concatenate([np.empty(0, np.int64), *parts])
        keys.sort()
        return distinct_of_sorted(keys)

    def ordered(self, keys: IdArray) -> IdArray:
        return keys[np.argsort(keys)]

    def taken(self, keys: IdArray, places: npt.NDArray[np.int64] | slice) -> IdArray:
        return keys[places]

    def places(self, ordered: IdArray, cuts: IdArray) -> npt.NDArray[np.int64]:
        return np.searchsorted(ordered, cuts, side="left")

    def hashes(self, keys: IdArray) -> npt.NDArray[np.uint64]:
        return _hashes(keys)

    def bytes_each(self, keys: IdArray) -> npt.NDArray[np.int64]:
        return np.full(len(keys), 8, np.int64)

    def encoded(self, keys: IdArray) -> bytes:
        return keys.tobytes()

    def decoded(self, data: bytes) -> tuple[IdArray, bytes]:
        whole = len(data) // 8 * 8
        return np.frombuffer(data[:whole], np.int64), data[whole:]
