"""Knowledge graphs as text: `train.txt`, `valid.txt` and `test.txt` with one triple (head, relation, tail) a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl

from storage.formats.base import (
    TEXT_READING_BYTES,
    EdgeChunk,
    GraphSource,
    Links,
    NumberedEdges,
    Numbering,
    Relations,
    TypedChunk,
)
from storage.formats.files import require_file
from storage.formats.names import Names, collect_names
from storage.formats.text_dialect import plain_dialect
from storage.formats.text_table import TextTable

_SPLITS = ("train", "valid", "test")
_SUFFIXES = (".txt", ".tsv", ".txt.gz", ".tsv.gz")
_HEAD, _RELATION, _TAIL = 0, 1, 2
_COLUMNS = {_HEAD: pl.String, _RELATION: pl.String, _TAIL: pl.String}


def triple_files(path: Path) -> dict[str, Path]:
    """Find the files of a knowledge graph, by split: `train` and, where they are there, `valid` and `test`.

    Raises
    ------
    InputError
        There is no file of training triples.
    """
    found = {}
    for split in _SPLITS:
        candidates = [path / f"{split}{suffix}" for suffix in _SUFFIXES]
        existing = next((file for file in candidates if file.exists()), candidates[0] if split == "train" else None)
        if existing is not None:
            found[split] = require_file(existing)
    return found


def open_triples(path: Path, *, delimiter: str | None = None) -> GraphSource:
    """Describe a knowledge graph. The training triples are the edges, from head to tail; the others are held-out links.

    Entities of all files are nodes, also those that no training triple names. Entities and relations are numbered in
    the order of their UTF-8 bytes.

    Parameters
    ----------
    path : Path
        Directory of the files.
    delimiter : str
        Default: a tab.

    Returns
    -------
    GraphSource

    Raises
    ------
    InputError
        The training triples are missing.
    """
    # No comments and no quotes: a name may hold any character.
    tables = {
        split: TextTable(file, plain_dialect(file, delimiter or "\t", num_fields=3))
        for split, file in triple_files(path).items()
    }
    edges = _TripleText(tables["train"])
    return GraphSource(
        where=str(path),
        edges=edges,
        approx_edges=edges.table.approx_rows,
        number_nodes=partial(_number, tables),
        relations=Relations((), lambda: iter(())),
        links={split: Links(np.empty((0, 2), np.int64)) for split in tables if split != "train"},
        chunk_bytes=TEXT_READING_BYTES,
    )


@dataclass(frozen=True)
class _TripleText:
    """Triples before their entities are numbered."""

    table: TextTable

    def chunks(self) -> Iterator[EdgeChunk]:
        """Read the names of heads and tails anew."""
        for frame in self.table.read({_HEAD: pl.String, _TAIL: pl.String}):
            yield frame.to_series(0).to_numpy(), frame.to_series(1).to_numpy()

    def locate(self, row: int) -> str:
        return self.table.locate(row)


@dataclass(frozen=True)
class TripleEdges:
    """Triples whose entities and relations are numbered."""

    table: TextTable
    """The lines."""
    entities: Names
    """Numbers the entities."""
    relations: Names
    """Numbers the relations."""

    def chunks(self) -> Iterator[EdgeChunk]:
        """Read (heads, tails) anew."""
        for frame in self.table.read({_HEAD: pl.String, _TAIL: pl.String}):
            yield self.entities.look_up(frame.to_series(0)), self.entities.look_up(frame.to_series(1))

    def typed_chunks(self) -> Iterator[TypedChunk]:
        """Read (heads, tails, relations) anew."""
        for frame in self.table.read(_COLUMNS):
            relation = self.relations.look_up(frame.to_series(_RELATION)).astype(np.int32)
            head, tail = (self.entities.look_up(frame.to_series(place)) for place in (_HEAD, _TAIL))
            yield head, tail, relation

    def locate(self, row: int) -> str:
        """Find the line of a triple."""
        return self.table.locate(row)

    def as_links(self) -> Links:
        """All triples at once."""
        chunks = list(self.typed_chunks())
        edges = [np.stack([head, tail], axis=1).astype(np.int64) for head, tail, _ in chunks]
        relations = [relation for _, _, relation in chunks]
        return Links(
            np.concatenate([np.empty((0, 2), np.int64), *edges]), np.concatenate([np.empty(0, np.int32), *relations])
        )


def _number(tables: dict[str, TextTable], numbering: Numbering) -> NumberedEdges:
    """Number entities and relations of all files."""
    entities = collect_names(_entities(tables, numbering), numbering)
    relations = collect_names(
        (column for table in tables.values() for column in _columns(table, _RELATION)), numbering, "relations"
    )
    numbered = {split: TripleEdges(table, entities, relations) for split, table in tables.items()}
    train = numbered.pop("train")
    return NumberedEdges(
        edges=train,
        num_nodes=len(entities.ids),
        original_ids=entities.ids,
        relations=Relations(tuple(chain.from_iterable(relations.strings())), train.typed_chunks),
        links={split: edges.as_links() for split, edges in numbered.items()},
    )


def _entities(tables: dict[str, TextTable], numbering: Numbering) -> Iterator[pl.Series]:
    """The names of heads and tails, while it is shown how far that is."""
    rows, total = 0, sum(table.approx_rows for table in tables.values())
    with numbering.progress("numbering nodes", "triples") as advance:
        for table in tables.values():
            for frame in table.read({_HEAD: pl.String, _TAIL: pl.String}):
                yield from frame
                rows += frame.height
                advance(rows, max(total, rows))


def _columns(table: TextTable, *places: int) -> Iterator[pl.Series]:
    for frame in table.read(dict.fromkeys(places, pl.String)):
        yield from frame
