"""What some stores hold beside nodes and edges: relations, held-out links, the graph that each node belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.blocks.writer import ArrayStream, BlockWriter
from storage.content_checks import check_range, damaged
from storage.formats.base import Links
from storage.store_format import GRAPH_ID, GRAPH_LABELS, LINKS, RELATION, RELATION_NAMES

LINK_PARTS = tuple(field.name for field in fields(Links))
"""Names of the datasets below `links/SPLIT`."""


@dataclass(frozen=True)
class Extras:
    """Optional parts of a store."""

    relations: npt.NDArray[np.int32] | ArrayStream | None = None
    """(E,) relation of each entry of `indices`."""
    relation_names: tuple[str, ...] = ()
    """Name of each relation."""
    links: Mapping[str, Links] = field(default_factory=dict)
    """Edges held out for link prediction, by split."""
    graph_ids: npt.NDArray[np.int32] | ArrayStream | None = None
    """(N,) graph of each node."""
    graph_labels: npt.NDArray[np.float32] | None = None
    """(G, tasks) labels of the graphs, NaN where there is none."""


def write_extras(writer: BlockWriter, extras: Extras) -> None:
    """Write the parts that are there."""
    if extras.relations is not None:
        writer.write(RELATION, extras.relations)
        writer.write_names(RELATION_NAMES, extras.relation_names)
    for split, links in extras.links.items():
        for name in LINK_PARTS:
            if (part := getattr(links, name)) is not None:
                writer.write(f"{LINKS}/{split}/{name}", part)
    if extras.graph_ids is not None:
        writer.write(GRAPH_ID, extras.graph_ids)
    if extras.graph_labels is not None:
        writer.write(GRAPH_LABELS, extras.graph_labels)


def read_links(split: str, has: Callable[[str], bool], read: Callable[[str], npt.NDArray[Any]]) -> Links:
    """Read the held-out edges of a split; none where the store has no such split."""
    parts = {name: f"{LINKS}/{split}/{name}" for name in LINK_PARTS}
    found = {name: read(path) for name, path in parts.items() if has(path)}
    return Links(**found) if found else Links(np.empty((0, 2), np.int64))


def check_links(path: Path, split: str, links: Links, num_nodes: int, num_relations: int) -> None:
    """Refuse held-out links that name what is no node or relation, or whose parts do not fit together.

    Raises
    ------
    StorageError
        Names the first problem.
    """
    widths = {"edges": 2, "negatives": 2}
    for name, part in links.nodes().items():
        fits = part.ndim == 2 and part.dtype.kind == "i" and widths.get(name, part.shape[1]) == part.shape[1]
        if not fits or (name == "candidates" and len(part) != len(links.edges)):
            raise damaged(path, f"{split} {name} of {part.dtype} and shape {part.shape}")
        check_range(path, f"{split} {name}", part.reshape(-1), 0, num_nodes)
    if links.relations is not None:
        if links.relations.shape != links.edges.shape[:1]:
            raise damaged(path, f"{split} relations of shape {links.relations.shape}")
        check_range(path, f"{split} relations", links.relations, 0, num_relations)
