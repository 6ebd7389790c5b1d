"""Training on a GPU: caches on it under one budget, the rest in host memory, checked before anything is made."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np

from kernels.cuda.current import device_launcher
from kernels.cuda.host_rows import HostRows, PageableRows, PinnedRows
from kernels.cuda.launch import DeviceLauncher, PinnedMemoryError
from kernels.cuda.sampler import CudaSampler, HostSampler
from kernels.cuda.tiers import DeviceTiers
from kernels.cuda.topology import DeviceTopology
from kernels.mfg import Sample, TierReads
from kernels.nn.layers import NodeDegrees
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.tiered_rows import TIER_DTYPES
from storage.cache.cached_topology import adjacency_device_bytes
from storage.cache.device_slots import DeviceSlots
from storage.cache.dynamic import DynamicCache
from tasks.batch_sizes import shapes_of
from tasks.data_source import width_of
from tasks.device_loader import DeviceLoader, Sampler, device_memory
from tasks.device_memory import DeviceNeeds, SuperBatchSizes, check_device, device_step_bytes
from tasks.in_memory import InMemory, new_sampler
from tasks.step_costs import HopShape
from tasks.training_types import TrainData, TrainOptions

_logger = logging.getLogger(__name__)
_SCORE_BYTES = 8  # a node, where there is a dynamic cache
_MARGIN = 1.15  # of mini-batches above those that were looked at


class DeviceCompute:
    """One GPU: caches of lists and rows on it, the rest of both in host memory, pinned until it is closed.

    Where host memory is not to be pinned, or cannot be, the CPU collects missed rows and copies them over; lists are
    kept on the GPU whole where there is room, else the CPU samples.

    Parameters
    ----------
    data, options, degrees
        As training has them.
    source : InMemory
        Of the data.
    rank : int
        Number of this process, which takes the GPU of that number (counted around).

    Raises
    ------
    MachineError
        If what training takes does not fit the GPU's free memory; names what would.
    PinnedMemoryError
        If host memory is to be pinned and cannot be.
    """

    def __init__(
        self, data: TrainData, source: InMemory, options: TrainOptions, degrees: NodeDegrees | None, rank: int
    ) -> None:
        self._source, self._options = source, options
        self._launcher = launcher = device_launcher(rank)
        self.device = launcher.torch_device
        self.needs = _checked_needs(data, source, options, degrees, launcher.free_bytes())
        """What training was found to take of the GPU."""
        with ExitStack() as opened, self.stream():
            is_pinned = options.pinned != "off" and self._pin(opened)
            features, layout = source.features, source.features.dynamic_layout
            rows = (PinnedRows if is_pinned else PageableRows)(launcher, features.source_ND)
            self._topology = self._place_topology(is_pinned)
            self._dynamic = self._new_dynamic(rows) if layout.rows else None
            self._tiers = DeviceTiers(launcher, rows, features.cached_ids, self._dynamic)
            self._degrees = None if degrees is None else _on_device(launcher, degrees)
            launcher.finish(launcher.record())  # synchronize! the loading streams read all of this
            self._opened = opened.pop_all()

    @property
    def feature_reads(self) -> TierReads:
        """Feature rows read so far; waits for the device."""
        with self.stream():
            return self._tiers.reads

    def new_loader(self, purpose: Purpose) -> DeviceLoader:
        """Make a loader that samples and gathers ahead."""
        options = self._options
        return DeviceLoader(
            self._launcher,
            self._new_sampler(new_sampler(self._source.graph, options, purpose)),
            self._tiers,
            in_place=reads_in_place(self._source, options),
            superbatch=options.superbatch,
            stall_timeout_s=options.stall_timeout_s,
        )

    @contextmanager
    def watched_epoch(self, epoch: int) -> Iterator[dict[str, float]]:
        """Let the dynamic cache learn from an epoch; its figures come at the end."""
        figures: dict[str, float] = {}
        if self._dynamic is None:
            yield figures
            return
        with self._dynamic.watch(epoch) as upkeep:
            before = self.feature_reads
            yield figures
            upkeep.hits = self.feature_reads.since(before).dynamic_rows
        figures |= upkeep.figures()

    def degrees(self, sample: Sample) -> NodeDegrees | None:
        """Degrees of the input nodes, on the device."""
        return None if self._degrees is None else self._degrees.take(sample.input_nodes)

    def close(self) -> None:
        """Wait for the dynamic cache's last update, and unpin the host memory."""
        try:
            if self._dynamic is not None:
                with device_memory():
                    self._dynamic.wait()
        finally:
            self._opened.close()
        peak, said = self._launcher.peak_bytes(), self.needs.total
        if peak:
            _logger.info("the GPU held at most %s bytes, %s were expected", f"{peak:,}", f"{said:,}")

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

    def _pin(self, opened: ExitStack) -> bool:
        """Pin lists and rows until this is closed; whether that was possible."""
        launcher = self._launcher
        with ExitStack() as pinned:
            try:
                for array in (self._source.graph.indices, self._source.features.source_ND):
                    launcher.reach(array)
                    pinned.callback(launcher.release, array)
            except PinnedMemoryError as error:
                if self._options.pinned == "on":
                    raise
                _logger.warning(
                    "%s; going on without: the CPU collects the rows that the GPU misses and copies them over", error
                )
                return False
            opened.push(pinned.pop_all())
            return True

    def _place_topology(self, is_pinned: bool) -> DeviceTopology | None:
        """Lists as kernels read them; None where only the CPU can."""
        launcher, graph = self._launcher, self._source.graph
        if is_pinned:
            return DeviceTopology.place(launcher, graph, graph.indices)
        # The adjacency cache, which is among the needs, stays beside them: what is read of it is told as on the CPU.
        if self.needs.total + graph.indices.nbytes <= launcher.free_bytes():
            _logger.info("all adjacency lists are kept on the GPU, as there is room")
            return DeviceTopology.place(launcher, graph)
        _logger.info("the CPU samples: not all adjacency lists fit the GPU, and host memory is not pinned")
        return None

    def _new_sampler(self, like: NeighborSampler) -> Sampler:
        if self._topology is None:
            return HostSampler(self._launcher, like)
        return CudaSampler(self._launcher, self._topology, like)

    def _new_dynamic(self, rows: HostRows) -> DynamicCache:
        features = self._source.features
        slots = DeviceSlots(self._launcher, rows, features.dynamic_layout)
        return DynamicCache(slots, features.dynamic_layout, features.dynamic_options)


def reads_in_place(source: InMemory, options: TrainOptions) -> bool:
    """Whether the first layer reads rows on the device where they lie."""
    # Dropout of the input copies the rows anyway.
    return source.features.source_ND.dtype in TIER_DTYPES and options.input_dropout == 0


def _checked_needs(
    data: TrainData, source: InMemory, options: TrainOptions, degrees: NodeDegrees | None, free_bytes: int
) -> DeviceNeeds:
    """What training takes, going by its first super-batch; refused where it does not fit."""
    graph, features = source.graph, source.features
    batches = shuffled_batches(data.splits.train, options.batch_size, seed=options.seed, epoch=0)[: options.superbatch]
    sampled = new_sampler(graph, options, Purpose.TRAIN).sample(batches, epoch=0, first_batch=0)
    sizes = _largest([(shapes_of(sample), len(sample.input_nodes)) for sample in sampled.samples], source, options)
    spec = options.model_spec(width_of(features), data.num_classes)
    degree_bytes = 0 if degrees is None else degrees.in_degree.nbytes + degrees.out_degree.nbytes
    scores = _SCORE_BYTES * graph.num_nodes if features.dynamic_layout.rows else 0
    needs = DeviceNeeds(
        caches=adjacency_device_bytes(graph) + features.device_bytes,
        resident=graph.indptr.nbytes + degree_bytes + scores,
        loading=sizes.loading_bytes,
        step=device_step_bytes(spec, sizes),
    )
    loading = [replace(sizes, batches=k).loading_bytes for k in range(1, options.superbatch)]
    check_device(needs, free_bytes, loading_by_batches=loading)
    _logger.info("training takes up to %s bytes of the GPU's %s free", f"{needs.total:,}", f"{free_bytes:,}")
    return needs


def _largest(found: Sequence[tuple[list[HopShape], int]], source: InMemory, options: TrainOptions) -> SuperBatchSizes:
    """At least as large as each mini-batch seen, and a little larger; no larger than the graph."""
    graph, features = source.graph, source.features

    def most(counts: Iterable[int], limit: int) -> int:
        return min(limit, int(max(counts) * _MARGIN) + 1)

    hops = [
        HopShape(
            most((shape.num_dst for shape in hop), graph.num_nodes),
            most((shape.num_src for shape in hop), graph.num_nodes),
            most((shape.num_edges for shape in hop), 2**62),
        )
        for hop in zip(*(shapes for shapes, _ in found), strict=True)
    ]
    return SuperBatchSizes(
        shapes=tuple(hops),
        inputs=most((inputs for _, inputs in found), graph.num_nodes),
        batches=len(found),
        id_bytes=graph.indices.dtype.itemsize,
        row_bytes=features.row_bytes,
        num_nodes=graph.num_nodes,
        in_place=reads_in_place(source, options),
    )


def _on_device(launcher: DeviceLauncher, degrees: NodeDegrees) -> NodeDegrees:
    return NodeDegrees(
        launcher.to_device(np.ascontiguousarray(degrees.in_degree)),
        launcher.to_device(np.ascontiguousarray(degrees.out_degree)),
    )
