"""R-MAT graphs of any size, generated as they are read: nothing but labels and splits is ever held.

Chakrabarti, Zhan and Faloutsos, "R-MAT: A Recursive Model for Graph Mining", SDM 2004; probabilities and shuffled ids
as in Graph500.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from kernels.cpu.intrinsics import child
from kernels.rng import Purpose, stream_key, uniform_u64
from storage.csc import empty_ids
from storage.formats.base import CHUNK_EDGES, EdgeChunk, FeatureTable, GraphSource, IdArray, LabelColumn, rows_per_chunk
from storage.formats.demo import normal_rows, to_unit

_jit = numba.njit(nogil=True, cache=True)

_EDGES, _LABELS, _SPLIT, _CENTRES, _NOISE, _NOISE_ROW = range(6)
# Of each 16 bits, these quadrants of the adjacency matrix: A = 0.57, B = C = 0.19, D = 0.05.
_A, _AB, _ABC = (round(65536 * share) for share in (0.57, 0.76, 0.95))
_LEVELS_PER_WORD = 4
_NOISE_ROWS = 4096
_ODD = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)


@dataclass(frozen=True)
class RmatEdges:
    """Edges of an R-MAT graph, each a pure function of the seed and its own number."""

    scale: int
    """There are 2**scale nodes."""
    num_edges: int
    """Number of edges; they repeat, and there are self loops."""
    seed: int
    """Seed of the generator."""

    def chunks(self) -> Iterator[EdgeChunk]:
        """Generate the edges anew."""
        key = stream_key(Purpose.DEMO, self.seed, _EDGES)
        for first in range(0, self.num_edges, CHUNK_EDGES):
            count = min(CHUNK_EDGES, self.num_edges - first)
            src, dst = empty_ids(count, 1 << self.scale), empty_ids(count, 1 << self.scale)
            _generate(np.uint64(key), first, self.scale, src, dst)
            yield src, dst

    def locate(self, row: int) -> str:
        """Name an edge."""
        return f"generated edge {row}"


def open_rmat(
    *,
    scale: int,
    edges: int,
    classes: int,
    feature_dim: int,
    noise: float,
    train_fraction: float,
    valid_fraction: float,
    seed: int,
) -> GraphSource:
    """Describe an R-MAT graph; nothing is generated before it is read.

    Classes are drawn independently of the edges; features are float16, a class's centre plus one of 4096 rows of noise.

    Parameters
    ----------
    scale : int
        There are 2**scale nodes.
    edges : int
        Directed edges.
    classes : int
    feature_dim : int
    noise : float
        Standard deviation of each feature around its class's unit-norm centre.
    train_fraction, valid_fraction : float
        Shares of the nodes, about, to train and to validate on; as many as the latter are tested on.
    seed : int

    Returns
    -------
    GraphSource
    """
    num_nodes = 1 << scale
    labels_N = np.empty(num_nodes, np.int32)
    for nodes, bits in _hashed(num_nodes, seed, _LABELS):
        labels_N[nodes] = bits % np.uint64(classes)
    return GraphSource(
        where=f"the R-MAT graph of scale {scale}",
        edges=RmatEdges(scale, edges, seed),
        approx_edges=edges,
        num_nodes=num_nodes,
        features=_features(labels_N, classes, feature_dim, noise, seed),
        labels=LabelColumn(labels_N, tuple(f"class-{label}" for label in range(classes))),
        splits=_splits(num_nodes, train_fraction, valid_fraction, seed),
    )


def _features(labels_N: npt.NDArray[np.int32], classes: int, dim: int, noise: float, seed: int) -> FeatureTable:
    centres_CF = normal_rows(stream_key(Purpose.DEMO, seed, _CENTRES), np.arange(classes), dim)
    centres_CF /= np.linalg.norm(centres_CF, axis=1, keepdims=True)
    noise_RF = np.float32(noise) * normal_rows(stream_key(Purpose.DEMO, seed, _NOISE), np.arange(_NOISE_ROWS), dim)
    key = stream_key(Purpose.DEMO, seed, _NOISE_ROW)

    def chunks() -> Iterator[npt.NDArray[Any]]:
        rows = rows_per_chunk(dim * 8)  # twice what a row takes in float32: a centre and noise
        for first in range(0, len(labels_N), rows):
            nodes = np.arange(first, min(first + rows, len(labels_N)))
            row = (uniform_u64(key, nodes) % np.uint64(_NOISE_ROWS)).astype(np.int64)
            yield (centres_CF[labels_N[nodes]] + noise_RF[row]).astype(np.float16)

    return FeatureTable(len(labels_N), dim, np.dtype(np.float16), chunks, "the R-MAT graph's features")


def _splits(num_nodes: int, train_fraction: float, valid_fraction: float, seed: int) -> dict[str, IdArray]:
    """Nodes by where a uniform draw of each falls."""
    ends = np.cumsum([train_fraction, valid_fraction, valid_fraction])
    parts: list[list[npt.NDArray[np.int64]]] = [[], [], []]
    for nodes, bits in _hashed(num_nodes, seed, _SPLIT):
        place = np.searchsorted(ends, to_unit(bits), side="right")
        for number, part in enumerate(parts):
            part.append(nodes[place == number])
    return {split: np.concatenate(part) for split, part in zip(("train", "valid", "test"), parts, strict=True)}


def _hashed(num_nodes: int, seed: int, what: int) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
    """Nodes in ascending order and a random word of each, some at a time."""
    key = stream_key(Purpose.DEMO, seed, what)
    for first in range(0, num_nodes, CHUNK_EDGES):
        nodes = np.arange(first, min(first + CHUNK_EDGES, num_nodes))
        yield nodes, uniform_u64(key, nodes)


@_jit
def _generate(key: np.uint64, first: int, scale: int, src: IdArray, dst: IdArray) -> None:
    """Draw edges: at each level one of four quadrants; then shuffle the ids, which would tell degrees otherwise."""
    for i in range(len(src)):
        edge = child(key, np.uint64(first + i))
        u = v = np.uint64(0)
        word = np.uint64(0)
        for level in range(scale):
            if level % _LEVELS_PER_WORD == 0:
                word = child(edge, np.uint64(level))
            draw = word & np.uint64(0xFFFF)
            word >>= np.uint64(16)
            lower, right = draw >= _AB, (draw >= _A and draw < _AB) or draw >= _ABC
            u = (u << np.uint64(1)) | np.uint64(lower)
            v = (v << np.uint64(1)) | np.uint64(right)
        src[i] = _shuffled(u, scale)
        dst[i] = _shuffled(v, scale)


@_jit
def _shuffled(x: np.uint64, scale: int) -> np.uint64:
    """A bijection of the integers below 2**scale."""
    mask = (np.uint64(1) << np.uint64(scale)) - np.uint64(1)
    half = np.uint64((scale + 1) // 2)
    for odd in _ODD:
        x = (x * np.uint64(odd)) & mask
        x ^= x >> half
    return x
