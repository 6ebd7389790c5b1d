"""The sampling ops by the names of `kernels.reference`, for tests that compare them one by one."""

from __future__ import annotations

from kernels.cuda.classify import classify_rows
from kernels.cuda.launch import Array, Launcher
from kernels.cuda.sample import fill_rows, plan_rows
from kernels.cuda.sampler import tier_reads
from kernels.cuda.topology import DeviceTopology
from kernels.cuda.unique import unique_nodes
from kernels.mfg import TierReads


class CudaOps:
    """Each op waits for the sizes that it returns."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def unique_per_batch(self, nodes: Array, batch_ptr: Array) -> tuple[Array, Array, Array]:
        """As `kernels.reference.unique_per_batch`."""
        xp = self._launcher.xp
        nothing, no_edges = xp.empty(0, nodes.dtype), xp.zeros_like(batch_ptr)
        src, src_ptr, inverse, _ = unique_nodes(
            self._launcher, nodes, batch_ptr, nothing, no_edges, len(nodes), with_inverse=True
        )
        return src[: int(src_ptr[-1])], src_ptr, inverse  # synchronize!

    def classify_by_degree(
        self, uniq: Array, uniq_ptr: Array, degree_U: Array, fanout: int, *, replace: bool = False
    ) -> tuple[Array, Array, Array]:
        """As `kernels.reference.classify_by_degree`."""
        return classify_rows(self._launcher, uniq, uniq_ptr, degree_U, fanout, replace=replace)[:3]

    def sample_neighbors(
        self,
        topology: DeviceTopology,
        uniq: Array,
        uniq_ptr: Array,
        fanout: int,
        *,
        stream_keys: Array,
        replace: bool = False,
        edge_ids: bool = False,
    ) -> tuple[Array, Array, Array, TierReads]:
        """As `kernels.reference.sample_neighbors`."""
        plan = plan_rows(self._launcher, topology, uniq, uniq_ptr, fanout, stream_keys=stream_keys, replace=replace)
        num_edges = int(plan.row_ptr[-1])  # synchronize!
        neighbors, ids = fill_rows(self._launcher, topology, plan, uniq, len(uniq), num_edges, edge_ids=edge_ids)
        cached = self._launcher.to_host(plan.cached_reads).tolist()  # synchronize!
        reads = tier_reads(cached, len(uniq), num_edges, neighbors.dtype.itemsize)
        return plan.row_ptr, neighbors, ids, reads

    def relabel(self, uniq: Array, uniq_ptr: Array, neighbors: Array, edge_ptr: Array) -> tuple[Array, Array, Array]:
        """As `kernels.reference.relabel`."""
        capacity = len(uniq) + len(neighbors)
        src, src_ptr, _, local = unique_nodes(self._launcher, uniq, uniq_ptr, neighbors, edge_ptr, capacity)
        return src[: int(src_ptr[-1])], src_ptr, local  # synchronize!
