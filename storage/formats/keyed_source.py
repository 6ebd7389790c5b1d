"""A graph whose edges, features and labels go by ids of the user's own: joined when ingest numbers the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import polars as pl

from storage.formats.base import EdgeReader, GraphSource, NumberedEdges, Numbering
from storage.formats.keyed_tables import (
    FindNodes,
    KeyedTable,
    check_label_table,
    feature_rows_of,
    keyed_features,
    read_keyed_labels,
)
from storage.formats.names import NamedEdges, SeriesReader, collect_names, watched_names
from storage.formats.tables import tabular_source
from storage.node_ids import discover_ids


def graph_with_tables(
    *,
    where: str,
    reader: EdgeReader,
    approx_edges: int,
    names: SeriesReader | None,
    features: Path | None,
    labels: Path | None,
    num_nodes: int | None,
    id_column: str | None,
    notes: Mapping[str, int],
) -> GraphSource:
    """Join an edge file with its tables: by an id column where one is named, else by the number of the row.

    With an id column, the nodes are the ids that occur in edges or features (in labels where there are no features).

    Raises
    ------
    InputError
        A file is missing or damaged, or is not what it should be.
    """
    notes = {name: count for name, count in notes.items() if count}
    if id_column is None:
        source = tabular_source(
            where=where,
            reader=reader,
            approx_edges=approx_edges,
            names=names,
            features=features,
            labels=labels,
            num_nodes=num_nodes,
            notes=notes,
        )
        has_rows = features is not None or labels is not None
        return replace(source, ids_are_rows=has_rows, needs_edges=num_nodes is None)
    tables = [
        None if path is None else KeyedTable.open(path, id_column, names=names is not None)
        for path in (features, labels)
    ]
    if tables[1] is not None:
        check_label_table(tables[1])
    return GraphSource(
        where=where,
        edges=reader,
        approx_edges=approx_edges,
        number_nodes=_Join(reader, names, tables[0], tables[1]).number,
        features=None if tables[0] is None else keyed_features(tables[0]),
        labelled_later=tables[1] is not None,
        needs_edges=True,
        notes=notes,
    )


@dataclass(frozen=True)
class _Join:
    """Numbers nodes, and finds the node of each row by its id."""

    reader: EdgeReader
    names: SeriesReader | None
    features: KeyedTable | None
    labels: KeyedTable | None

    def number(self, numbering: Numbering) -> NumberedEdges:
        """Read all ids once; rows are found when they are read."""
        numbered, find = self._by_integer(numbering) if self.names is None else self._by_name(self.names, numbering)
        features, labels, num_nodes = self.features, self.labels, numbered.num_nodes
        if features is not None:
            keyed = partial(feature_rows_of, features, find)
            numbered = replace(numbered, features=replace(keyed_features(features), num_rows=num_nodes, keyed=keyed))
        if labels is not None:
            numbered = replace(numbered, read_labels=partial(read_keyed_labels, labels, find, num_nodes))
        return numbered

    def _by_integer(self, numbering: Numbering) -> tuple[NumberedEdges, FindNodes]:
        ids = discover_ids(self.reader, numbering, further=(part.to_numpy() for part in self._table_ids()))
        return ids.numbered(self.reader), lambda series: ids.look_up(series.to_numpy())

    def _by_name(self, reader: SeriesReader, numbering: Numbering) -> tuple[NumberedEdges, FindNodes]:
        names = collect_names(chain(watched_names(reader, numbering), self._table_ids()), numbering)
        return NumberedEdges(NamedEdges(reader, names), len(names.ids), names.ids), names.look_up

    def _table_ids(self) -> Iterable[pl.Series]:
        """Ids of the nodes that need not occur in edges."""
        table = self.features or self.labels
        return () if table is None else table.ids()
