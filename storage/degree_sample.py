"""Degrees of some nodes of a graph, from as many of its edges as there is time to read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.special import gammaln, xlogy

from kernels.rng import mix64
from storage.formats.base import EdgeChunk, IdArray

F64Array = npt.NDArray[np.float64]
I64Array = npt.NDArray[np.int64]
Ids = npt.NDArray[Any]

_MOST_EDGES = 1 << 21
"""Edges held of the nodes looked at: 32 MB, and a few times that while repeated ones are merged."""
_SALT = np.uint64(0x9E3779B97F4A7C15)
"""So that node 0, often the one with most edges, is drawn as seldom as any: the hash of 0 is 0."""
_SORTED_SHARE = 0.9
_TELLING = 100
"""So many entries held of a list tell its length within a quarter or so."""
_EXACT, _STEP = 32, 1.15
"""Degrees up to the first are told apart, greater ones by this factor."""
_ITERATIONS = 300


@dataclass(frozen=True)
class EdgeRules:
    """What ingest makes of the edges."""

    symmetrize: bool = False
    """Adds the reverse of each, and merges repeated ones."""
    deduplicate: bool = False
    """Merges repeated ones."""
    remove_self_loops: bool = False
    """Drops those from a node to itself."""


@dataclass(frozen=True)
class DegreeSample:
    """How many nodes have which degrees."""

    nodes: F64Array
    """(n,) nodes that are alike."""
    in_degree: F64Array
    """(n,) entries of their lists, each."""
    out_degree: F64Array
    """(n,) lists that name them, each."""
    num_edges: int = 0
    """E, once reversed and merged."""
    read_share: float = 1.0
    """Share of the edges that it is known from."""
    is_sorted: bool = False
    """Whether the edges come sorted, so that those read do not stand for all."""
    name_bytes: int = 0
    """Bytes of the longest name read, in UTF-8; 0 where ids are integers."""
    longest_list: int = 0
    """Entries of the longest list, of which kinds only have the mean."""

    @property
    def num_nodes(self) -> int:
        """N."""
        return round(float(self.nodes.sum()))


def sample_degrees(
    chunks: Callable[[], Iterator[EdgeChunk]],
    rules: EdgeRules,
    *,
    num_nodes: int | None,
    approx_edges: int,
    seconds: float,
) -> DegreeSample:
    """Read edges for a while; count those of all nodes, or of nodes drawn by a hash where they are too many.

    Edges are merged and reversed as ingest would. Where they could not all be read, the degrees are those that make
    what was read likeliest, if any edge was as likely to be read as any other.

    Parameters
    ----------
    chunks : callable
        Reads the edges anew: (source ids, destination ids), integers or strings.
    rules : EdgeRules
    num_nodes : int, optional
        N, where the files tell; else the nodes are those that occur.
    approx_edges : int
        E, about.
    seconds : float
        How long to read.

    Raises
    ------
    InputError
        What was read of the file is not of its format.
    """
    held, deadline, share = _Held(), time.monotonic() + seconds, 1.0
    for chunk in chunks():
        held.add(*chunk)
        if time.monotonic() > deadline:
            share = min(1.0, held.edges_read / max(1, approx_edges))
            break
    src, dst = held.stored(rules)
    num_edges = round(held.edges_read / share * len(src) / max(1, held.num_edges))
    ids, place = np.unique(np.concatenate([src, dst]), return_inverse=True)
    chosen = held.chosen(ids)
    out_degree = np.bincount(place[: len(src)], minlength=len(ids))[chosen]
    in_degree = np.bincount(place[len(src) :], minlength=len(ids))
    longest = held.whole_lists(in_degree, chosen).max(initial=0) / share
    in_degree = in_degree[chosen]
    unseen = max(0.0, (num_nodes or 0) / held.ids_each - len(in_degree))
    sample = _alike(in_degree, out_degree, unseen)
    if share < 1:
        sample = replace(_completed(sample, share), is_sorted=held.looks_sorted)
    scale = held.ids_each if num_nodes is None else num_nodes / max(1.0, sample.nodes.sum())
    return replace(
        sample,
        nodes=sample.nodes * scale,
        num_edges=num_edges,
        name_bytes=held.name_bytes,
        longest_list=min(num_edges, round(longest)),
    )


@dataclass(slots=True)
class _Held:
    """Edges of the nodes that are looked at: fewer and fewer nodes while edges come."""

    level: int = 0
    edges_read: int = 0
    ascents: int = 0
    name_bytes: int = 0
    src: list[I64Array] = field(default_factory=list)
    dst: list[I64Array] = field(default_factory=list)

    @property
    def ids_each(self) -> float:
        """Nodes that each of those looked at stands for."""
        return 2.0**self.level

    @property
    def num_edges(self) -> int:
        """Edges held."""
        return sum(map(len, self.src))

    @property
    def looks_sorted(self) -> bool:
        """Whether sources or destinations hardly ever fall."""
        return self.ascents > _SORTED_SHARE * self.edges_read

    def add(self, src: Ids, dst: Ids) -> None:
        """Take the edges of nodes that are looked at."""
        self.edges_read += len(src)
        self.ascents += max(int(np.count_nonzero(ids[1:] >= ids[:-1])) for ids in (src, dst))
        self._keep(self._as_integers(src), self._as_integers(dst))
        while self.num_edges > _MOST_EDGES:
            self.level += 1
            src, dst = _joined(self.src), _joined(self.dst)
            self.src, self.dst = [], []
            self._keep(src, dst)

    def chosen(self, ids: IdArray) -> npt.NDArray[np.bool_]:
        """Whether nodes are looked at."""
        if not self.level:
            return np.ones(len(ids), np.bool_)
        return mix64(ids.astype(np.uint64) ^ _SALT) < np.uint64(1 << (64 - self.level))

    def whole_lists(self, in_degree: I64Array, chosen: npt.NDArray[np.bool_]) -> I64Array:
        """Entries of the lists of nodes; of one that is not looked at, what is held of it tells, if it is much."""
        others: I64Array = np.where(in_degree >= _TELLING, in_degree << self.level, 0)
        return np.where(chosen, in_degree, others)

    def stored(self, rules: EdgeRules) -> tuple[I64Array, I64Array]:
        """The edges as ingest would store them."""
        src, dst = (
            np.concatenate([np.empty(0, np.int64), *self.src]),
            np.concatenate([np.empty(0, np.int64), *self.dst]),
        )
        if rules.remove_self_loops:
            src, dst = src[src != dst], dst[src != dst]
        if rules.symmetrize:
            src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        if rules.symmetrize or rules.deduplicate:
            order = np.lexsort((src, dst))
            src, dst = src[order], dst[order]
            new = np.ones(len(src), np.bool_)
            new[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
            src, dst = src[new], dst[new]
        return src, dst

    def _as_integers(self, ids: Ids) -> IdArray:
        """Hashes of names: only which of them are equal matters."""
        if ids.dtype.kind in "iu":
            return ids
        names = pl.Series(ids, dtype=pl.String)
        self.name_bytes = max(self.name_bytes, int(names.str.len_bytes().to_numpy().max(initial=0)))
        hashes: I64Array = names.hash().to_numpy().view(np.int64)
        return hashes

    def _keep(self, src: IdArray, dst: IdArray) -> None:
        chosen = self.chosen(src) | self.chosen(dst) if self.level else slice(None)
        self.src.append(src[chosen].astype(np.int64))
        self.dst.append(dst[chosen].astype(np.int64))


def _joined(parts: list[I64Array]) -> I64Array:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _alike(in_degree: I64Array, out_degree: I64Array, unseen: float) -> DegreeSample:
    """Put nodes of like degrees together."""
    in_bin, out_bin = _bins(in_degree), _bins(out_degree)
    width = int(out_bin.max(initial=0)) + 1
    # One node without any edge, which `unseen` replaces, so that there is a first kind whose degrees are 0.
    _, place = np.unique(np.concatenate([[0], in_bin * width + out_bin]), return_inverse=True)
    nodes = np.bincount(place).astype(np.float64)
    mean_in = np.bincount(place, np.concatenate([[0], in_degree])) / nodes
    mean_out = np.bincount(place, np.concatenate([[0], out_degree])) / nodes
    nodes[0] += unseen - 1
    return DegreeSample(nodes, mean_in, mean_out)


def _bins(degree: I64Array) -> I64Array:
    """Number of a degree's bin: small ones are told apart, greater ones by a factor."""
    large = np.log(np.maximum(degree, _EXACT) / _EXACT) / np.log(_STEP)
    bins: I64Array = np.where(degree <= _EXACT, degree, _EXACT + np.ceil(large).astype(np.int64))
    return bins


def _completed(sample: DegreeSample, share: float) -> DegreeSample:
    """The likeliest degrees where each edge was read with a probability: a mixture of Poisson laws, fitted by EM.

    Source: Richardson, J. Opt. Soc. Am. 62 (1972), and Lucy, Astron. J. 79 (1974); both degrees at once.
    """
    seen_in, in_bin = np.unique(sample.in_degree, return_inverse=True)
    seen_out, out_bin = np.unique(sample.out_degree, return_inverse=True)
    seen_IO = np.zeros((len(seen_in), len(seen_out)))
    np.add.at(seen_IO, (in_bin, out_bin), sample.nodes)
    in_degree, out_degree = (_grid(float(seen.max(initial=0)) / share) for seen in (seen_in, seen_out))
    chance_IG, chance_OG = _poisson(seen_in, share * in_degree), _poisson(seen_out, share * out_degree)
    nodes_GG = np.full((len(in_degree), len(out_degree)), seen_IO.sum() / len(in_degree) / len(out_degree))
    for _ in range(_ITERATIONS):
        expected_IO = chance_IG @ nodes_GG @ chance_OG.T
        nodes_GG *= chance_IG.T @ (seen_IO / np.maximum(expected_IO, 1e-300)) @ chance_OG
    at_in, at_out = np.nonzero(nodes_GG > 1e-9 * nodes_GG.sum())
    return DegreeSample(nodes_GG[at_in, at_out], in_degree[at_in], out_degree[at_out], read_share=share)


def _grid(largest: float) -> F64Array:
    """Degrees that nodes may have."""
    steps = _STEP ** np.arange(1, max(2, int(np.log(max(1.0, 2 * largest / 4)) / np.log(_STEP)) + 2))
    return np.concatenate([[0.0, 1.0, 2.0, 3.0, 4.0], 4 * steps])


def _poisson(seen: F64Array, mean: F64Array) -> F64Array:
    """(len(seen), len(mean)) chance to see each count; where counts stand for several, that of their mean."""
    log: Any = xlogy(seen[:, None], mean) - mean - gammaln(seen[:, None] + 1)
    chance: F64Array = np.exp(log)
    return chance
