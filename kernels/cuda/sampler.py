"""Mini-batches sampled on the device: `kernels.sampler.NeighborSampler` for a GPU, the same integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernels.cuda.launch import Array, Launcher, launch
from kernels.cuda.sample import fill_rows, plan_rows
from kernels.cuda.source import Kernel
from kernels.cuda.topology import DeviceTopology
from kernels.cuda.unique import unique_nodes
from kernels.mfg import IdArray, Mfg, Sample, SuperBatch, TierReads
from kernels.sampler import NeighborSampler


@dataclass(frozen=True, slots=True)
class _Hop:
    """One hop of K batches; its arrays may be longer than they are filled."""

    row_ptr: Array
    local: Array
    edge_ids: Array


class _Book:
    """Numbers that the host will ask for, in one array on the device: what was read, and where batches begin."""

    _READS = 2

    def __init__(self, launcher: Launcher, num_hops: int, num_batches: int) -> None:
        self._launcher, self._width = launcher, num_batches + 1
        self._numbers = launcher.xp.zeros(self._READS + (2 * num_hops + 1) * self._width, np.int64)
        self.cached_reads = self._numbers[: self._READS].view(np.uint64)
        """(2,) counts of `plan_rows`, all hops together."""

    def note(self, hop: int, uniq_ptr: Array, row_ptr: Array) -> Array:
        """Write down where each batch begins in a hop's rows and edges; returns the latter, (K + 1,)."""
        begin = self._READS + 2 * hop * self._width
        both = self._numbers[begin : begin + 2 * self._width]
        kernel, num_batches = Kernel("plan", "batch_bounds"), self._width - 1
        launch(self._launcher, kernel, self._width, (uniq_ptr, row_ptr, num_batches, both))
        return both[self._width :]

    def note_inputs(self, uniq_ptr: Array) -> None:
        """Write down where each batch begins among the input nodes."""
        self._numbers[-self._width :] = uniq_ptr

    def read(self) -> tuple[list[int], list[list[int]]]:
        """What was read, and the bounds: rows and edges of each hop, then input nodes. Waits for the device."""
        numbers = self._launcher.to_host(self._numbers).tolist()  # synchronize!
        rest = numbers[self._READS :]
        return numbers[: self._READS], [rest[i : i + self._width] for i in range(0, len(rest), self._width)]


class CudaSampler:
    """Draws mini-batches on one device; threads must not share one object.

    The host waits for the device once a hop: the rows and edges of the seed hop are bounded by the seeds given, unless
    it takes all neighbors; each later hop's are asked for, and at last the input nodes'.

    Parameters
    ----------
    launcher : Launcher
    topology : DeviceTopology
    like : NeighborSampler
        What to sample; its samples, on the CPU, are the same.
    """

    def __init__(self, launcher: Launcher, topology: DeviceTopology, like: NeighborSampler) -> None:
        self.launcher, self.topology, self._like = launcher, topology, like
        self.fanouts = like.fanouts

    def sample(self, batches: Sequence[IdArray], *, epoch: int, first_batch: int, batch_step: int = 1) -> SuperBatch:
        """Sample K mini-batches as one, as `NeighborSampler.sample` does; the arrays are the device's.

        Raises
        ------
        ValueError
            If seeds are not integers or lie outside the graph.
        """
        launcher, xp, like = self.launcher, self.launcher.xp, self._like
        indices = range(first_batch, first_batch + len(batches) * batch_step, batch_step)
        host_nodes, host_ptr = like.concatenate(batches)
        nodes, batch_ptr = launcher.to_device(host_nodes), launcher.to_device(host_ptr)
        keys = [like.stream_keys(epoch, indices, hop) for hop in range(len(self.fanouts))]
        keys_LK = launcher.to_device(np.array(keys, np.uint64).reshape(len(keys), len(batches)))
        no_nodes, no_edges = xp.empty(0, nodes.dtype), xp.zeros_like(batch_ptr)
        uniq, uniq_ptr, inverse, _ = unique_nodes(
            launcher, nodes, batch_ptr, no_nodes, no_edges, len(nodes), with_inverse=True
        )
        hops, book = [], _Book(launcher, len(self.fanouts), len(batches))
        for hop in range(len(self.fanouts)):
            made, uniq, uniq_ptr = self._hop(hop, uniq, uniq_ptr, keys_LK[hop], book)
            hops.append(made)
        book.note_inputs(uniq_ptr)
        cached, bounds = book.read()  # synchronize!
        num_rows, num_edges = (sum(part[-1] for part in bounds[side:-1:2]) for side in (0, 1))
        reads = tier_reads(cached, num_rows, num_edges, self.topology.indices.dtype.itemsize)
        return SuperBatch(self._split(indices, hops, uniq, bounds, inverse, host_ptr.tolist()), reads)

    def _hop(self, hop: int, uniq: Array, uniq_ptr: Array, keys: Array, book: _Book) -> tuple[_Hop, Array, Array]:
        launcher, like, fanout = self.launcher, self._like, self.fanouts[-1 - hop]
        plan = plan_rows(
            launcher,
            self.topology,
            uniq,
            uniq_ptr,
            fanout,
            stream_keys=keys,
            replace=like.replace,
            cached_reads=book.cached_reads,
        )
        edge_ptr = book.note(hop, uniq_ptr, plan.row_ptr)
        num_rows, num_edges = len(uniq), len(uniq) * fanout
        if hop or fanout < 0:
            bounds = book.read()[1]  # synchronize!
            num_rows, num_edges = bounds[2 * hop][-1], bounds[2 * hop + 1][-1]
        uniq, row_ptr = uniq[:num_rows], plan.row_ptr[: num_rows + 1]
        neighbors, ids = fill_rows(launcher, self.topology, plan, uniq, num_rows, num_edges, edge_ids=like.edge_ids)
        src, src_ptr, _, local = unique_nodes(launcher, uniq, uniq_ptr, neighbors, edge_ptr, num_rows + num_edges)
        return _Hop(row_ptr, local, ids), src, src_ptr

    def _split(
        self,
        indices: range,
        hops: list[_Hop],
        input_nodes: Array,
        bounds: list[list[int]],
        inverse: Array,
        batch_ptr: list[int],
    ) -> tuple[Sample, ...]:
        """Views of each mini-batch, counted from its own zero."""
        rows, edges, inputs = bounds[:-1:2], bounds[1:-1:2], bounds[-1]
        first, sources = [*rows, inputs][0], [*rows[1:], inputs]
        return tuple(
            Sample(
                index,
                tuple(self._mfg(*parts, k) for parts in zip(hops, rows, edges, sources, strict=True)) if hops else (),
                input_nodes[inputs[k] : inputs[k + 1]],
                inverse[batch_ptr[k] : batch_ptr[k + 1]],
                first[k + 1] - first[k],
            )
            for k, index in enumerate(indices)
        )

    def _mfg(self, hop: _Hop, rows: list[int], edges: list[int], sources: list[int], k: int) -> Mfg:
        part = slice(edges[k], edges[k + 1])
        ids = hop.edge_ids[part] if self._like.edge_ids else None
        indptr = hop.row_ptr[rows[k] : rows[k + 1] + 1] - edges[k]
        return Mfg(indptr, hop.local[part], sources[k + 1] - sources[k], ids)


class HostSampler:
    """Draws mini-batches on the CPU and copies them to the device: where its kernels cannot reach the lists."""

    def __init__(self, launcher: Launcher, like: NeighborSampler) -> None:
        self._launcher, self._like = launcher, like

    def sample(self, batches: Sequence[IdArray], *, epoch: int, first_batch: int, batch_step: int = 1) -> SuperBatch:
        """As `CudaSampler.sample`."""
        sampled = self._like.sample(batches, epoch=epoch, first_batch=first_batch, batch_step=batch_step)
        return SuperBatch(tuple(map(self._copied, sampled.samples)), sampled.adjacency_reads)

    def _copied(self, sample: Sample) -> Sample:
        copy = self._launcher.to_device
        hops = tuple(
            replace(hop, indptr=copy(hop.indptr), indices=copy(hop.indices), edge_ids=self._optional(hop.edge_ids))
            for hop in sample.hops
        )
        nodes, inverse = copy(sample.input_nodes), copy(sample.seed_inverse)
        return replace(sample, hops=hops, input_nodes=nodes, seed_inverse=inverse)

    def _optional(self, array: Array | None) -> Array | None:
        return None if array is None else self._launcher.to_device(array)


def tier_reads(cached: list[int], num_rows: int, num_edges: int, id_bytes: int) -> TierReads:
    """What `plan_rows` counted as bytes and rows of each tier: what the cache does not serve is read from below."""
    cached_rows, cached_edges = cached
    host_bytes = (num_edges - cached_edges) * id_bytes
    return TierReads(cached_rows, num_rows - cached_rows, cached_edges * id_bytes, host_bytes)
