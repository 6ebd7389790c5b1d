"""Numbers the nodes of a source that names them by ids of its own, and finds its labels by id."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from storage.distinct_keys import LEAST_WORK_BYTES as LEAST_NUMBERING_BYTES
from storage.formats.base import GraphSource, Numbering
from storage.node_ids import number_integers
from storage.progress import OpenProgress, no_progress


@dataclass(frozen=True)
class Room:
    """What numbering nodes may take; None means whatever it takes."""

    memory_bytes: int | None = None
    """Memory, with what reading takes."""
    disk_bytes: int | None = None
    """Disk."""
    held_disk_bytes: int = 0
    """What counts in `disk_budget` already."""

    def numbering(self, source: GraphSource, folder: Path, progress: OpenProgress) -> Numbering:
        """The same for a source; no less memory than the least that it can be done in."""
        memory = self.memory_bytes
        work_bytes = None if memory is None else max(LEAST_NUMBERING_BYTES, memory - source.chunk_bytes)
        return Numbering(folder, work_bytes, self.disk_bytes, self.held_disk_bytes, source.approx_edges, progress)


def numbered(
    source: GraphSource, folder: Path, room: Room | None = None, progress: OpenProgress = no_progress
) -> GraphSource:
    """Number the nodes of a source, in a pass over the edges.

    Parameters
    ----------
    source : GraphSource
        Its nodes have no numbers yet.
    folder : Path
        Directory for files, which must stay as long as the source is used.
    room : Room, optional
        What it may take.
    progress : callable
        Opens a display for the pass.

    Raises
    ------
    BudgetError
        `room` has too little disk; names what will do.
    InputError
        What was read is not of the format.
    """
    number = source.number_nodes or partial(number_integers, source.edges)
    found = number((room or Room()).numbering(source, folder, progress))
    parts = {part.name: getattr(found, part.name) for part in fields(found)}
    return replace(source, **{name: part for name, part in parts.items() if part is not None})


def labelled(source: GraphSource) -> GraphSource:
    """Read the labels of a source whose nodes are numbered, where they are labels by id."""
    if source.read_labels is None:
        return source
    labels = source.read_labels()
    notes = {**source.notes, **({"labels_of_no_node": labels.of_no_node} if labels.of_no_node else {})}
    return replace(source, labels=labels, read_labels=None, notes=notes)
