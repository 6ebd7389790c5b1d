"""Edges whose ids are strings: mapped to 0..N-1 in the order of their UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from storage.formats.base import CHUNK_EDGES, EdgeChunk, EdgeReader, NumberedEdges
from storage.node_ids import EMPTY, HashIndex

SeriesPair = tuple[pl.Series, pl.Series]


class SeriesReader(EdgeReader, Protocol):
    """An edge reader whose ids may be strings."""

    def read_series(self) -> Iterator[SeriesPair]:
        """Read (sources, targets) anew."""
        ...


def number_names(reader: SeriesReader) -> NumberedEdges:
    """Number the names that occur in edges, in the order of their UTF-8 bytes."""
    edges = NamedEdges.discover(reader)
    return NumberedEdges(edges, len(edges.names), edges.original_ids())


@dataclass(frozen=True)
class NamedEdges:
    """Edges between named nodes, as integers."""

    reader: SeriesReader
    """Reads the names."""
    names: pl.Series
    """(N,) the names, sorted: the position of a name is its node."""

    @classmethod
    def discover(cls, reader: SeriesReader) -> NamedEdges:
        """Collect the names in one pass over the edges.

        Memory: three times the distinct names at most.
        """
        names = pl.Series("name", [], pl.String)
        pending: list[pl.Series] = []
        for src, dst in reader.read_series():
            pending += [column.unique().alias("name") for column in (src, dst)]
            # Merging only once as much came as is there already keeps the passes over the names few.
            if sum(map(len, pending)) > max(len(names), CHUNK_EDGES):
                names, pending = pl.concat([names, *pending]).unique(), []
        return cls(reader, pl.concat([names, *pending]).unique().sort())

    def chunks(self) -> Iterator[EdgeChunk]:
        """Read the edges anew; a name that was not there at first becomes -1."""
        seed, hashes_N = _distinct_hashes(self.names)
        index = HashIndex(hashes_N)
        for src, dst in self.reader.read_series():
            yield index.look_up(_hashes(src, seed)), index.look_up(_hashes(dst, seed))

    def locate(self, row: int) -> str:
        """Say where edge number `row` stands."""
        return self.reader.locate(row)

    def original_ids(self) -> npt.NDArray[np.bytes_]:
        """(N,) the names as fixed-length UTF-8."""
        encoded = [name.encode() for name in self.names]
        return np.array(encoded, np.bytes_)


def _distinct_hashes(names: pl.Series) -> tuple[int, npt.NDArray[np.int64]]:
    """The first seed that gives each name a hash of its own, and the hashes."""
    for seed in count():
        hashes_N = _hashes(names, seed)
        if len(np.unique(hashes_N)) == len(names) and EMPTY not in hashes_N:
            return seed, hashes_N
    raise AssertionError("unreachable")


def _hashes(names: pl.Series, seed: int) -> npt.NDArray[np.int64]:
    return names.hash(seed).to_numpy().view(np.int64)
