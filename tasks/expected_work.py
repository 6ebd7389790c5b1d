"""What an epoch has to do, before there is a store: its graph, its network, a mini-batch, and what each part takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from conf.schema import PipelineConfig
from kernels.nn.model import ModelSpec
from storage.graph_store import StoreInfo
from tasks.batch_sizes import BatchSizes, sizes_of_hops
from tasks.expected_batches import ExpectedBatch, expected_batch
from tasks.expected_epoch import BatchSeconds
from tasks.expected_graph import ExpectedGraph
from tasks.first_batches import LONGEST, FirstBatches, tells_by_longest
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
    longest: ExpectedBatch | None
    """One with the seeds whose lists are longest, where seeds take all of their neighbors."""
    validated: ExpectedBatch
    """All neighbors of the nodes that are validated on."""

    @property
    def num_batches(self) -> int:
        """Mini-batches of an epoch."""
        return max(1, -(-self.graph.store.info.split_sizes["train"] // self.options.batch_size))

    @property
    def share_of_ones(self) -> float | None:
        """Of features that are 0 or 1; None where they are others, and where dropout makes them so."""
        as_they_are = self.graph.store.info.has_integer_features and not self.spec.input_dropout
        return self.graph.share_of_ones if as_they_are else None

    @property
    def sizes(self) -> BatchSizes:
        """Of a mini-batch of mean size."""
        return self._sizes(self.batch)

    def first(self, larger: float = 1.0) -> FirstBatches:
        """What training will find of its first mini-batches, if they are larger by a factor than the mean."""
        sizes = [self.sizes.times(larger), *([] if self.longest is None else [self._sizes(self.longest)])]
        return FirstBatches(BatchSizes.largest(sizes), self.batch.shared_nodes)

    def _sizes(self, batch: ExpectedBatch) -> BatchSizes:
        info = self.graph.store.info
        id_bytes = 4 if info.num_nodes < 2**31 else 8
        seeds, are_integers = num_seeds(self.options, info), info.has_integer_features
        return sizes_of_hops(batch.shapes, batch.num_inputs, seeds, id_bytes, self.spec, are_integers=are_integers)


def workload(config: PipelineConfig, graph: ExpectedGraph) -> Workload:
    """Expect an epoch's mini-batches, and what validation reaches."""
    options, info = train_options(config, None), graph.store.info
    spec = options.model_spec(max(1, info.feature_dim), max(1, info.num_classes))
    everything = [-1] * spec.num_layers if spec.needs_graph else []
    batch = partial(expected_batch, graph.degrees, options.fanouts, num_seeds(options, info), replace=options.replace)
    tells = tells_by_longest(options.fanouts)
    return Workload(
        graph,
        options,
        spec,
        batch=batch(),
        longest=batch(longest=LONGEST, all_seeds=info.split_sizes["train"]) if tells else None,
        validated=expected_batch(graph.degrees, everything, info.split_sizes["valid"]),
    )


def num_seeds(options: TrainOptions, info: StoreInfo) -> int:
    """Seeds of a mini-batch."""
    return min(options.batch_size, max(1, info.split_sizes["train"]))


def batch_seconds(work: Workload) -> BatchSeconds:
    """Time what a mini-batch takes."""
    info, batch = work.graph.store.info, work.batch
    edges = sum(shape.num_edges for shape in batch.shapes)
    return BatchSeconds(
        sampling=edges * sampling_seconds(work.options.fanouts, info.num_edges / info.num_nodes),
        rows=batch.num_inputs * row_seconds(info.feature_row_bytes),
        step=step_seconds(work.spec, batch.shapes, batch.num_inputs, work.share_of_ones),
    )
