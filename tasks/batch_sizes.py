"""How large mini-batches are, were, and can get at most: what memory is planned by."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernels.cpu.hash_relabel import SLOT_BYTES, table_slots
from kernels.mfg import Sample
from kernels.nn.model import ModelSpec
from storage.blocks.hyperbatch import FRONTIER_BYTES, edge_bytes
from tasks.step_costs import HopShape, step_bytes, step_us

_OFFSET_BYTES, _LOCAL_BYTES = 8, 4
_GROWING = ("nodes", "edges", "frontier", "inner_bytes", "step_bytes", "step_us")


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
    def largest(
        cls, samples: Sequence[Sample], spec: ModelSpec | None = None, *, are_integers: bool = False
    ) -> BatchSizes:
        """At least as large as each of the mini-batches in every respect; steps are counted where a model is given."""
        sizes = [sizes_of(sample) for sample in samples]
        hops = [(shapes_of(sample), len(sample.input_nodes)) for sample in samples]
        steps = (
            [(step_bytes(spec, *hop, are_integers=are_integers), step_us(spec, hop[0])) for hop in hops]
            if spec is not None
            else []
        )
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
    are_integers: bool = False,
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
    are_integers : bool
        Whether features are stored as integers.
    """
    shapes, nodes = most_hops(num_nodes, num_edges, fanouts, num_seeds, replace=replace)
    sizes = BatchSizes.of_hops(shapes, nodes, id_bytes)
    step = step_bytes(spec, shapes, nodes, are_integers=are_integers)
    return dataclasses.replace(sizes, step_bytes=step, step_us=step_us(spec, shapes))
