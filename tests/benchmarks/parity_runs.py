"""Test accuracy of our networks beside DGL's on one data set, paired by seed; needs dgl.

Both sides share the graph, splits, hyperparameters, initial weights, optimizer, and the rules that choose the epoch and
stop. DGL trains on the full graph with its own layers; ours takes all neighbors of mini-batches, through the trainer.

Both drop the same elements, too: with masks of their own, the chance of 20 seeds alone spreads the mean difference by
up to a point either way (GAT on Cora). What is drawn, `tests/kernels/nn` holds against the law of dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional

from kernels.interop_dgl import dgl
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import GnnModel, Kind, build_model
from kernels.topology import Topology
from storage.cache.tiers import FeatureTiers
from storage.formats.planetoid import open_planetoid
from storage.graph_store import GraphStore
from storage.ingest import IngestOptions, ingest
from tasks.trainer import train
from tasks.training_types import Splits, TrainOptions
from tests.benchmarks.parity_masks import EpochMasks, Inputs, Masks

DATASETS = ("cora", "citeseer", "pubmed")
SEEDS, MARGIN = 20, 1.0

_PLAIN = TrainOptions(
    kind="gcn",
    fanouts=(-1, -1),
    hidden=16,
    dropout=0.5,
    input_dropout=0.5,
    epochs=200,
    patience=20,
    learning_rate=0.01,
    weight_decay=5e-4,
    threads=1,
    superbatch=1,
    compute_threads=1,
)
# Veličković et al., ICLR 2018, but for the output layer, which has as many heads as the others here.
_ATTENTION: dict[str, Any] = {"hidden": 64, "heads": 8, "dropout": 0.6, "input_dropout": 0.6, "attention_dropout": 0.6}
RECIPES: dict[Kind, TrainOptions] = {
    "sage": replace(_PLAIN, kind="sage"),
    "gcn": _PLAIN,
    "gat": replace(_PLAIN, kind="gat", learning_rate=0.005, **_ATTENTION),
}
"""Two layers, full batches, early stopping."""


@dataclass(frozen=True)
class Graph:
    """One data set, as both sides take it."""

    topology: Topology
    rows: np.ndarray
    labels: np.ndarray
    splits: Splits
    degrees: NodeDegrees
    num_classes: int

    def ours(self, options: TrainOptions) -> float:
        """Test accuracy of our trainer in percent."""
        features = FeatureTiers(self.rows, np.arange(0))
        parts = (self.adjacency(options), features, self.labels, self.splits, self.degrees, options)
        result = train(*parts, num_classes=self.num_classes)
        assert result.test_accuracy is not None
        return 100 * result.test_accuracy

    def dgls(self, options: TrainOptions) -> float:
        """Test accuracy of DGL's layers on the full graph in percent, by the same rules."""
        model = DglNetwork(build_model(options.model_spec(self.rows.shape[1], self.num_classes), seed=options.seed))
        graph, x, y = self.whole(options), self.inputs, torch.from_numpy(self.labels)
        split = self.splits.labelled(self.labels)
        masks = Masks(self.adjacency(options), x, split.train, options)
        optimizer, chosen = _optimizer(model, options), _Chosen()
        for epoch in range(options.epochs):
            optimizer.zero_grad()
            logits = model(graph, x, masks.of(epoch))
            functional.cross_entropy(logits[split.train], y[split.train]).backward()
            optimizer.step()
            with torch.no_grad():
                logits = model(graph, x)
            loss = functional.cross_entropy(logits[split.valid], y[split.valid])
            key = (accuracy(logits, y, split.valid), -float(loss))
            if key > chosen.key:
                chosen = _Chosen(key, epoch, accuracy(logits, y, split.test))
            if options.patience is not None and epoch - chosen.epoch >= options.patience:
                break
        return chosen.test_accuracy

    def adjacency(self, options: TrainOptions) -> Topology:
        """What our sampler reads: with a self loop a node for GAT, which attends to a node itself where it has one."""
        return self.with_loops if options.kind == "gat" else self.topology

    @cached_property
    def with_loops(self) -> Topology:
        """The adjacency with a self loop at the end of each list."""
        lists = np.split(self.topology.indices, self.topology.indptr[1:-1])
        looped = [np.append(neighbors, node) for node, neighbors in enumerate(lists)]
        return Topology.in_memory(self.topology.indptr + np.arange(len(self.topology.indptr)), np.concatenate(looped))

    def whole(self, options: TrainOptions) -> Any:
        """The graph as DGL holds it, edges in the order of the lists; its GCN takes the self connection from loops."""
        topology = self.topology if options.kind == "sage" else self.with_loops
        dst = np.repeat(np.arange(topology.num_nodes), np.diff(topology.indptr))
        return dgl.graph((topology.indices.astype(np.int64), dst), num_nodes=topology.num_nodes)

    @cached_property
    def inputs(self) -> Inputs:
        """Features for DGL's layers."""
        return Inputs(torch.from_numpy(self.rows.astype(np.float32)))


@dataclass(frozen=True)
class _Chosen:
    """The best epoch so far."""

    key: tuple[float, float] = (-1.0, 0.0)
    epoch: int = 0
    test_accuracy: float = 0.0


class DglNetwork(nn.Module):
    """DGL's layers with the initial weights of our network."""

    def __init__(self, ours: GnnModel) -> None:
        super().__init__()
        self.convs = nn.ModuleList([_CONVS[ours.spec.kind](layer) for layer in ours.ordered_layers()])

    def forward(self, graph: Any, x: Inputs, masks: EpochMasks | None = None) -> Tensor:
        """Logits of all nodes, in training with what is dropped."""
        first, last = self.convs
        for conv, mask in zip(self.convs, masks.attention if masks is not None else (None, None), strict=False):
            conv.attn_drop = _Scaled(mask)
        h = torch.relu(first(graph, x.rows if masks is None else x.scaled(masks.inputs)).flatten(1))
        h = last(graph, h if masks is None else h * masks.hidden_NH)
        return h.mean(dim=1) if h.ndim == 3 else h


class _Scaled(nn.Module):
    """Stands for the dropout of a GATConv's attention."""

    def __init__(self, mask: Tensor | None) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, attention: Tensor) -> Tensor:
        return attention if self.mask is None else attention * self.mask


class _Linear(nn.Linear):
    """`nn.Linear` that takes sparse rows too."""

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_sparse:
            return super().forward(x)
        out = torch.sparse.mm(x, self.weight.T)
        return out if self.bias is None else out + self.bias


def _linear(weight: Tensor, bias: Tensor | None = None) -> _Linear:
    made = _Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    with torch.no_grad():
        made.weight.copy_(weight)
        if bias is not None:
            made.bias.copy_(bias)
    return made


def _sage(layer: Any) -> nn.Module:
    conv: Any = dgl.nn.SAGEConv(layer.in_dim, layer.out_dim, "mean")
    conv.fc_self, conv.fc_neigh = _linear(layer.weight_self, layer.bias), _linear(layer.weight_neighbor)
    conv.feat_drop = nn.Identity()  # of probability 0; torch's does not take sparse rows
    return conv


def _gcn(layer: Any) -> nn.Module:
    conv: Any = dgl.nn.GraphConv(layer.in_dim, layer.out_dim, norm="both")
    with torch.no_grad():
        conv.weight.copy_(layer.weight.T)
        conv.bias.copy_(layer.bias)
    return conv


def _gat(layer: Any) -> nn.Module:
    conv: Any = dgl.nn.GATConv(layer.in_dim, layer.head_dim, layer.heads)
    conv.fc, conv.feat_drop = _linear(layer.weight), nn.Identity()
    with torch.no_grad():
        for theirs, taken in (
            (conv.attn_l, layer.attention_source),
            (conv.attn_r, layer.attention_own),
            (conv.bias, layer.bias),
        ):
            theirs.copy_(taken.view_as(theirs))
    return conv


_CONVS: dict[str, Callable[[Any], nn.Module]] = {"sage": _sage, "gcn": _gcn, "gat": _gat}


def _optimizer(model: nn.Module, options: TrainOptions) -> torch.optim.Adam:
    """Adam with weight decay on everything but biases, as our trainer has it."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim == 1]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": options.weight_decay}, {"params": biases}]
    return torch.optim.Adam(groups, lr=options.learning_rate)


def accuracy(logits: Tensor, y: Tensor, nodes: np.ndarray) -> float:
    """Share of right classes among some nodes in percent."""
    return 100 * float((logits[nodes].argmax(dim=1) == y[nodes]).double().mean())


def read_graph(folder: Path, name: str, scratch: Path) -> Graph:
    """Read one data set through ingest."""
    path = scratch / f"{name}.h5"
    ingest(open_planetoid(folder, name), IngestOptions(symmetrize=True, normalize_features="row"), path)
    with GraphStore.open(path) as store:
        indptr = store.read_indptr()
        return Graph(
            Topology.in_memory(indptr, store.read_indices()),
            store.read_features(),
            store.read_labels(),
            Splits(store.read_split("train"), store.read_split("valid"), store.read_split("test")),
            NodeDegrees(np.diff(indptr), store.read_out_degree()),
            store.info.num_classes,
        )


@dataclass(frozen=True)
class Comparison:
    """Test accuracies in percent, one a seed on each side."""

    ours: np.ndarray
    dgls: np.ndarray

    @classmethod
    def of(cls, graph: Graph, kind: Kind, seeds: Iterable[int] = range(SEEDS)) -> Comparison:
        """Train on both sides with each seed."""
        options = [replace(RECIPES[kind], seed=seed) for seed in seeds]
        return cls(np.array([graph.ours(each) for each in options]), np.array([graph.dgls(each) for each in options]))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean of ours minus DGL's in points, by Student's t."""
        paired = self.ours - self.dgls
        spread = stats.sem(paired) * stats.t.ppf(0.975, len(paired) - 1)
        return float(paired.mean() - spread), float(paired.mean() + spread)

    def figures(self) -> dict[str, Any]:
        """What is published."""
        return {
            "ours": round(float(self.ours.mean()), 2),
            "dgl": round(float(self.dgls.mean()), 2),
            "difference": round(float((self.ours - self.dgls).mean()), 2),
            "interval": [round(bound, 2) for bound in self.interval],
            "deviation": round(float((self.ours - self.dgls).std(ddof=1)), 2),
        }
