"""Our samples in the two batch conventions of PyTorch Geometric, without importing it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.mfg import Mfg, Sample

I64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PygBatch:
    """A mini-batch as `torch_geometric.loader.NeighborLoader` gives it: one edge list for all layers.

    `conv(x, edge_index)` for every layer leaves the seeds' output in the first `batch_size` rows. With
    `trim_to_layer(i, num_sampled_nodes, num_sampled_edges, x, edge_index)` before layer i they are the same, for less
    work.
    """

    edge_index: Tensor
    """(2, num_edges) int64: source and destination of each edge, as rows of `n_id`; hop by hop from the seeds."""
    n_id: Tensor
    """(num_nodes,) int64 ids: the unique seeds, then what each hop found."""
    input_rows: Tensor
    """(num_nodes,) int64 row of `sample.input_nodes`, and so of the gathered features, of each node."""
    batch_size: int
    """Number of unique seeds."""
    num_sampled_nodes: list[int]
    """(num_hops + 1,) seeds, and new nodes of each hop."""
    num_sampled_edges: list[int]
    """(num_hops,) edges of each hop."""


@dataclass(frozen=True, slots=True)
class PygLayer:
    """One layer's bipartite graph, as `torch_geometric.loader.NeighborSampler` gives it."""

    edge_index: Tensor
    """(2, num_edges) int64: source and destination of each edge, as rows of the layer's input and output."""
    size: tuple[int, int]
    """Number of sources and of destinations, which are the first sources."""


def to_pyg_layers(sample: Sample) -> list[PygLayer]:
    """One bipartite graph a layer: what our own layers and DGL's compute on, edge for edge.

    Parameters
    ----------
    sample : Sample

    Returns
    -------
    list of PygLayer
        From the input layer to the seed layer: `x = conv((x, x[: layer.size[1]]), layer.edge_index)`, where the first
        `x` are the features of `sample.input_nodes`.
    """
    return [PygLayer(_edge_index(mfg), (mfg.num_src, mfg.num_dst)) for mfg in reversed(sample.hops)]


def to_pyg(sample: Sample) -> PygBatch:
    """One edge list for all layers: the neighbors of a node are those drawn when it was first reached.

    `NeighborLoader` draws the neighbors of each node once; we, as DGL, draw those of every destination anew in each
    hop. So this keeps, of each node, the first draw, and leaves out what only later draws reached. The law is that of
    `NeighborLoader`, its `num_neighbors` being our fanouts reversed. What a model computes on it equals `to_pyg_layers`
    where there is one hop, or where all neighbors are taken; elsewhere it is another estimate of the same thing.

    Parameters
    ----------
    sample : Sample

    Returns
    -------
    PygBatch
        Seeds given twice share a row: `out[: batch_size][sample.seed_inverse]` has a row for each seed given.
    """
    place = np.full(len(sample.input_nodes), -1, np.int64)
    frontier = np.arange(sample.num_seed_rows)
    place[frontier] = frontier
    found, edges = [frontier], []
    for mfg in sample.hops:
        src, dst = _edges_of(mfg, frontier)
        is_new = np.zeros(len(place), np.bool_)
        is_new[src] = place[src] < 0
        new = np.flatnonzero(is_new)
        start = sum(map(len, found))
        place[new] = np.arange(start, start + len(new))
        edges.append(np.stack([place[src], place[dst]]))
        found.append(new)
        frontier = new
    rows = np.concatenate(found)
    return PygBatch(
        edge_index=torch.from_numpy(np.concatenate([np.empty((2, 0), np.int64), *edges], axis=1)),
        n_id=torch.from_numpy(sample.input_nodes[rows].astype(np.int64)),
        input_rows=torch.from_numpy(rows),
        batch_size=sample.num_seed_rows,
        num_sampled_nodes=[len(nodes) for nodes in found],
        num_sampled_edges=[hop.shape[1] for hop in edges],
    )


def _edge_index(mfg: Mfg) -> Tensor:
    src, dst = _edges_of(mfg, np.arange(mfg.num_dst))
    return torch.from_numpy(np.stack([src, dst]))


def _edges_of(mfg: Mfg, dst: I64Array) -> tuple[I64Array, I64Array]:
    """Sources and destinations of the edges of some destinations, row by row."""
    degree = mfg.indptr[dst + 1] - mfg.indptr[dst]
    first_edge = np.cumsum(degree) - degree
    edges = np.arange(int(degree.sum())) + np.repeat(mfg.indptr[dst] - first_edge, degree)
    return mfg.indices[edges].astype(np.int64), np.repeat(dst, degree)
