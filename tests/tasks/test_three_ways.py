"""One small network trained three ways on the same samples — our layers, DGL's, PyG's convention — has one loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kernels.interop_pyg import PygLayer, to_pyg, to_pyg_layers
from kernels.nn.model import GnnModel, ModelSpec, build_model
from tasks.api import Batch, GraphLoader
from tests.storage.stores import write_small_store

HIDDEN, NUM_CLASSES, EPOCHS, BATCH_SIZE = 8, 5, 3, 300
SAMPLED, WHOLE = [4, 6], [-1, -1]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "graph.h5"
    write_small_store(path)
    return path


class PygSage(nn.Module):
    """GraphSAGE as a user of PyG writes it: linear maps and a scattered mean over an edge list."""

    def __init__(self, ours: GnnModel) -> None:
        super().__init__()
        self.own, self.neighbor = nn.ModuleList(), nn.ModuleList()
        layer: Any
        for layer in ours.layers:
            own, neighbor = nn.Linear(layer.in_dim, layer.out_dim), nn.Linear(layer.in_dim, layer.out_dim, bias=False)
            copy_into(layer, own.weight, own.bias, neighbor.weight)
            self.own.append(own)
            self.neighbor.append(neighbor)

    def conv(self, index: int, x: Tensor, edge_index: Tensor, num_dst: int) -> Tensor:
        src, dst = edge_index
        degree = torch.bincount(dst, minlength=num_dst).clamp(min=1)
        mean = x.new_zeros(num_dst, x.shape[1]).index_add(0, dst, x[src]) / degree[:, None]
        h = self.own[index](x[:num_dst]) + self.neighbor[index](mean)
        return torch.relu(h) if index < len(self.own) - 1 else h

    def over_layers(self, layers: list[PygLayer], x: Tensor) -> Tensor:
        for index, layer in enumerate(layers):
            x = self.conv(index, x, layer.edge_index, layer.size[1])
        return x

    def over_one_graph(self, edge_index: Tensor, x: Tensor) -> Tensor:
        for index in range(len(self.own)):
            x = self.conv(index, x, edge_index, len(x))
        return x


def copy_into(layer: Any, own: Tensor, bias: Tensor, neighbor: Tensor) -> None:
    with torch.no_grad():
        own.copy_(layer.weight_self)
        bias.copy_(layer.bias)
        neighbor.copy_(layer.weight_neighbor)


def initial_model(in_dim: int) -> GnnModel:
    return build_model(ModelSpec("sage", in_dim, HIDDEN, NUM_CLASSES, num_layers=2), seed=1)


def losses(path: Path, fanouts: list[int], model: nn.Module, forward: Callable[[Batch], Tensor]) -> list[float]:
    """Losses of all steps of a few epochs of Adam."""
    optimizer, found = torch.optim.Adam(model.parameters(), lr=0.02), []
    with GraphLoader(path, fanouts=fanouts, batch_size=BATCH_SIZE, seed=4) as loader:
        for epoch in range(EPOCHS):
            for batch in loader.epoch(epoch):
                loss = functional.cross_entropy(forward(batch), batch.y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
    return found


def our_losses(path: Path, fanouts: list[int]) -> list[float]:
    model = initial_model(7)
    found = losses(path, fanouts, model, lambda batch: model(batch.sample.hops, batch.x))
    assert found[-1] < found[0] - 0.01  # it does learn, so equal losses say something
    return found


def test_pyg_layer_by_layer(path: Path) -> None:
    model = PygSage(initial_model(7))
    found = losses(path, SAMPLED, model, lambda batch: model.over_layers(to_pyg_layers(batch.sample), batch.x))
    assert found == pytest.approx(our_losses(path, SAMPLED), rel=0, abs=1e-5)


def test_pyg_on_one_edge_index(path: Path) -> None:
    """All neighbors: elsewhere `to_pyg` keeps one draw a node, which is another estimate."""
    model = PygSage(initial_model(7))

    def forward(batch: Batch) -> Tensor:
        pyg = to_pyg(batch.sample)
        return model.over_one_graph(pyg.edge_index, batch.x[pyg.input_rows])[: pyg.batch_size]

    assert losses(path, WHOLE, model, forward) == pytest.approx(our_losses(path, WHOLE), rel=0, abs=1e-5)


def test_dgl(path: Path) -> None:
    interop = pytest.importorskip("kernels.interop_dgl", exc_type=ImportError)
    convs = nn.ModuleList()
    for layer in initial_model(7).layers:
        conv = interop.dgl.nn.SAGEConv(layer.in_dim, layer.out_dim, "mean")
        copy_into(layer, conv.fc_self.weight, conv.fc_self.bias, conv.fc_neigh.weight)
        convs.append(conv)

    def forward(batch: Batch) -> Tensor:
        first, last = interop.to_dgl_blocks(batch.sample)
        return convs[1](last, torch.relu(convs[0](first, batch.x)))

    assert losses(path, SAMPLED, convs, forward) == pytest.approx(our_losses(path, SAMPLED), rel=0, abs=1e-5)


def test_another_sample_has_other_losses(path: Path) -> None:
    """The comparisons above can fail: one neighbor fewer is far above their tolerance."""
    differences = [abs(a - b) for a, b in zip(our_losses(path, SAMPLED), our_losses(path, [4, 5]), strict=True)]
    assert max(differences) > 1e-3
