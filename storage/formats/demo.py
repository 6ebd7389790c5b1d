"""The demo graph: power-law degrees, planted communities, noisy features; of any size, from its seed alone.

A degree-corrected planted partition (Karrer and Newman, Phys. Rev. E 83, 2011) in the form that needs no table: node
weights follow rank^(-1/(exponent-1)), so an endpoint is one closed-form draw, and the communities interleave the ranks,
so each has the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.rng import Purpose, U64Array, bounded, stream_key, uniform_u64
from storage.formats.base import CHUNK_EDGES, EdgeChunk, FeatureTable, GraphSource, IdArray, LabelColumn, rows_per_chunk

FloatArray = npt.NDArray[np.float64]

_HELD_BYTES = 8  # a node: which has each rank, and the order that splits are cut from
_SOURCE, _COMMUNITY, _TARGET, _OTHER, _NODE_ORDER, _CENTRES, _NOISE, _SPLIT = range(8)


@dataclass(frozen=True)
class DemoEdges:
    """The edges of the demo graph: each a pure function of the seed and its own number."""

    num_nodes: int
    """Number of nodes."""
    num_edges: int
    """Number of edges."""
    classes: int
    """Number of communities."""
    exponent: float
    """Exponent of the degrees' power law."""
    homophily: float
    """Share of edges within a community."""
    seed: int
    """Seed of the generator."""
    node_of_rank_N: IdArray
    """(N,) node that has each rank by weight; the rank modulo `classes` is its community."""

    def chunks(self) -> Iterator[EdgeChunk]:
        """Generate the edges anew."""
        for start in range(0, self.num_edges, CHUNK_EDGES):
            numbers = np.arange(start, min(start + CHUNK_EDGES, self.num_edges), dtype=np.uint64)
            src_rank = self._draw_rank(_SOURCE, numbers)
            dst_rank = self._draw_target(numbers, src_rank)
            yield self.node_of_rank_N[src_rank], self.node_of_rank_N[dst_rank]

    def locate(self, row: int) -> str:
        """Name an edge."""
        return f"generated edge {row}"

    def _bits(self, what: int, numbers: U64Array) -> U64Array:
        return uniform_u64(stream_key(Purpose.DEMO, self.seed, what), numbers)

    def _draw_rank(self, what: int, numbers: U64Array) -> npt.NDArray[np.int64]:
        """Draw ranks of all nodes by weight."""
        return power_law(to_unit(self._bits(what, numbers)), 1.0, self.num_nodes, self.exponent)

    def _draw_target(self, numbers: U64Array, src_rank: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Draw ranks by weight within a community: the source's, or another one."""
        community = src_rank % self.classes
        leaves = to_unit(self._bits(_COMMUNITY, numbers)) >= self.homophily
        others = np.array([max(1, self.classes - 1)], np.uint64)
        shift = 1 + bounded(self._bits(_OTHER, numbers), others).astype(np.int64)
        community = np.where(leaves, (community + shift) % self.classes, community)
        # Community c has the ranks c, c + C, c + 2C, ...; in units of C their weights start at (c + 1) / C.
        members = (self.num_nodes - community + self.classes - 1) // self.classes
        first = (community + 1) / self.classes
        place = power_law(to_unit(self._bits(_TARGET, numbers)), first, members, self.exponent)
        return place * self.classes + community


def open_demo(
    *,
    nodes: int,
    edges: int,
    classes: int,
    feature_dim: int,
    exponent: float,
    homophily: float,
    noise: float,
    train_fraction: float,
    valid_fraction: float,
    seed: int,
) -> GraphSource:
    """Describe a demo graph; nothing is generated before it is read.

    Parameters
    ----------
    nodes, edges : int
        Size; edges are directed.
    classes : int
        Communities, which are the labels.
    feature_dim : int
        Features a node.
    exponent : float
        Exponent of the degrees' power law, above 1.5.
    homophily : float
        Share of edges within a community.
    noise : float
        Standard deviation of each feature around its community's unit-norm centre.
    train_fraction, valid_fraction : float
        Shares of the nodes to train and to validate on; twice the latter are tested on.
    seed : int

    Returns
    -------
    GraphSource
    """
    classes = min(classes, nodes)
    rank_of_node_N = keyed_order(nodes, seed, _NODE_ORDER)
    node_of_rank_N = np.empty_like(rank_of_node_N)
    node_of_rank_N[rank_of_node_N] = np.arange(nodes, dtype=rank_of_node_N.dtype)
    labels_N = rank_of_node_N.astype(np.int64) % classes
    return GraphSource(
        where="the demo graph",
        edges=DemoEdges(nodes, edges, classes, exponent, homophily, seed, node_of_rank_N),
        approx_edges=edges,
        num_nodes=nodes,
        features=_features(labels_N, classes, feature_dim, noise, seed),
        labels=LabelColumn(labels_N, tuple(f"community-{label}" for label in range(classes))),
        splits=_splits(nodes, train_fraction, valid_fraction, seed),
        held_bytes=_HELD_BYTES * nodes,
    )


def _features(labels_N: npt.NDArray[np.int64], classes: int, dim: int, noise: float, seed: int) -> FeatureTable:
    """Features: the community's centre plus noise."""
    centres_CF = normal_rows(stream_key(Purpose.DEMO, seed, _CENTRES), np.arange(classes), dim)
    centres_CF /= np.linalg.norm(centres_CF, axis=1, keepdims=True)
    key = stream_key(Purpose.DEMO, seed, _NOISE)

    def chunks() -> Iterator[npt.NDArray[np.float32]]:
        rows = rows_per_chunk(dim * 4)
        for start in range(0, len(labels_N), rows):
            ids = np.arange(start, min(start + rows, len(labels_N)))
            yield centres_CF[labels_N[ids]] + np.float32(noise) * normal_rows(key, ids, dim)

    return FeatureTable(len(labels_N), dim, np.dtype(np.float32), chunks, "the demo graph's features")


def _splits(nodes: int, train_fraction: float, valid_fraction: float, seed: int) -> dict[str, IdArray]:
    """Cut a random order of the nodes into train, valid and test."""
    order = keyed_order(nodes, seed, _SPLIT)
    train = round(nodes * train_fraction)
    valid = train + round(nodes * valid_fraction)
    test = valid + 2 * round(nodes * valid_fraction)
    return {"train": order[:train], "valid": order[train:valid], "test": order[valid:test]}


def power_law(
    unit: FloatArray, first: FloatArray | float, n: npt.NDArray[np.int64] | int, exponent: float
) -> npt.NDArray[np.int64]:
    """Turn uniform draws into draws from 0..n-1 with weights close to (first + i)^(-1/(exponent-1)).

    The integral of the weights is inverted, so a draw takes no table.
    """
    slope = 1 - 1 / (exponent - 1)
    if abs(slope) < 1e-9:
        x = first * (1 + n / first) ** unit
    else:
        low = first**slope
        x = (low + unit * ((first + n) ** slope - low)) ** (1 / slope)
    return np.minimum((x - first).astype(np.int64), n - 1)


def keyed_order(n: int, seed: int, what: int) -> IdArray:
    """Random order of 0..n-1."""
    hashes = uniform_u64(stream_key(Purpose.DEMO, seed, what), np.arange(n, dtype=np.uint64))
    order = np.argsort(hashes, kind="stable")
    return order.astype(np.int32) if n < 2**31 else order


def normal_rows(key: np.uint64, ids: npt.NDArray[np.integer], dim: int) -> npt.NDArray[np.float32]:
    """(len(ids), dim) normal draws, each row a function of its id: Box-Muller, one 64-bit word a pair."""
    pairs = -(-dim // 2)
    first_cell: U64Array = ids.astype(np.uint64) * np.uint64(pairs)
    cells = np.add.outer(first_cell, np.arange(pairs, dtype=np.uint64))
    bits = uniform_u64(key, cells)
    radius = np.sqrt(-2 * np.log1p(-_to_unit32(bits >> np.uint64(32))))
    angle = np.float32(2 * np.pi) * _to_unit32(bits & np.uint64(2**32 - 1))
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :dim]


def to_unit(bits: U64Array) -> FloatArray:
    """Uniform doubles in [0, 1) from the upper 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _to_unit32(bits: U64Array) -> npt.NDArray[np.float32]:
    """Uniform floats in [0, 1) from the upper 24 of 32 bits."""
    return (bits >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
