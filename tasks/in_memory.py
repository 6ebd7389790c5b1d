"""A graph in memory as training takes it: the loader, and exact inference in chunks."""

from __future__ import annotations

from kernels.mfg import IdArray
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import GnnModel, ModelSpec
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.topology import Topology
from storage.cache.tiers import FeatureTiers
from tasks.data_source import Inference, Loader
from tasks.inference import ExactInference, Predictions
from tasks.loader import MiniBatchLoader
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
        prepared = ExactInference(self.graph, nodes, spec, degrees=degrees, chunk_bytes=options.chunk_bytes)
        return _InMemoryInference(prepared, self.features)


class _InMemoryInference:
    def __init__(self, prepared: ExactInference, features: FeatureTiers) -> None:
        self._prepared, self._features = prepared, features

    def run(self, model: GnnModel) -> Predictions:
        return self._prepared.run(model, self._features)


def new_sampler(topology: Topology, options: TrainOptions, purpose: Purpose) -> NeighborSampler:
    """Make the sampler of the options."""
    return NeighborSampler(topology, options.fanouts, seed=options.seed, purpose=purpose, replace=options.replace)
