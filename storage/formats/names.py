"""Names (string ids) mapped to 0..N-1 in the order of their UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Protocol

import numba
import numpy as np
import numpy.typing as npt
import polars as pl

from storage.distinct_keys import DistinctKeys
from storage.errors import InputError
from storage.formats.base import EdgeChunk, EdgeReader, IdArray, NumberedEdges, Numbering
from storage.id_hash import HashIndex
from storage.scratch_array import ScratchArray

SeriesPair = tuple[pl.Series, pl.Series]

_VIEW_BYTES, _INLINE_BYTES = 16, 12  # of a name in a column; longer ones lie beside it
_WRITE_BYTES = 1 << 20
_NO_NAMES = pl.Series("name", [], pl.String)

_jit = numba.njit(nogil=True, cache=True)


class SeriesReader(EdgeReader, Protocol):
    """An edge reader whose ids may be strings."""

    def read_series(self) -> Iterator[SeriesPair]:
        """Read (sources, targets) anew."""
        ...


def number_names(reader: SeriesReader, numbering: Numbering) -> NumberedEdges:
    """Number the names that occur in edges, in the order of their UTF-8 bytes."""
    names = collect_names(watched_names(reader, numbering), numbering)
    return NumberedEdges(NamedEdges(reader, names), len(names.ids), names.ids)


def watched_names(reader: SeriesReader, numbering: Numbering) -> Iterator[pl.Series]:
    """The names of edges, column by column, while it is shown how far that is."""
    rows = 0
    with numbering.progress("numbering nodes", "edges") as advance:
        for pair in reader.read_series():
            yield from pair
            rows += len(pair[0])
            advance(rows, max(numbering.approx_edges, rows))


@dataclass(frozen=True)
class Names:
    """Distinct names in the order of their UTF-8 bytes: the position of a name is its number."""

    ids: ScratchArray
    """(N,) the names, as wide as the longest."""
    hashes: ScratchArray
    """(N,) uint64, those of seed 0."""

    @cached_property
    def _index(self) -> tuple[int, HashIndex]:
        """The first seed that gives each name a hash of its own, and the index of the hashes."""
        index = HashIndex(self.hashes.chunks, len(self.ids))
        if not index.has_repeats:
            return 0, index
        del index
        for seed in count(1):  # this one, too, has one chance in 2^64 for each two names
            index = HashIndex(lambda: (_hashes(piece, seed) for piece in self.strings()), len(self.ids))  # noqa: B023
            if not index.has_repeats:
                return seed, index
        raise AssertionError("unreachable")

    def look_up(self, names: pl.Series) -> IdArray:
        """Position of each name, -1 for those that are not there (but for one in 2**64)."""
        seed, index = self._index
        return index.look_up(_hashes(names, seed))

    def strings(self) -> Iterator[pl.Series]:
        """Read the names anew."""
        return (pl.Series(np.strings.decode(piece, "utf-8").tolist(), dtype=pl.String) for piece in self.ids.chunks())


def collect_names(columns: Iterable[pl.Series], numbering: Numbering, kind: str = "nodes") -> Names:
    """Collect the distinct names of many columns, in the order of their UTF-8 bytes.

    Parameters
    ----------
    columns : iterable of series of strings
    numbering : Numbering
        Where files go, and within which memory and disk.
    kind : str
        What is named: the files' own.

    Raises
    ------
    BudgetError
        Scratch files would take more than `disk_budget`.
    InputError
        A name holds a zero byte.
    """
    folder = numbering.folder / kind
    folder.mkdir()
    found, longest = DistinctKeys(_NameKind(), folder, *numbering.limits), 1
    for column in columns:
        names = column.unique()
        if names.str.contains("\0", literal=True).any():
            raise InputError("a name holds a zero byte, which a store cannot keep: rename that node or relation")
        longest = max(longest, int(names.str.len_bytes().max() or 0))  # type: ignore[arg-type]
        found.add(names)
    width, hashes = np.dtype(f"S{longest}"), folder / "hashes"

    def rows() -> Iterator[npt.NDArray[np.bytes_]]:
        with hashes.open("wb") as file:
            for part in found.ascending():
                file.write(_hashes(part, 0).tobytes())
                yield from _as_bytes(part, width)

    ids = ScratchArray.written(folder / "ids", rows(), width)
    return Names(ids, ScratchArray(hashes, len(ids), np.dtype(np.uint64)))


@dataclass(frozen=True)
class NamedEdges:
    """Edges between named nodes, as integers."""

    reader: SeriesReader
    """Reads the names."""
    names: Names
    """Numbers them."""

    def chunks(self) -> Iterator[EdgeChunk]:
        """Read the edges anew; a name that was not there at first becomes -1."""
        for src, dst in self.reader.read_series():
            yield self.names.look_up(src), self.names.look_up(dst)

    def locate(self, row: int) -> str:
        """Say where edge number `row` stands."""
        return self.reader.locate(row)


class _NameKind:
    """Names as `DistinctKeys` takes them: series of strings; in files, each ends with a zero byte."""

    work_factor = 6  # measured

    def distinct(self, parts: Sequence[pl.Series]) -> pl.Series:
        return pl.concat([part.alias("name") for part in parts]).unique() if parts else _NO_NAMES

    def ordered(self, keys: pl.Series) -> pl.Series:
        return keys.sort()

    def taken(self, keys: pl.Series, places: npt.NDArray[np.int64] | slice) -> pl.Series:
        return keys[places]

    def places(self, ordered: pl.Series, cuts: pl.Series) -> npt.NDArray[np.int64]:
        return ordered.search_sorted(cuts, side="left").to_numpy().astype(np.int64)

    def hashes(self, keys: pl.Series) -> npt.NDArray[np.uint64]:
        return _hashes(keys, 0)

    def bytes_each(self, keys: pl.Series) -> npt.NDArray[np.int64]:
        length = keys.str.len_bytes().to_numpy().astype(np.int64)
        return _VIEW_BYTES + length * (length > _INLINE_BYTES)

    def encoded(self, keys: pl.Series) -> bytes:
        text: str = keys.str.join("\0").item()
        return text.encode() + b"\0" if len(keys) else b""

    def decoded(self, data: bytes) -> tuple[pl.Series, bytes]:
        end = data.rfind(b"\0")
        if end < 0:
            return _NO_NAMES, data
        return pl.Series("name", [data[:end].decode()]).str.split("\0").explode(), data[end + 1 :]


def _as_bytes(names: pl.Series, width: np.dtype[np.bytes_]) -> Iterator[npt.NDArray[np.bytes_]]:
    """Names as fixed-length UTF-8, some at a time."""
    kind, step = _NameKind(), max(1, _WRITE_BYTES // width.itemsize)
    for start in range(0, len(names), step):
        rows = np.zeros(len(names[start : start + step]), width)
        _fill_rows(
            np.frombuffer(kind.encoded(names[start : start + step]), np.uint8),
            rows.view(np.uint8).reshape(len(rows), -1),
        )
        yield rows


@_jit
def _fill_rows(text: npt.NDArray[np.uint8], rows: npt.NDArray[np.uint8]) -> None:
    """Put each name, up to its zero byte, into a row."""
    row = column = 0
    for byte in text:
        if byte == 0:
            row, column = row + 1, 0
        else:
            rows[row, column] = byte
            column += 1


def _hashes(names: pl.Series, seed: int) -> npt.NDArray[np.uint64]:
    return names.hash(seed).to_numpy()
