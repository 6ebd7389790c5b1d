"""Train, valid and test nodes by the rule asked for, with memory for the result and little else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from kernels.distinct import distinct
from kernels.rng import Purpose, stream_key, uniform_u64
from storage.csc import empty_ids
from storage.errors import InputError
from storage.formats.base import GraphSource, IdArray
from storage.store_format import SPLITS

SplitRule = Literal["provided", "full", "random"]
Labels = IdArray | npt.NDArray[np.int8]
Splits = dict[str, IdArray]

_CHUNK_NODES = 1 << 18
_BIN_BITS = 16


def has_label(labels: Labels) -> npt.NDArray[np.bool_]:
    """(N,) whether each node has a class, or any known label."""
    known: npt.NDArray[np.bool_] = np.asarray(labels >= 0)
    return known if labels.ndim == 1 else np.asarray(known.any(axis=1))


def labels_nbytes(source: GraphSource) -> int:
    """Bytes of the labels in memory."""
    if source.labels is None:
        return 0
    return source.labels.labels_N.nbytes + (source.labels.rows_NC.nbytes if source.labels.rows_NC is not None else 0)


def count_labelled(labels: Labels | None, num_nodes: int) -> int:
    """Count the nodes that have a label; all where the graph has no labels at all."""
    return sum(len(nodes) for nodes in labelled_chunks(labels, num_nodes))


def provided_splits(source: GraphSource, labels: Labels | None, num_nodes: int, *, full: bool) -> Splits:
    """Take the source's own splits, less the nodes without a label; each in ascending order.

    Parameters
    ----------
    source : GraphSource
    labels : (N,) or (N, C) array
    num_nodes : int
    full : bool
        Train on all labelled nodes that are neither to validate nor to test on.

    Raises
    ------
    InputError
        There are none, or one names a node that is not there.
    """
    if source.splits is None and source.links is not None:
        return {split: np.empty(0, np.int64) for split in SPLITS}
    if source.splits is None:
        raise InputError(f"{source.where} brings no split of its own: set split=random")
    splits: Splits = {}
    for split in SPLITS:
        nodes = source.splits[split]
        refuse_outside(nodes, f"{source.where}: the {split} split names", num_nodes)
        nodes = distinct(nodes.astype(np.int64, copy=False))
        splits[split] = nodes if labels is None else nodes[has_label(labels[nodes])]
    if full:
        taken = np.zeros(num_nodes, np.bool_)
        taken[source.splits["valid"]] = taken[source.splits["test"]] = True
        splits["train"] = np.concatenate([nodes[~taken[nodes]] for nodes in labelled_chunks(labels, num_nodes)])
    return splits


def has_training_nodes(splits: Mapping[str, IdArray], labels: Labels | None, num_nodes: int, *, full: bool) -> bool:
    """Whether a source's own splits leave a labelled node to train on; ids of no node are for `provided_splits`."""
    if full:
        taken = np.zeros(num_nodes, np.bool_)
        for split in ("valid", "test"):
            taken[_inside(splits[split], num_nodes)] = True
        return any(not taken[nodes].all() for nodes in labelled_chunks(labels, num_nodes))
    nodes = _inside(splits["train"], num_nodes)
    return len(nodes) > 0 if labels is None else bool(has_label(labels[nodes]).any())


def _inside(nodes: IdArray, num_nodes: int) -> IdArray:
    return nodes[(nodes >= 0) & (nodes < num_nodes)]


def random_splits(
    labels: Labels | None, num_nodes: int, *, train_fraction: float, valid_fraction: float, seed: int
) -> Splits:
    """Order the labelled nodes by a hash of each, and cut; each split in ascending order.

    The cuts are found by counting hashes, so that nothing is sorted.
    """
    key = stream_key(Purpose.SPLIT, seed)

    def hashed() -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
        return ((nodes, uniform_u64(key, nodes)) for nodes in labelled_chunks(labels, num_nodes))

    total = count_labelled(labels, num_nodes)
    train = round(total * train_fraction)
    valid = min(total, train + round(total * valid_fraction))
    cuts = _cuts(hashed, (train, valid))
    sizes = dict(zip(SPLITS, (train, valid - train, total - valid), strict=True))
    splits: Splits = {split: empty_ids(size, num_nodes) for split, size in sizes.items()}
    filled = dict.fromkeys(SPLITS, 0)
    for nodes, hashes in hashed():
        before_train, before_valid = (_is_before(cut, nodes, hashes) for cut in cuts)
        for split, here in zip(SPLITS, (before_train, before_valid & ~before_train, ~before_valid), strict=True):
            members = nodes[here]
            splits[split][filled[split] : filled[split] + len(members)] = members
            filled[split] += len(members)
    return splits


def refuse_outside(ids: IdArray, subject: str, num_nodes: int) -> None:
    """Name the first id that no node has, and where it stands.

    Raises
    ------
    InputError
        If there is one.
    """
    outside = np.argwhere((ids < 0) | (ids >= num_nodes))
    if len(outside):
        place = tuple(outside[0])
        raise InputError(
            f"{subject} node {ids[place]}, but ids end at {num_nodes - 1}: correct entry {place[0]} (counted from 0)"
        )


_Hashed = Callable[[], Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]]]
_Cut = tuple[int, int] | None
"""Hash and id of the first node behind a cut; None where there is no such node."""


def labelled_chunks(labels: Labels | None, num_nodes: int) -> Iterator[npt.NDArray[np.int64]]:
    """Labelled nodes in ascending order, some at a time."""
    for start in range(0, num_nodes, _CHUNK_NODES):
        stop = min(start + _CHUNK_NODES, num_nodes)
        yield np.arange(start, stop) if labels is None else start + np.flatnonzero(has_label(labels[start:stop]))


def _cuts(hashed: _Hashed, ranks: tuple[int, ...]) -> list[_Cut]:
    """Find the nodes of given ranks in the order of (hash, id): first the bin of hashes that holds each, then it."""
    shift = np.uint64(64 - _BIN_BITS)
    counts = np.zeros(1 << _BIN_BITS, np.int64)
    for _, hashes in hashed():
        counts += np.bincount((hashes >> shift).astype(np.int64), minlength=len(counts))
    ends = np.cumsum(counts)
    bins = np.searchsorted(ends, ranks, side="right")
    members: dict[int, list[tuple[int, int]]] = {int(place): [] for place in bins}
    for nodes, hashes in hashed():
        place = (hashes >> shift).astype(np.int64)
        for wanted, found in members.items():
            here = np.flatnonzero(place == wanted)
            found.extend(zip(hashes[here].tolist(), nodes[here].tolist(), strict=True))
    starts = ends - counts
    return [
        sorted(members[place])[rank - int(starts[place])] if place < len(counts) else None
        for rank, place in zip(ranks, bins.tolist(), strict=True)
    ]


def _is_before(cut: _Cut, nodes: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    if cut is None:
        return np.ones(len(nodes), np.bool_)
    first_hash, first_node = np.uint64(cut[0]), cut[1]
    before: npt.NDArray[np.bool_] = (hashes < first_hash) | ((hashes == first_hash) & (nodes < first_node))
    return before
