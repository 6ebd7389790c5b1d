"""Names (string ids) mapped to 0..N-1 in the order of their UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from storage.distinct import DistinctSketch
from storage.errors import BudgetError, InputError
from storage.formats.base import CHUNK_EDGES, EdgeChunk, EdgeReader, IdArray, NumberedEdges
from storage.id_hash import HashIndex

SeriesPair = tuple[pl.Series, pl.Series]

_COPIES = 3  # of the names while they are merged
_NAME_BYTES = 128  # a name's entries in tables, while they are merged and while they are encoded
_VIEW_BYTES, _INLINE_BYTES = 16, 12  # of a name in a column; longer ones lie beside it
_FIXED_BYTES = 32 << 20
_MARGIN = 1.1  # for what an estimate of their number is off


class SeriesReader(EdgeReader, Protocol):
    """An edge reader whose ids may be strings."""

    def read_series(self) -> Iterator[SeriesPair]:
        """Read (sources, targets) anew."""
        ...


def number_names(reader: SeriesReader, most_bytes: int | None = None) -> NumberedEdges:
    """Number the names that occur in edges, in the order of their UTF-8 bytes, within so many bytes of memory."""
    names = collect_names(chain.from_iterable(reader.read_series()), most_bytes)
    return NumberedEdges(NamedEdges(reader, NameIndex(names)), len(names), as_bytes(names))


def as_bytes(names: pl.Series) -> npt.NDArray[np.bytes_]:
    """(N,) names as fixed-length UTF-8, as wide as the longest."""
    widths = names.str.len_bytes().to_numpy()
    out = np.zeros(len(names), f"S{max(1, int(widths.max(initial=0)))}")
    for start in range(0, len(names), CHUNK_EDGES):  # each name is an object for a moment
        piece = names[start : start + CHUNK_EDGES]
        out[start : start + len(piece)] = [name.encode() for name in piece]
    return out


def collect_names(columns: Iterable[pl.Series], most_bytes: int | None = None) -> pl.Series:
    """Collect the distinct names of many columns, in the order of their UTF-8 bytes.

    Memory: three times the distinct names at most.

    Parameters
    ----------
    columns : iterable of series of strings
    most_bytes : int, optional
        Memory to keep within.

    Raises
    ------
    BudgetError
        The names do not fit; the smallest budget that will do is found by estimating how many they are.
    InputError
        A name holds a zero byte.
    """
    names = pl.Series("name", [], pl.String)
    pending: list[pl.Series] = []
    sketch, longest, fits = DistinctSketch(), 0, True
    for column in columns:
        pending.append(column.unique().alias("name"))
        held = names.estimated_size() + sum(part.estimated_size() for part in pending)
        fits = fits and (most_bytes is None or _COPIES * held <= most_bytes)
        if not fits:  # from here on only their number is of interest, and how long they are
            for part in (names, *pending):
                sketch.add(part.hash().to_numpy())
                longest = max(longest, int(part.str.len_bytes().to_numpy().max(initial=0)))
            names, pending = names.clear(), []
            continue
        # Merging only once as much came as is there already keeps the passes over the names few.
        if sum(map(len, pending)) > max(len(names), CHUNK_EDGES):
            names, pending = pl.concat([names, *pending]).unique(), []
    if not fits:
        raise _too_many(sketch.estimate(), longest, most_bytes)
    names = pl.concat([names, *pending]).unique().sort()
    if names.str.contains("\0", literal=True).any():
        raise InputError("a name holds a zero byte, which a store cannot keep: rename that node or relation")
    return names


def naming_bytes(num_names: int, longest: int) -> int:
    """Memory within which `collect_names` finds so many names: those merged, those pending, and those of a column."""
    one = _VIEW_BYTES + (longest if longest > _INLINE_BYTES else 0)
    return _COPIES * (2 * num_names + max(num_names, CHUNK_EDGES)) * one


def _too_many(num_names: int, longest: int, most_bytes: int | None) -> BudgetError:
    """Say how many names there are, about, and what they need."""
    least = int(_MARGIN * num_names * (_NAME_BYTES + 2 * _COPIES * longest)) + _FIXED_BYTES
    return BudgetError(
        f"numbering about {num_names} names of nodes needs {least} bytes of memory and host_budget leaves "
        f"{most_bytes}: set host_budget to at least {least}, or give integer ids"
    )


class NameIndex:
    """Finds the position of a name among N distinct ones.

    Parameters
    ----------
    names : (N,) strings
        Distinct and sorted: the position of a name is its number. Not held.
    """

    def __init__(self, names: pl.Series) -> None:
        self._seed, hashes_N = _distinct_hashes(names)
        self._index = HashIndex(hashes_N)

    def look_up(self, names: pl.Series) -> IdArray:
        """Position of each name, -1 for those that are not there (but for one in 2**64)."""
        return self._index.look_up(_hashes(names, self._seed))


@dataclass(frozen=True)
class NamedEdges:
    """Edges between named nodes, as integers."""

    reader: SeriesReader
    """Reads the names."""
    index: NameIndex
    """Numbers them."""

    def chunks(self) -> Iterator[EdgeChunk]:
        """Read the edges anew; a name that was not there at first becomes -1."""
        for src, dst in self.reader.read_series():
            yield self.index.look_up(src), self.index.look_up(dst)

    def locate(self, row: int) -> str:
        """Say where edge number `row` stands."""
        return self.reader.locate(row)


def _distinct_hashes(names: pl.Series) -> tuple[int, npt.NDArray[np.int64]]:
    """The first seed that gives each name a hash of its own, and the hashes."""
    for seed in count():
        hashes_N = _hashes(names, seed)
        if len(np.unique(hashes_N)) == len(names):
            return seed, hashes_N
    raise AssertionError("unreachable")


def _hashes(names: pl.Series, seed: int) -> npt.NDArray[np.int64]:
    return names.hash(seed).to_numpy().view(np.int64)
