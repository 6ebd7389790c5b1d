"""A graph whose edges, features and labels go by ids of the user's own: joined when ingest numbers the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from storage.formats.base import EdgeReader, GraphSource, NumberedEdges
from storage.formats.keyed_tables import (
    FindNodes,
    KeyedTable,
    check_label_table,
    feature_rows_of,
    keyed_features,
    read_keyed_labels,
)
from storage.formats.names import NamedEdges, NameIndex, SeriesReader, as_bytes, collect_names
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
        number_nodes=_Join(reader, names, tables[0], tables[1], notes).number,
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
    notes: Mapping[str, int]

    def number(self, most_bytes: int | None) -> NumberedEdges:
        """Read all ids once, within so many bytes, and the labels."""
        by_name = None if self.names is None else self._by_name(self.names, most_bytes)
        numbered, index = by_name or self._by_integer(most_bytes)
        parts: dict[str, Any] = {}
        if self.features is not None:
            table = self.features
            keyed = replace(
                keyed_features(table), num_rows=numbered.num_nodes, keyed=lambda: feature_rows_of(table, index())
            )
            parts["features"] = keyed
        if self.labels is not None:
            parts["labels"], strangers = read_keyed_labels(self.labels, index(), numbered.num_nodes)
            parts["notes"] = {**self.notes, **({"labels_of_no_node": strangers} if strangers else {})}
        return replace(numbered, **parts)

    def _by_integer(self, most_bytes: int | None) -> tuple[NumberedEdges, Any]:
        table = self.features or self.labels
        further: Iterable[Any] = () if table is None else (part.to_numpy() for part in table.ids())
        ids = discover_ids(self.reader, most_bytes, further=further)

        def index() -> FindNodes:
            find = ids.finder()
            return lambda series: find(series.to_numpy())

        return ids.numbered(self.reader), index

    def _by_name(self, names: SeriesReader, most_bytes: int | None) -> tuple[NumberedEdges, Any]:
        table = self.features or self.labels
        further: Iterable[Any] = () if table is None else table.ids()
        found = collect_names(chain(chain.from_iterable(names.read_series()), further), most_bytes)
        index = NameIndex(found)
        return NumberedEdges(NamedEdges(names, index), len(found), as_bytes(found)), lambda: index.look_up
