"""Test accuracy of our networks beside DGL's on one data set, paired by seed; needs dgl.

Both sides share the graph, splits, hyperparameters, initial weights, optimizer, and the rules that choose the epoch and
stop. DGL trains on the full graph with its own layers and torch's dropout; ours takes all neighbors of mini-batches,
through the trainer.
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

DATASETS = ("cora", "citeseer", "pubmed")
SEEDS, MARGIN = 20, 1.0
_SPARSE_SHARE = 0.05

_PLAIN = TrainOptions(
    kind="gcn",
    fanouts=(-1, -1),
    hidden=16,
    dropout=0.5,
    input_dropout=0.5,
    epochs=200,
    patience=50,
    learning_rate=0.01,
    weight_decay=5e-4,
    threads=1,
    superbatch=1,
    compute_threads=1,
)
# Veličković et al., ICLR 2018, but for the output layer, which has as many heads as the others here.
_ATTENTION = {"hidden": 64, "heads": 8, "dropout": 0.6, "input_dropout": 0.6, "attention_dropout": 0.6}
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
        topology = self.with_loops if options.kind == "gat" else self.topology
        features = FeatureTiers(self.rows, np.arange(0))
        parts = (topology, features, self.labels, self.splits, self.degrees, options)
        result = train(*parts, num_classes=self.num_classes)
        assert result.test_accuracy is not None
        return 100 * result.test_accuracy

    def dgls(self, options: TrainOptions) -> float:
        """Test accuracy of DGL's layers on the full graph in percent, by the same rules."""
        model = DglNetwork(build_model(options.model_spec(self.rows.shape[1], self.num_classes), seed=options.seed))
        graph, x = (self.whole if options.kind == "sage" else self.whole_with_loops), self.inputs
        y, split = torch.from_numpy(self.labels), self.splits.labelled(self.labels)
        optimizer, chosen = _optimizer(model, options), _Chosen()
        torch.manual_seed(options.seed)
        for epoch in range(options.epochs):
            model.train()
            optimizer.zero_grad()
            functional.cross_entropy(model(graph, x, options)[split.train], y[split.train]).backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                logits = model(graph, x, options)
            loss = functional.cross_entropy(logits[split.valid], y[split.valid])
            key = (accuracy(logits, y, split.valid), -float(loss))
            if key > chosen.key:
                chosen = _Chosen(key, epoch, accuracy(logits, y, split.test))
            if options.patience is not None and epoch - chosen.epoch >= options.patience:
                break
        return chosen.test_accuracy

    @cached_property
    def with_loops(self) -> Topology:
        """The adjacency with a self loop a node: a GAT layer attends to a node itself where it has one."""
        lists = np.split(self.topology.indices, self.topology.indptr[1:-1])
        looped = [np.append(neighbors, node) for node, neighbors in enumerate(lists)]
        return Topology.in_memory(self.topology.indptr + np.arange(len(self.topology.indptr)), np.concatenate(looped))

    @cached_property
    def whole(self) -> Any:
        """The graph as DGL holds it."""
        num_nodes = self.topology.num_nodes
        dst = np.repeat(np.arange(num_nodes), np.diff(self.topology.indptr))
        return dgl.graph((self.topology.indices.astype(np.int64), dst), num_nodes=num_nodes)

    @cached_property
    def whole_with_loops(self) -> Any:
        """Self loops added: DGL's GCN and GAT take the self connection from them, our GCN has it in its norm."""
        return dgl.add_self_loop(self.whole)

    @cached_property
    def inputs(self) -> Tensor:
        """Features for DGL's layers: sparse where that is faster."""
        x = torch.from_numpy(self.rows.astype(np.float32))
        return x.to_sparse() if np.count_nonzero(self.rows) < _SPARSE_SHARE * self.rows.size else x


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
        self.convs = nn.ModuleList([_CONVS[ours.spec.kind](layer, ours) for layer in ours.ordered_layers()])
        self.words = self.values = torch.empty(0)
        self.dropped: Tensor | None = None

    def forward(self, graph: Any, x: Tensor, options: TrainOptions) -> Tensor:
        """Logits of all nodes."""
        h = self.drop_input(x, options)
        for index, conv in enumerate(self.convs):
            h = functional.dropout(h, options.dropout, self.training) if index else h
            h = conv(graph, h)
            if index == len(self.convs) - 1:
                return h.mean(dim=1) if h.ndim == 3 else h
            h = torch.relu(h.flatten(1))
        return h

    def drop_input(self, x: Tensor, options: TrainOptions) -> Tensor:
        """Dropout that draws for what is not zero alone: the same law, several times as fast on bags of words."""
        if not self.training:
            return x
        if x.is_sparse:
            kept = functional.dropout(x.values(), options.input_dropout)
            return torch.sparse_coo_tensor(x.indices(), kept, x.shape, is_coalesced=True, check_invariants=False)
        if self.dropped is None:
            self.words, self.dropped = torch.nonzero(x.view(-1)).view(-1), torch.zeros_like(x)
            self.values = x.view(-1)[self.words]
        self.dropped.view(-1)[self.words] = functional.dropout(self.values, options.input_dropout)
        return self.dropped


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


def _sage(layer: Any, _: GnnModel) -> nn.Module:
    conv: nn.Module = dgl.nn.SAGEConv(layer.in_dim, layer.out_dim, "mean")
    conv.fc_self, conv.fc_neigh = _linear(layer.weight_self, layer.bias), _linear(layer.weight_neighbor)
    conv.feat_drop = nn.Identity()  # of probability 0; torch's does not take sparse rows
    return conv


def _gcn(layer: Any, _: GnnModel) -> nn.Module:
    conv: nn.Module = dgl.nn.GraphConv(layer.in_dim, layer.out_dim, norm="both")
    with torch.no_grad():
        conv.weight.copy_(layer.weight.T)
        conv.bias.copy_(layer.bias)
    return conv


def _gat(layer: Any, ours: GnnModel) -> nn.Module:
    conv: nn.Module = dgl.nn.GATConv(layer.in_dim, layer.head_dim, layer.heads, attn_drop=ours.spec.attention_dropout)
    conv.fc, conv.feat_drop = _linear(layer.weight), nn.Identity()
    with torch.no_grad():
        for theirs, taken in (
            (conv.attn_l, layer.attention_source),
            (conv.attn_r, layer.attention_own),
            (conv.bias, layer.bias),
        ):
            theirs.copy_(taken.view_as(theirs))
    return conv


_CONVS: dict[str, Callable[[Any, GnnModel], nn.Module]] = {"sage": _sage, "gcn": _gcn, "gat": _gat}


def _optimizer(model: nn.Module, options: TrainOptions) -> torch.optim.Adam:
    """Adam with weight decay on everything but biases, as our trainer has it."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    biases = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": options.weight_decay}, {"params": biases}]
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
