"""What our trainer drops, placed on the full graph, so that DGL's layers can drop the same elements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.mfg import IdArray, Mfg
from kernels.nn.dropout import dropout
from kernels.nn.model import DEFAULT_HEADS
from kernels.rng import Purpose, stream_key
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.topology import Topology
from tasks.training_types import TrainOptions

_SPARSE_SHARE = 0.05


class Inputs:
    """Features of all nodes: sparse where that is faster, and with some of their elements scaled."""

    def __init__(self, x_NF: Tensor) -> None:
        self.nodes, self.columns = x_NF.nonzero(as_tuple=True)
        self._values, self._scaled_NF = x_NF[self.nodes, self.columns], torch.zeros_like(x_NF)
        self._is_sparse, self._flat = len(self.nodes) < _SPARSE_SHARE * x_NF.numel(), x_NF.view(-1).nonzero().view(-1)
        self.rows = x_NF.to_sparse() if self._is_sparse else x_NF

    def scaled(self, factors: Tensor) -> Tensor:
        """The rows with each element that is not zero multiplied by its factor; valid until the next call."""
        values = self._values * factors
        if self._is_sparse:
            where, shape = self.rows.indices(), self.rows.shape
            return torch.sparse_coo_tensor(where, values, shape, is_coalesced=True, check_invariants=False)
        self._scaled_NF.view(-1)[self._flat] = values
        return self._scaled_NF


@dataclass(frozen=True)
class EpochMasks:
    """What one epoch of our trainer drops, as factors; zero for what it does not read."""

    inputs: Tensor
    """(nonzeros,) of the features."""
    hidden_NH: Tensor
    """Of the rows between the layers."""
    attention: list[Tensor]
    """(edges, heads, 1) of each layer."""


class Masks:
    """The dropout of our trainer, epoch by epoch, placed on the full graph."""

    def __init__(self, topology: Topology, inputs: Inputs, train_nodes: IdArray, options: TrainOptions) -> None:
        self._topology, self._inputs, self._nodes, self._options = topology, inputs, train_nodes, options
        self._sampler = NeighborSampler(topology, options.fanouts, seed=options.seed, purpose=Purpose.TRAIN)

    def of(self, epoch: int) -> EpochMasks:
        """Draw what the only mini-batch of an epoch draws."""
        options, inputs = self._options, self._inputs
        batches = shuffled_batches(self._nodes, options.batch_size, seed=options.seed, epoch=epoch)
        assert len(batches) == 1, "the masks are those of full batches"
        sample = self._sampler.sample(batches, epoch=epoch, first_batch=0).samples[0]
        ids, num_nodes = torch.from_numpy(sample.input_nodes.astype(np.int64)), self._topology.num_nodes
        slot_N = torch.full((num_nodes,), -1)
        slot_N[ids] = torch.arange(len(ids))
        drawn = self._drawn((len(ids), inputs.rows.shape[1]), options.input_dropout, epoch, 0)
        slots = slot_N[inputs.nodes]
        factors = torch.where(slots >= 0, drawn[slots, inputs.columns], 0.0)
        sources = ids[: sample.hops[0].num_src]
        hidden_NH = torch.zeros(num_nodes, options.hidden)
        hidden_NH[sources] = self._drawn((len(sources), options.hidden), options.dropout, epoch, 1)
        hops = list(reversed(sample.hops)) if options.kind == "gat" else []
        return EpochMasks(factors, hidden_NH, [self._of_edges(hop, ids, epoch, n) for n, hop in enumerate(hops)])

    def _of_edges(self, hop: Mfg, ids: Tensor, epoch: int, layer: int) -> Tensor:
        dst = np.repeat(np.arange(hop.num_dst), np.diff(hop.indptr))
        edges = self._topology.indptr[ids.numpy()[dst]] + np.arange(len(dst)) - hop.indptr[dst]
        heads = self._options.heads or DEFAULT_HEADS
        mask = torch.zeros(self._topology.num_edges, heads, 1)
        mask[edges, :, 0] = self._drawn((len(dst), heads), self._options.attention_dropout, epoch, layer, 1)
        return mask

    def _drawn(self, shape: tuple[int, int], probability: float, epoch: int, *layer: int) -> Tensor:
        key = stream_key(Purpose.DROPOUT, self._options.seed, epoch, 0, *layer)
        return dropout(torch.ones(shape), probability, key)
