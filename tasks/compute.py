"""Where training computes: the CPU with its loading threads, or a GPU that samples and gathers for itself."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from kernels.mfg import Sample, TierReads
from kernels.nn.layers import NodeDegrees
from kernels.rng import Purpose
from storage.errors import InputError
from tasks.data_source import Loader
from tasks.device_compute import DeviceCompute
from tasks.device_loader import DeviceLoader
from tasks.in_memory import InMemory
from tasks.training_types import TrainData, TrainOptions


class Compute(Protocol):
    """What a backend brings to the training loop."""

    device: torch.device
    """Where the network and the features of a mini-batch lie."""

    @property
    def feature_reads(self) -> TierReads:
        """Feature rows read so far by training."""

    def new_loader(self, purpose: Purpose) -> Loader | DeviceLoader:
        """Make a loader of training mini-batches; its user closes it."""

    def watched_epoch(self, epoch: int) -> AbstractContextManager[dict[str, float]]:
        """Let a dynamic cache, where there is one, learn from an epoch; its figures come at the end."""

    def degrees(self, sample: Sample) -> NodeDegrees | None:
        """Whole-graph degrees of a sample's input nodes, where the network reads them."""

    def stream(self) -> AbstractContextManager[None]:
        """Work of this thread in the order of PyTorch's."""

    def close(self) -> None:
        """Give back what it holds of the machine, once its loaders are closed."""


class HostCompute:
    """Numba on the CPU."""

    device = torch.device("cpu")

    def __init__(self, data: TrainData, options: TrainOptions, degrees: NodeDegrees | None) -> None:
        self._data, self._options, self._degrees = data, options, degrees

    @property
    def feature_reads(self) -> TierReads:
        """Feature rows read so far."""
        return self._data.source.features.reads

    def new_loader(self, purpose: Purpose) -> Loader:
        """Make a loader with threads of its own."""
        return self._data.source.loader(self._options, purpose)

    def watched_epoch(self, epoch: int) -> AbstractContextManager[dict[str, float]]:
        """As the features' own."""
        return self._data.source.features.watched_epoch(epoch)

    def degrees(self, sample: Sample) -> NodeDegrees | None:
        """Degrees of the input nodes."""
        return None if self._degrees is None else self._degrees.take(sample.input_nodes)

    def stream(self) -> AbstractContextManager[None]:
        """Nothing to order."""
        return nullcontext()

    def close(self) -> None:
        """Nothing to give back."""


def build_compute(data: TrainData, options: TrainOptions, degrees: NodeDegrees | None, rank: int) -> Compute:
    """Make what `options.backend` names."""
    if options.backend == "cuda":
        if not isinstance(data.source, InMemory):  # a GPU reads from host memory what it does not hold
            raise InputError("training from disk computes on the CPU: set backend=cpu, or storage.mode=memory")
        return DeviceCompute(data, data.source, options, degrees, rank)
    return HostCompute(data, options, degrees)


def on_cpu(state: Any) -> Any:
    """Copy the tensors of a nested state to the CPU; those that lie there stay as they are."""
    if isinstance(state, Tensor):
        return state.cpu()
    if isinstance(state, dict):
        return {name: on_cpu(value) for name, value in state.items()}
    return [on_cpu(value) for value in state] if isinstance(state, list) else state
