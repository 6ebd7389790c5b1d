"""Edges whose ids are strings: mapped to 0..N-1 in the order of their UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from storage.errors import InputError
from storage.formats.base import EdgeChunk

SeriesPair = tuple[pl.Series, pl.Series]


@dataclass(frozen=True)
class NamedEdges:
    """Edges between named nodes, as integers."""

    read_series: Callable[[], Iterable[SeriesPair]]
    """Reads (source names, target names) anew."""
    names: pl.Series
    """(N,) the names, sorted: the position of a name is its node."""
    where: Callable[[int], str]
    """Says where an edge row stands."""

    @classmethod
    def discover(cls, read_series: Callable[[], Iterable[SeriesPair]], where: Callable[[int], str]) -> NamedEdges:
        """Collect the names in one pass.

        Memory: every distinct name, twice while new ones are added.
        """
        names = pl.Series("name", [], pl.String)
        for src, dst in read_series():
            names = pl.concat([names, src.unique().rename("name"), dst.unique().rename("name")]).unique()
        return cls(read_series, names.sort(), where)

    def chunks(self) -> Iterator[EdgeChunk]:
        """Read the edges anew."""
        # An Enum hashes its categories once, so that a cast is one look-up a name.
        kind = pl.Enum(self.names)
        for src, dst in self.read_series():
            try:
                yield _codes(src, kind), _codes(dst, kind)
            except pl.exceptions.InvalidOperationError as error:
                raise InputError("the edges changed while they were read: run again when nothing writes") from error

    def locate(self, row: int) -> str:
        """Say where edge number `row` stands."""
        return self.where(row)

    def original_ids(self) -> npt.NDArray[np.bytes_]:
        """(N,) the names as fixed-length UTF-8."""
        encoded = [name.encode() for name in self.names]
        return np.array(encoded, np.bytes_)


def _codes(names: pl.Series, kind: pl.Enum) -> npt.NDArray[np.int64]:
    return names.cast(kind).to_physical().cast(pl.Int64).to_numpy()
