"""What an epoch has to do, before there is a store: its graph, its network, a mini-batch, and what each part takes."""

from __future__ import annotations

from dataclasses import dataclass

from conf.schema import PipelineConfig
from kernels.nn.model import ModelSpec
from tasks.batch_sizes import sizes_of_hops
from tasks.expected_batches import ExpectedBatch, expected_batch
from tasks.expected_epoch import BatchSeconds
from tasks.expected_graph import ExpectedGraph
from tasks.first_batches import FirstBatches
from tasks.machine_rates import row_seconds, sampling_seconds, step_seconds
from tasks.training_config import train_options
from tasks.training_types import TrainOptions


@dataclass(frozen=True)
class Workload:
    """What an epoch has to do."""

    graph: ExpectedGraph
    """The graph."""
    options: TrainOptions
    """How it is trained on."""
    spec: ModelSpec
    """The network."""
    batch: ExpectedBatch
    """A mini-batch."""
    validated: ExpectedBatch
    """All neighbors of the nodes that are validated on."""

    @property
    def num_batches(self) -> int:
        """Mini-batches of an epoch."""
        return max(1, -(-self.graph.store.info.split_sizes["train"] // self.options.batch_size))

    @property
    def first(self) -> FirstBatches:
        """What training expects of its mini-batches."""
        id_bytes = 4 if self.graph.store.info.num_nodes < 2**31 else 8
        shapes, nodes = self.batch.shapes, self.batch.num_inputs
        are_integers = self.graph.store.info.has_integer_features
        seeds = min(self.options.batch_size, max(1, self.graph.store.info.split_sizes["train"]))
        sizes = sizes_of_hops(shapes, nodes, seeds, id_bytes, self.spec, are_integers=are_integers)
        return FirstBatches(sizes, self.batch.shared_nodes)


def workload(config: PipelineConfig, graph: ExpectedGraph) -> Workload:
    """Expect an epoch's mini-batches, and what validation reaches."""
    options, info = train_options(config, None), graph.store.info
    spec = options.model_spec(max(1, info.feature_dim), max(1, info.num_classes))
    seeds = min(options.batch_size, max(1, info.split_sizes["train"]))
    everything = [-1] * spec.num_layers if spec.needs_graph else []
    return Workload(
        graph,
        options,
        spec,
        expected_batch(graph.degrees, options.fanouts, seeds, replace=options.replace),
        expected_batch(graph.degrees, everything, info.split_sizes["valid"]),
    )


def batch_seconds(work: Workload) -> BatchSeconds:
    """Time what a mini-batch takes."""
    info, batch = work.graph.store.info, work.batch
    edges = sum(shape.num_edges for shape in batch.shapes)
    return BatchSeconds(
        sampling=edges * sampling_seconds(work.options.fanouts, info.num_edges / info.num_nodes),
        rows=batch.num_inputs * row_seconds(info.feature_row_bytes),
        step=step_seconds(work.spec, batch.shapes, batch.num_inputs),
    )
