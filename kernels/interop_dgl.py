"""The door to DGL, and the only room that imports it: our hops as its blocks, our sampler in its `DataLoader`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.mfg import IdArray, Mfg, Sample
from kernels.rng import Purpose, uniform_u64
from kernels.sampler import NeighborSampler
from kernels.topology import Topology

# Unless it is told its backend, importing DGL writes ~/.dgl/config.json and talks about it.
os.environ.setdefault("DGLBACKEND", "pytorch")

try:
    import dgl as dgl  # for all that wants DGL itself
except ImportError as error:
    raise ImportError("kernels.interop_dgl needs DGL 1.1: install the extra `dgl` (Python 3.11)") from error

_ID_KEY = np.uint64(0)


def to_dgl_block(mfg: Mfg) -> dgl.DGLGraph:
    """One hop as a DGL block with the same node and edge order.

    Parameters
    ----------
    mfg : Mfg

    Returns
    -------
    dgl.DGLGraph
        A block with int64 ids in CSC form. Edge i is `mfg.indices[i]`; edges carry no ids of the whole graph. It shares
        the memory of `mfg.indptr`.
    """
    indices = torch.from_numpy(mfg.indices).to(torch.int64)
    # Spelt out: without ids of edges, DGL's attention layers fail in their backward pass.
    in_order = torch.arange(mfg.num_edges)
    csc = ("csc", (torch.from_numpy(mfg.indptr), indices, in_order))
    return dgl.create_block(csc, num_src_nodes=mfg.num_src, num_dst_nodes=mfg.num_dst)


def to_dgl_blocks(sample: Sample) -> list[dgl.DGLGraph]:
    """All hops of a mini-batch as DGL blocks.

    Parameters
    ----------
    sample : Sample

    Returns
    -------
    list of dgl.DGLGraph
        From the input layer to the seed layer, as DGL's models take them (the reverse of `sample.hops`).
        `srcdata[dgl.NID]` and `dstdata[dgl.NID]` are the nodes' ids. The last block has one destination for each
        *unique* seed: `sample.seed_inverse` leads from the seeds given to these rows.
    """
    ids = torch.from_numpy(sample.input_nodes).to(torch.int64)
    blocks = []
    for mfg in reversed(sample.hops):
        block = to_dgl_block(mfg)
        block.srcdata[dgl.NID] = ids[: mfg.num_src]
        block.dstdata[dgl.NID] = ids[: mfg.num_dst]
        blocks.append(block)
    return blocks


def topology_from_dgl(graph: dgl.DGLGraph) -> Topology:
    """In-neighbors of a DGL graph, without a copy where DGL holds the graph in CSC form already.

    Parameters
    ----------
    graph : dgl.DGLGraph
        Homogeneous, on the CPU.

    Returns
    -------
    Topology

    Raises
    ------
    ValueError
        If the graph has several node or edge types, or lies on another device.
    """
    if not graph.is_homogeneous:
        types = f"node types {graph.ntypes}, edge types {graph.etypes}"
        raise ValueError(f"heterogeneous graphs are not supported (got {types}): use dgl.to_homogeneous first")
    if graph.device.type != "cpu":
        raise ValueError(f"sampling runs on the CPU (the graph is on {graph.device}): use graph.cpu()")
    indptr, indices, _ = graph.adj_tensors("csc")
    return Topology.in_memory(indptr.to(torch.int64).numpy(), indices.numpy())


def batch_identity(seed_nodes: IdArray) -> int:
    """Name of a mini-batch that follows from its seeds alone, whatever their order.

    Parameters
    ----------
    seed_nodes : (n,) integer array

    Returns
    -------
    int
        64 bits: the sum of the ids' hashes, repeated ids counted.
    """
    return int(uniform_u64(_ID_KEY, seed_nodes).sum(dtype=np.uint64))


class DglNeighborSampler(dgl.dataloading.BlockSampler):  # type: ignore[misc]
    """Our sampler as DGL's `DataLoader` takes it, in the place of `dgl.dataloading.NeighborSampler`.

    DGL hands a sampler the seeds of one mini-batch and tells neither epoch nor batch index. So the draws are keyed by
    (seed, epoch, `batch_identity` of the seeds): the same seeds in the same epoch give the same sample, in any order of
    batches and with any number of workers. `set_epoch` moves on to fresh draws, in workers as well, even persistent
    ones; without it, only batches that are composed anew (`shuffle=True`) bring fresh draws. These are not the
    mini-batches of `tasks.api.GraphLoader`, whose batches are known by their index; for those, give its samples to
    `to_dgl_blocks`.

    Parameters
    ----------
    topology : Topology
        What is sampled; `topology_from_dgl(graph)` for a graph that DGL holds. The graph that the `DataLoader` is given
        must have as many nodes and the same ids, and is not read; its node data may be prefetched.
    fanouts : sequence of int
        Neighbors a node, from the input layer to the seed layer, at least one; -1 takes all.
    seed : int
        Seed of all draws.
    replace : bool
        Draw with replacement.
    prefetch_node_feats, prefetch_labels : sequence of str
        Node data of the graph that the loader puts into the first block's sources and the last block's destinations.

    Raises
    ------
    ValueError
        If the fanouts are wrong.

    Notes
    -----
    Duplicate seeds become one row: label by the `output_nodes` that the loader yields, not by the indices it was given.
    """

    def __init__(
        self,
        topology: Topology,
        fanouts: Sequence[int],
        *,
        seed: int = 0,
        replace: bool = False,
        prefetch_node_feats: Sequence[str] = (),
        prefetch_labels: Sequence[str] = (),
    ) -> None:
        if not fanouts:
            raise ValueError("DGL's loader needs at least one block: give at least one fanout")
        super().__init__(prefetch_node_feats=list(prefetch_node_feats), prefetch_labels=list(prefetch_labels))
        self._sampler = NeighborSampler(topology, fanouts, seed=seed, purpose=Purpose.TRAIN, replace=replace)
        # In shared memory, so that persistent workers see it change.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """Draw afresh from now on; call it before each pass over the loader."""
        self._epoch.fill_(epoch)

    def sample_blocks(
        self, g: Any, seed_nodes: Tensor, exclude_eids: object = None
    ) -> tuple[Tensor, Tensor, list[dgl.DGLGraph]]:
        """Sample one mini-batch; called by `BlockSampler.sample`.

        Parameters
        ----------
        g : dgl.DGLGraph
            The loader's graph.
        seed_nodes : (n,) int32 or int64 tensor
        exclude_eids : None
            Edges cannot be excluded.

        Returns
        -------
        input_nodes : (num_inputs,) int64 tensor
        output_nodes : (num_seed_rows,) int64 tensor
            The unique seeds in order of first appearance: the destinations of the last block.
        blocks : list of dgl.DGLGraph

        Raises
        ------
        ValueError
            If a seed lies outside the graph, the graph does not fit the topology, or more is asked than ids of one kind
            of node.
        """
        self._guard(g, seed_nodes, exclude_eids)
        seeds = seed_nodes.numpy()
        super_batch = self._sampler.sample([seeds], epoch=int(self._epoch), first_batch=batch_identity(seeds))
        blocks = to_dgl_blocks(super_batch.samples[0])
        return blocks[0].srcdata[dgl.NID], blocks[-1].dstdata[dgl.NID], blocks

    def _guard(self, g: Any, seed_nodes: object, exclude_eids: object) -> None:
        num_nodes = self._sampler.topology.num_nodes
        if g.num_nodes() != num_nodes:
            raise ValueError(f"the loader's graph has {g.num_nodes()} nodes, the sampled topology {num_nodes}")
        if exclude_eids is not None:
            raise ValueError("this sampler cannot exclude edges, as edge prediction asks")
        if not isinstance(seed_nodes, Tensor):
            raise ValueError(f"seeds must be one tensor of node ids (got {type(seed_nodes).__name__})")
        if seed_nodes.device.type != "cpu":
            raise ValueError(f"sampling runs on the CPU (got seeds on {seed_nodes.device}): keep the graph there")
