"""How large mini-batches are, were, and can get at most: what memory is planned by."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.cpu.hash_relabel import SLOT_BYTES, table_slots
from kernels.mfg import Sample
from kernels.nn.model import ModelSpec
from storage.blocks.hyperbatch import FRONTIER_BYTES, edge_bytes
from tasks.step_costs import HopShape, step_bytes, step_us

_OFFSET_BYTES, _LOCAL_BYTES, _INVERSE_BYTES = 8, 4, 8
_GROWING = ("nodes", "edges", "frontier", "inner_bytes", "step_bytes", "step_us", "offsets", "seeds")


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
    offsets: int = 0
    """Entries of the offsets of all hops."""
    seeds: int = 0
    """Seeds, each as often as it was given."""

    @classmethod
    def largest(cls, sizes: Sequence[BatchSizes]) -> BatchSizes:
        """At least as large as each of some in every respect."""
        return cls(*map(max, zip(*map(dataclasses.astuple, sizes), strict=True)))

    def times(self, factor: float) -> BatchSizes:
        """Larger by a factor."""
        grown = {name: int(getattr(self, name) * factor) for name in _GROWING}
        return dataclasses.replace(self, **grown)

    def at_most(self, other: BatchSizes) -> BatchSizes:
        """The smaller ones of both."""
        smaller = {name: min(getattr(self, name), getattr(other, name)) for name in _GROWING}
        return dataclasses.replace(self, **smaller)

    @property
    def inverse_bytes(self) -> int:
        """Bytes of what says which row of the output belongs to which seed."""
        return _INVERSE_BYTES * self.seeds

    @property
    def sample_bytes(self) -> int:
        """Bytes of its sample."""
        hops = _LOCAL_BYTES * self.edges + _OFFSET_BYTES * self.offsets
        return self.nodes * self.id_bytes + hops + self.inverse_bytes

    @property
    def sampling_bytes(self) -> int:
        """Bytes while its last hop is sampled, beside what stays."""
        return FRONTIER_BYTES * self.frontier + edge_bytes(self.id_bytes) * self.edges

    @property
    def table_bytes(self) -> int:
        """Bytes of a thread's hash table while its nodes are numbered."""
        return SLOT_BYTES * table_slots(self.frontier + self.edges)


def sizes_of(sample: Sample, spec: ModelSpec | None = None, *, are_integers: bool = False) -> BatchSizes:
    """Sizes of a mini-batch; its step is counted where a model is given."""
    nodes, seeds = sample.input_nodes, len(sample.seed_inverse)
    return sizes_of_hops(shapes_of(sample), len(nodes), seeds, nodes.itemsize, spec, are_integers=are_integers)


def sizes_of_hops(
    shapes: Sequence[HopShape],
    num_inputs: int,
    num_seeds: int,
    id_bytes: int,
    spec: ModelSpec | None = None,
    *,
    are_integers: bool = False,
) -> BatchSizes:
    """Sizes of a mini-batch of such hops, that of the seeds first; its step is counted where a model is given."""
    return BatchSizes(
        nodes=num_inputs,
        edges=sum(shape.num_edges for shape in shapes),
        frontier=max((shape.num_dst for shape in shapes), default=0),
        id_bytes=id_bytes,
        inner_bytes=sum(_OFFSET_BYTES * (shape.num_dst + 1) + _LOCAL_BYTES * shape.num_edges for shape in shapes[:-1]),
        step_bytes=0 if spec is None else step_bytes(spec, shapes, num_inputs, are_integers=are_integers),
        step_us=0 if spec is None else step_us(spec, shapes),
        hops=max(1, len(shapes)),
        offsets=sum(shape.num_dst + 1 for shape in shapes),
        seeds=num_seeds,
    )


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
    return sizes_of_hops(shapes, nodes, num_seeds, id_bytes, spec, are_integers=are_integers)
