"""How large mini-batches are, were, and can get at most: what memory is planned by."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernels.cpu.hash_relabel import SLOT_BYTES, table_slots
from kernels.mfg import Sample
from kernels.nn.layers import PRODUCT_NS, READ_NS
from kernels.nn.model import ModelSpec, build_model
from storage.blocks.hyperbatch import FRONTIER_BYTES, edge_bytes

_FLOAT_BYTES = 4
_OFFSET_BYTES, _LOCAL_BYTES = 8, 4
_GROWING = ("nodes", "edges", "frontier", "inner_bytes", "step_bytes", "step_us")


@dataclass(frozen=True, slots=True)
class HopShape:
    """Sizes of one hop of a mini-batch."""

    num_dst: int
    """Nodes that are expanded."""
    num_src: int
    """Those, and the neighbors drawn."""
    num_edges: int
    """Edges drawn."""


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Sizes of one mini-batch."""

    nodes: int
    """Input nodes."""
    edges: int
    """Sampled edges of all hops."""
    frontier: int
    """Destinations of the last hop, the largest."""
    id_bytes: int
    """Bytes of an id."""
    inner_bytes: int = 0
    """Bytes of all hops but the last."""
    step_bytes: int = 0
    """Bytes of a training step on it."""
    step_us: int = 0
    """Microseconds of a training step on it, on one core."""
    hops: int = 1
    """Hops."""

    @classmethod
    def largest(cls, samples: Sequence[Sample], spec: ModelSpec | None = None) -> BatchSizes:
        """At least as large as each of the mini-batches in every respect; steps are counted where a model is given."""
        sizes = [sizes_of(sample) for sample in samples]
        hops = [(shapes_of(sample), len(sample.input_nodes)) for sample in samples] if spec else []
        steps = [] if spec is None else [(step_bytes(spec, *hop), step_us(spec, hop[0])) for hop in hops]
        return cls(
            max(size.nodes for size in sizes),
            max(size.edges for size in sizes),
            max(size.frontier for size in sizes),
            max(size.id_bytes for size in sizes),
            max(size.inner_bytes for size in sizes),
            max((nbytes for nbytes, _ in steps), default=0),
            max((time_us for _, time_us in steps), default=0),
            max(size.hops for size in sizes),
        )

    @classmethod
    def of_hops(cls, shapes: Sequence[HopShape], num_inputs: int, id_bytes: int) -> BatchSizes:
        """Sizes of a mini-batch with such hops, that of the seeds first, without its step."""
        edges, frontier = sum(shape.num_edges for shape in shapes), max((shape.num_dst for shape in shapes), default=0)
        inner = sum(_OFFSET_BYTES * (shape.num_dst + 1) + _LOCAL_BYTES * shape.num_edges for shape in shapes[:-1])
        return cls(num_inputs, edges, frontier, id_bytes, inner, hops=max(1, len(shapes)))

    def times(self, factor: float) -> BatchSizes:
        """Larger by a factor."""
        grown = {name: int(getattr(self, name) * factor) for name in _GROWING}
        return dataclasses.replace(self, **grown)

    def at_most(self, other: BatchSizes) -> BatchSizes:
        """The smaller ones of both."""
        smaller = {name: min(getattr(self, name), getattr(other, name)) for name in _GROWING}
        return dataclasses.replace(self, **smaller)

    @property
    def sample_bytes(self) -> int:
        """Bytes of its sample."""
        return self.nodes * self.id_bytes + _LOCAL_BYTES * self.edges + 2 * _OFFSET_BYTES * self.frontier

    @property
    def sampling_bytes(self) -> int:
        """Bytes while its last hop is sampled, beside what stays."""
        return FRONTIER_BYTES * self.frontier + edge_bytes(self.id_bytes) * self.edges

    @property
    def table_bytes(self) -> int:
        """Bytes of a thread's hash table while its nodes are numbered."""
        return SLOT_BYTES * table_slots(self.frontier + self.edges)


def sizes_of(sample: Sample) -> BatchSizes:
    """Sizes of a mini-batch, without its step."""
    return BatchSizes.of_hops(shapes_of(sample), len(sample.input_nodes), sample.input_nodes.itemsize)


def shared_nodes(samples: Sequence[Sample]) -> int:
    """Input nodes that the first two mini-batches have in common; none where there is but one."""
    first, *others = (sample.input_nodes for sample in samples)
    return len(np.intersect1d(first, others[0], assume_unique=True)) if others else 0


def shapes_of(sample: Sample) -> list[HopShape]:
    """Sizes of its hops, that of the seeds first."""
    return [HopShape(hop.num_dst, hop.num_src, hop.num_edges) for hop in sample.hops]


def most_hops(
    num_nodes: int, num_edges: int, fanouts: Sequence[int], num_seeds: int, *, replace: bool
) -> tuple[list[HopShape], int]:
    """Bound the hops of any mini-batch, that of the seeds first, and its input nodes; parameters as below."""
    nodes, shapes = min(num_seeds, num_nodes), list[HopShape]()
    for fanout in reversed(fanouts):
        edges = num_edges if fanout < 0 else nodes * fanout
        edges = edges if replace else min(edges, num_edges)
        shapes.append(HopShape(nodes, min(nodes + edges, num_nodes), edges))
        nodes = shapes[-1].num_src
    return shapes, nodes


def largest_possible(
    num_nodes: int,
    num_edges: int,
    fanouts: Sequence[int],
    num_seeds: int,
    id_bytes: int,
    spec: ModelSpec,
    *,
    replace: bool,
) -> BatchSizes:
    """Bound any mini-batch.

    Parameters
    ----------
    num_nodes, num_edges : int
        Of the graph.
    fanouts : sequence of int
        From the input layer to the seed layer.
    num_seeds : int
    id_bytes : int
        Of an id.
    spec : ModelSpec
    replace : bool
        Whether neighbors are drawn with replacement.
    """
    shapes, nodes = most_hops(num_nodes, num_edges, fanouts, num_seeds, replace=replace)
    sizes = BatchSizes.of_hops(shapes, nodes, id_bytes)
    return dataclasses.replace(sizes, step_bytes=step_bytes(spec, shapes, nodes), step_us=step_us(spec, shapes))


def step_bytes(spec: ModelSpec, shapes: Sequence[HopShape], num_inputs: int) -> int:
    """Bound what a training step on a mini-batch takes: rows of all layers, their gradients, weights."""
    layers = build_model(spec, seed=0).ordered_layers()
    hops = [*reversed(shapes)] or [HopShape(num_inputs, num_inputs, 0)] * len(layers)
    most = 0
    for index, (layer, hop) in enumerate(zip(layers, hops, strict=True)):
        wide = spec.num_heads * (layer.out_dim + 2) if spec.kind == "gat" else layer.projected_dim
        projected = hop.num_src * 2 * wide if index or layer.transform_first else 0
        attention = 3 * spec.num_heads * hop.num_edges if spec.kind == "gat" else 0
        most += hop.num_dst * (2 * layer.in_dim + 5 * layer.out_dim) + projected + attention
    weights = sum(parameter.numel() for layer in layers for parameter in layer.parameters())
    return _FLOAT_BYTES * (most + 6 * weights)


def step_us(spec: ModelSpec, shapes: Sequence[HopShape]) -> int:
    """Estimate a training step on a mini-batch, on one core: products forward, and back but for the input; reads."""
    time_ns, layers = 0.0, build_model(spec, seed=0).ordered_layers()
    for index, (layer, hop) in enumerate(zip(layers, reversed(shapes), strict=bool(shapes))):
        passes = 3 if index else 2
        weights = sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() > 1)
        rows = hop.num_src if index and layer.transform_first else hop.num_dst
        time_ns += passes * (
            rows * weights * PRODUCT_NS + hop.num_edges * min(layer.in_dim, layer.projected_dim) * READ_NS
        )
    return int(time_ns / 1000)
