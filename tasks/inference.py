"""Exact inference: layer by layer over all neighbors, only needed nodes, in chunks that fit a byte budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.cpu.aligned import aligned
from kernels.cpu.mark import mark_neighbors
from kernels.distinct import distinct
from kernels.mfg import IdArray, Mfg, TierReads
from kernels.nn.layers import Layer, NodeDegrees
from kernels.nn.model import GnnModel, ModelSpec, build_model, edgeless_mfg
from kernels.rank_map import RankMap
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.topology import Topology
from storage.cache.tiers import FeatureTiers

DEFAULT_CHUNK_BYTES = 256 << 20
CHUNKS_AT_WORK = 4
"""Chunk sizes that a chunk takes while it is combined: its rows, what sampling finds, and what comes of them."""
_EDGE_BYTES = 12  # a local source position and, while sampling, a node id
_FLOAT_BYTES = 4
_NEEDED_BYTES = 9  # a node that a layer needs: its id, its place in the map, its mark

Rows = Callable[[IdArray], Tensor]
"""Rows of some nodes, float32 but for features, which come as stored."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """Output of exact inference, and what it read."""

    logits: Tensor
    """(n, num_classes) float32, one row for each node asked for, in that order."""
    feature_reads: TierReads
    """Feature rows read."""
    adjacency_reads: TierReads
    """Adjacency lists read, one a destination and layer."""


class ExactInference:
    """Predicts fixed nodes from their complete neighborhoods; construct once, run after every epoch.

    Memory: the needed nodes' rows on both sides of one layer, and chunks of destinations of at most `chunk_bytes`
    each (one destination is the least, however many neighbors it has); `inference_bytes` bounds it. The outcome is
    the same to rounding for any chunk size.

    Parameters
    ----------
    topology : Topology
    nodes : (n,) integer array
        Any order; duplicates are allowed.
    spec : ModelSpec
        Of the models to run.
    degrees : NodeDegrees, optional
        Whole-graph degrees of all nodes (GCN).
    chunk_bytes : int
        Most bytes of the rows and edges of one chunk.

    Raises
    ------
    ValueError
        If a node is out of range or the budget is not positive.
    """

    def __init__(
        self,
        topology: Topology,
        nodes: IdArray,
        spec: ModelSpec,
        *,
        degrees: NodeDegrees | None = None,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    ) -> None:
        if chunk_bytes < 1:
            raise ValueError(f"chunk_bytes must be >= 1 (got {chunk_bytes})")
        if len(nodes) and (int(nodes.min()) < 0 or int(nodes.max()) >= topology.num_nodes):
            raise ValueError(f"nodes must lie in [0, {topology.num_nodes}) (got {nodes.min()}..{nodes.max()})")
        self._topology = topology
        self._spec = spec
        self._degrees = degrees
        self._chunk_bytes = chunk_bytes
        # All neighbors are taken, so nothing is drawn and the identity of the draws does not matter.
        self._sampler = NeighborSampler(topology, [-1], seed=0, purpose=Purpose.VALIDATE) if spec.needs_graph else None
        self._nodes = nodes.astype(np.int64, copy=False)
        self._needed = _needed_nodes(topology, distinct(self._nodes), spec)
        self._slots = [RankMap.from_sorted_ids(ids, topology.num_nodes) for ids in self._needed]

    def run(self, model: GnnModel, features: FeatureTiers) -> Predictions:
        """Predict with one model.

        Parameters
        ----------
        model : GnnModel
        features : FeatureTiers

        Returns
        -------
        Predictions

        Raises
        ------
        ValueError
            If the model's spec is not the one that this was made for: other layers need other nodes.
        """
        if model.spec != self._spec:
            raise ValueError(f"this inference is for {self._spec}, the model has {model.spec}")
        before, adjacency_reads = features.reads, TierReads()
        rows: Rows = partial(_feature_rows, features)
        with torch.no_grad():
            for index, layer in enumerate(model.ordered_layers()):
                # Raw rows come with a copy in their storage dtype.
                row_bytes = _FLOAT_BYTES * layer.in_dim * (1 if index else 2)
                if layer.transform_first:
                    rows = self._projected(layer, index, rows, row_bytes)
                    row_bytes = _FLOAT_BYTES * layer.projected_dim
                rows = self._combined(model, index, rows, row_bytes, adjacency_reads)
            return Predictions(rows(self._nodes), features.reads.since(before), adjacency_reads)

    def _projected(self, layer: Layer, index: int, rows: Rows, row_bytes: int) -> Rows:
        """Project the rows of all needed sources, each once."""
        ids = self._needed[index]
        projected = torch.empty(len(ids), layer.projected_dim)
        step = max(1, self._chunk_bytes // (row_bytes + _FLOAT_BYTES * layer.projected_dim))
        for begin in range(0, len(ids), step):
            projected[begin : begin + step] = layer.project(rows(ids[begin : begin + step]))
        return self._rows_of(index, projected)

    def _combined(self, model: GnnModel, index: int, rows: Rows, row_bytes: int, adjacency_reads: TierReads) -> Rows:
        """Combine all needed destinations of one layer, activations included."""
        layer, targets = model.ordered_layers()[index], self._needed[index + 1]
        out = torch.empty(len(targets), layer.out_dim)
        row_bytes += _FLOAT_BYTES * layer.out_dim
        for begin, end in self._chunks(targets, len(self._needed[index]), row_bytes):
            mfg, source_ids = self._full_hop(targets[begin:end], adjacency_reads)
            degrees_S = self._degrees.take(source_ids) if self._degrees is not None else None
            z_SP = rows(source_ids) if layer.transform_first else layer.project(rows(source_ids))
            # Activated here, so that no second copy of all rows is made.
            out[begin:end] = model.activate(index, layer.combine(mfg, z_SP, degrees_S))
        return self._rows_of(index + 1, out)

    def _full_hop(self, targets: IdArray, adjacency_reads: TierReads) -> tuple[Mfg, IdArray]:
        if self._sampler is None:
            return edgeless_mfg(len(targets)), targets
        sampled = self._sampler.sample([targets], epoch=0, first_batch=0)
        adjacency_reads.add(sampled.adjacency_reads)
        return sampled.samples[0].hops[0], sampled.samples[0].input_nodes

    def _chunks(self, targets: IdArray, num_sources: int, row_bytes: int) -> Iterator[tuple[int, int]]:
        """Ranges of destinations whose rows and edges fit the budget, whichever sources they share."""
        indptr = self._topology.indptr
        degree_D = indptr[targets + 1] - indptr[targets] if self._sampler is not None else np.zeros_like(targets)
        # A destination costs its own row, an edge at most one more.
        bytes_D = row_bytes + degree_D * (row_bytes + _EDGE_BYTES)
        total = np.concatenate([[0], np.cumsum(bytes_D)])
        if num_sources * row_bytes + int(degree_D.sum()) * _EDGE_BYTES <= self._chunk_bytes:
            yield 0, len(targets)
            return
        begin = 0
        while begin < len(targets):
            fits = int(np.searchsorted(total, total[begin] + self._chunk_bytes, side="right")) - 1
            end = max(fits, begin + 1)
            yield begin, end
            begin = end

    def _rows_of(self, level: int, rows_ND: Tensor) -> Rows:
        """Access to the rows of `needed[level]` by node id."""

        def rows(ids: IdArray) -> Tensor:
            slots = self._slots[level].slots(ids)
            if slots.min(initial=0) < 0:  # it would index from the end
                raise ValueError(f"node {ids[slots < 0][0]} is not among those whose rows layer {level} needs")
            return rows_ND[torch.from_numpy(slots)]

        return rows


def inference_bytes(
    spec: ModelSpec, num_nodes: int, num_edges: int, chunk_bytes: int = DEFAULT_CHUNK_BYTES, *, prepared: int = 1
) -> int:
    """Bound the memory of exact inference, whichever nodes it predicts.

    Parameters
    ----------
    spec : ModelSpec
    num_nodes, num_edges : int
        Of the graph.
    chunk_bytes : int
    prepared : int
        How many `ExactInference` there are; one runs at a time.

    Returns
    -------
    int
        Bytes: the lists and maps of needed nodes, rows on both sides of the widest layer, and a chunk at work.
    """
    layers = build_model(spec, seed=0).ordered_layers()
    held, handled = 0, 0
    for index, layer in enumerate(layers):
        before = layer.in_dim if index else 0  # features stay in the tiers
        projected = layer.projected_dim if layer.transform_first else before
        held = max(held, before + projected, projected + layer.out_dim)
        handled = max(handled, layer.in_dim * (1 if index else 2) + layer.out_dim, layer.projected_dim + layer.out_dim)
    whole_graph = num_nodes * _FLOAT_BYTES * handled + num_edges * _EDGE_BYTES
    # The nodes asked for, the marks while neighbors are collected, and the sampler's table are one more each.
    needed = (prepared * (len(layers) + 1) + 3) * _NEEDED_BYTES
    rows = _FLOAT_BYTES * (held + layers[-1].out_dim)
    return num_nodes * (rows + needed) + CHUNKS_AT_WORK * min(chunk_bytes, whole_graph)


def _feature_rows(features: FeatureTiers, ids: IdArray) -> Tensor:
    return torch.from_numpy(aligned(features.gather(ids)))


def _needed_nodes(topology: Topology, nodes: npt.NDArray[np.int64], spec: ModelSpec) -> list[npt.NDArray[np.int64]]:
    """Ascending ids whose rows each layer reads, from the input to the output (`num_layers` + 1 arrays)."""
    needed = [nodes]
    for _ in range(spec.num_layers):
        if not spec.needs_graph:
            needed.append(nodes)
            continue
        marked_N = np.zeros(topology.num_nodes, np.bool_)
        mark_neighbors(topology.indptr, topology.indices, needed[-1], marked_N)
        needed.append(np.flatnonzero(marked_N))
    return needed[::-1]
