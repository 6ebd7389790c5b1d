"""A graph in memory as training takes it: the loader, and exact inference in chunks."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from kernels.mfg import IdArray, TierReads
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import GnnModel, ModelSpec
from kernels.rank_map import check_ascending
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.topology import Topology
from storage.cache.tiers import FeatureTiers
from tasks.data_source import Inference, Loader
from tasks.inference import ExactInference
from tasks.loader import MiniBatchLoader
from tasks.score_rows import ScoreRows, ScoresInMemory
from tasks.training_types import TrainOptions


class InMemory:
    """A graph in memory.

    Parameters
    ----------
    graph : Topology
    features : FeatureTiers
    """

    reused_bytes = None

    def __init__(self, graph: Topology, features: FeatureTiers) -> None:
        self.graph, self.features = graph, features

    def loader(self, options: TrainOptions, purpose: Purpose) -> Loader:
        """As `DataSource.loader`."""
        return MiniBatchLoader(
            new_sampler(self.graph, options, purpose),
            self.features,
            superbatch=options.superbatch,
            threads=options.threads,
            in_flight_bytes=options.in_flight_bytes,
            stall_timeout_s=options.stall_timeout_s,
            # Dropout of the input copies the rows anyway.
            in_place=self.features.is_readable_in_place and options.input_dropout == 0,
        )

    def inference(
        self, nodes: IdArray, spec: ModelSpec, degrees: NodeDegrees | None, options: TrainOptions
    ) -> Inference:
        """As `DataSource.inference`."""
        check_ascending(nodes, self.graph.num_nodes)
        prepared = ExactInference(self.graph, nodes, spec, degrees=degrees, chunk_bytes=options.chunk_bytes)
        return _InMemoryInference(prepared, self.features)

    def score_rows(self, num_rows: int, options: TrainOptions) -> ScoreRows:
        """As `DataSource.score_rows`: ranking takes the place of inference's chunks."""
        return ScoresInMemory(options.chunk_bytes)


class _InMemoryInference:
    def __init__(self, prepared: ExactInference, features: FeatureTiers) -> None:
        self._prepared, self._features = prepared, features
        self.reads = TierReads(), TierReads()

    def stream(self, model: GnnModel) -> Iterator[Tensor]:
        predicted = self._prepared.run(model, self._features)
        self.reads = predicted.feature_reads, predicted.adjacency_reads
        yield predicted.logits


def new_sampler(topology: Topology, options: TrainOptions, purpose: Purpose) -> NeighborSampler:
    """Make the sampler of the options."""
    return NeighborSampler(topology, options.fanouts, seed=options.seed, purpose=purpose, replace=options.replace)
