"""Where training computes: the CPU with its loading threads, or a GPU that samples and gathers for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from kernels.cuda.current import device_launcher
from kernels.cuda.sampler import CudaSampler
from kernels.cuda.tiers import DeviceTiers
from kernels.cuda.topology import DeviceTopology
from kernels.mfg import IdArray, Sample, TierReads
from kernels.nn.layers import NodeDegrees
from kernels.rng import Purpose
from storage.cache.tiers import adjacency_device_bytes
from storage.errors import InputError, MachineError
from tasks.data_source import Loader
from tasks.device_loader import DeviceLoader, device_memory
from tasks.in_memory import InMemory, new_sampler
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

    def degrees(self, sample: Sample) -> NodeDegrees | None:
        """Whole-graph degrees of a sample's input nodes, where the network reads them."""

    def seed_nodes(self, sample: Sample) -> IdArray:
        """Unique seeds of a sample, on the host."""

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

    def degrees(self, sample: Sample) -> NodeDegrees | None:
        """Degrees of the input nodes."""
        return None if self._degrees is None else self._degrees.take(sample.input_nodes)

    def seed_nodes(self, sample: Sample) -> IdArray:
        """Seeds as they are."""
        return sample.seed_nodes

    def stream(self) -> AbstractContextManager[None]:
        """Nothing to order."""
        return nullcontext()

    def close(self) -> None:
        """Nothing to give back."""


class DeviceCompute:
    """One GPU: caches of lists and rows on it, the rest of both in host memory, pinned until it is closed.

    Parameters
    ----------
    data, options, degrees
        As training has them.
    rank : int
        Number of this process, which takes the GPU of that number (counted around).

    Raises
    ------
    MachineError
        If the caches and the offsets do not fit the GPU's free memory.
    """

    def __init__(self, data: TrainData, options: TrainOptions, degrees: NodeDegrees | None, rank: int) -> None:
        self._source, self._options = in_memory(data), options
        if self._source.features.dynamic is not None:
            raise InputError("a dynamic cache is kept on the CPU only: set cache.dynamic.share=0, or train on the CPU")
        self._launcher = launcher = device_launcher(rank)
        self.device = launcher.torch_device
        _check_memory(data, launcher.free_bytes())
        with ExitStack() as pinned, self.stream():
            topology, features = self._source.graph, self._source.features
            for array in (topology.indices, features.source_ND):
                launcher.reach(array)
                pinned.callback(launcher.release, array)
            self._topology = DeviceTopology.place(launcher, topology, topology.indices)
            self._tiers = DeviceTiers(launcher, features.source_ND, features.cached_ids)
            self._degrees = None if degrees is None else _on_device(launcher, degrees)
            self._pinned = pinned.pop_all()

    @property
    def feature_reads(self) -> TierReads:
        """Feature rows read so far; waits for the device."""
        with self.stream():
            return self._tiers.reads

    def new_loader(self, purpose: Purpose) -> DeviceLoader:
        """Make a loader that samples one super-batch ahead."""
        options = self._options
        sampler = CudaSampler(self._launcher, self._topology, new_sampler(self._source.graph, options, purpose))
        return DeviceLoader(
            self._launcher,
            sampler,
            self._tiers,
            superbatch=options.superbatch,
            stall_timeout_s=options.stall_timeout_s,
        )

    def degrees(self, sample: Sample) -> NodeDegrees | None:
        """Degrees of the input nodes, on the device."""
        return None if self._degrees is None else self._degrees.take(sample.input_nodes)

    def seed_nodes(self, sample: Sample) -> IdArray:
        """Seeds, copied from the device."""
        nodes: IdArray = self._launcher.to_host(sample.seed_nodes)  # synchronize!
        return nodes

    def close(self) -> None:
        """Unpin the host memory."""
        self._pinned.close()

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Put the arrays' work on PyTorch's current stream.

        Raises
        ------
        MachineError
            If the work does not fit the GPU's memory.
        """
        with device_memory(), self._launcher.stream():
            yield


def build_compute(data: TrainData, options: TrainOptions, degrees: NodeDegrees | None, rank: int) -> Compute:
    """Make what `options.backend` names."""
    if options.backend == "cuda":
        return DeviceCompute(data, options, degrees, rank)
    return HostCompute(data, options, degrees)


def in_memory(data: TrainData) -> InMemory:
    """The data's source, where it is memory.

    Raises
    ------
    InputError
        If it is not: a GPU reads from host memory what it does not hold.
    """
    if not isinstance(data.source, InMemory):
        raise InputError("training from disk computes on the CPU: set backend=cpu, or storage.mode=memory")
    return data.source


def on_cpu(state: Any) -> Any:
    """Copy the tensors of a nested state to the CPU; those that lie there stay as they are."""
    if isinstance(state, Tensor):
        return state.cpu()
    if isinstance(state, dict):
        return {name: on_cpu(value) for name, value in state.items()}
    return [on_cpu(value) for value in state] if isinstance(state, list) else state


def device_bytes(data: TrainData) -> int:
    """Bytes that stay on a GPU: caches of lists and rows, offsets of all lists."""
    source = in_memory(data)
    return adjacency_device_bytes(source.graph) + source.features.device_bytes + source.graph.indptr.nbytes


def _check_memory(data: TrainData, free_bytes: int) -> None:
    needed = device_bytes(data)
    if needed > free_bytes:
        raise MachineError(
            f"the GPU has {free_bytes:,} bytes free, caches and offsets take {needed:,}: "
            f"lower cache.device_budget by at least {needed - free_bytes:,} bytes"
        )


def _on_device(launcher: Any, degrees: NodeDegrees) -> NodeDegrees:
    return NodeDegrees(
        launcher.to_device(np.ascontiguousarray(degrees.in_degree)),
        launcher.to_device(np.ascontiguousarray(degrees.out_degree)),
    )
