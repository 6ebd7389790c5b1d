"""Mini-batches sampled on the device: `kernels.sampler.NeighborSampler` for a GPU, the same integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernels.cuda.launch import Array, Launcher, launch
from kernels.cuda.ops import tier_reads
from kernels.cuda.sample import fill_rows, plan_rows
from kernels.cuda.source import Kernel
from kernels.cuda.topology import DeviceTopology
from kernels.cuda.unique import unique_nodes
from kernels.mfg import IdArray, Mfg, Sample, SuperBatch, TierReads
from kernels.sampler import NeighborSampler


@dataclass(frozen=True, slots=True)
class _Hop:
    """One hop of K batches, and where each batch begins in its rows and edges, on the host."""

    row_ptr: Array
    local: Array
    edge_ids: Array
    row_bounds: list[int]
    edge_bounds: list[int]
    cached_reads: Array


class CudaSampler:
    """Draws mini-batches on one device; threads must not share one object.

    The host waits for the device once a hop, for the numbers of rows and edges, and once more for the input nodes.

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
        hops = []
        for hop, fanout in enumerate(reversed(self.fanouts)):
            made, uniq, uniq_ptr = self._hop(uniq, uniq_ptr, fanout, keys_LK[hop])
            hops.append(made)
        bounds = launcher.to_host(uniq_ptr).tolist()  # synchronize!
        return self._split(indices, hops, uniq, bounds, inverse, host_ptr.tolist())

    def _hop(self, uniq: Array, uniq_ptr: Array, fanout: int, keys: Array) -> tuple[_Hop, Array, Array]:
        launcher, xp, num_batches = self.launcher, self.launcher.xp, len(uniq_ptr) - 1
        plan = plan_rows(launcher, self.topology, uniq, uniq_ptr, fanout, stream_keys=keys, replace=self._like.replace)
        both = xp.empty(2 * num_batches + 2, np.int64)
        arguments = (uniq_ptr, plan.row_ptr, num_batches, both)
        launch(launcher, Kernel("plan", "batch_bounds"), num_batches + 1, arguments)
        bounds = launcher.to_host(both).tolist()  # synchronize!
        row_bounds, edge_bounds = bounds[: num_batches + 1], bounds[num_batches + 1 :]
        num_rows, num_edges = row_bounds[-1], edge_bounds[-1]
        uniq, row_ptr = uniq[:num_rows], plan.row_ptr[: num_rows + 1]
        neighbors, ids = fill_rows(
            launcher, self.topology, plan, uniq, num_rows, num_edges, edge_ids=self._like.edge_ids
        )
        edge_ptr = both[num_batches + 1 :]
        src, src_ptr, _, local = unique_nodes(launcher, uniq, uniq_ptr, neighbors, edge_ptr, num_rows + num_edges)
        return _Hop(row_ptr, local, ids, row_bounds, edge_bounds, plan.cached_reads), src, src_ptr

    def _split(
        self,
        indices: range,
        hops: list[_Hop],
        input_nodes: Array,
        bounds: list[int],
        inverse: Array,
        batch_ptr: list[int],
    ) -> SuperBatch:
        """Views of each mini-batch, counted from its own zero; and what sampling read."""
        first_bounds = hops[0].row_bounds if hops else bounds
        sources = [*(hop.row_bounds for hop in hops[1:]), bounds] if hops else []
        samples = tuple(
            Sample(
                index,
                tuple(self._mfg(hop, next_bounds, k) for hop, next_bounds in zip(hops, sources, strict=True)),
                input_nodes[bounds[k] : bounds[k + 1]],
                inverse[batch_ptr[k] : batch_ptr[k + 1]],
                first_bounds[k + 1] - first_bounds[k],
            )
            for k, index in enumerate(indices)
        )
        reads = TierReads()
        for hop in hops:
            cached = self.launcher.to_host(
                hop.cached_reads
            ).tolist()  # after the last wait: nothing is left to wait for
            id_bytes = self.topology.indices.dtype.itemsize
            reads.add(tier_reads(cached, hop.row_bounds[-1], hop.edge_bounds[-1], id_bytes))
        return SuperBatch(samples, reads)

    def _mfg(self, hop: _Hop, sources: list[int], k: int) -> Mfg:
        rows, edges = slice(hop.row_bounds[k], hop.row_bounds[k + 1] + 1), hop.edge_bounds
        part = slice(edges[k], edges[k + 1])
        ids = hop.edge_ids[part] if self._like.edge_ids else None
        return Mfg(hop.row_ptr[rows] - edges[k], hop.local[part], sources[k + 1] - sources[k], ids)
