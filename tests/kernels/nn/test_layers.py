"""The layers against dense algebra on whole graphs, and against their own sampled estimates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from kernels.mfg import Mfg
from kernels.nn.gcn import GcnLayer
from kernels.nn.layers import Layer, NodeDegrees
from kernels.nn.mlp import DenseLayer
from kernels.nn.sage import SageLayer
from tests.kernels.nn.mfgs import random_mfg, whole_graph

WIDTHS = [(6, 3), (3, 6), (4, 4)]


def made(kind: type[SageLayer] | type[GcnLayer] | type[DenseLayer], in_dim: int, out_dim: int) -> Layer:
    layer = kind(in_dim, out_dim, generator=torch.Generator().manual_seed(5))
    torch.nn.init.normal_(layer.bias, generator=torch.Generator().manual_seed(6))
    return layer


def dense_gcn(layer: GcnLayer, h: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
    """`D_in^-1/2 (A + I) D_out^-1/2 H W + b` in float64."""
    with_self = adjacency + torch.eye(len(adjacency))
    scaled = with_self / with_self.sum(1).sqrt()[:, None] / with_self.sum(0).sqrt()[None, :]
    return scaled @ h.double() @ layer.weight.double().T + layer.bias.double()


def dense_sage(layer: SageLayer, h: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
    mean = adjacency @ h.double() / adjacency.sum(1).clamp(min=1)[:, None]
    return mean @ layer.weight_neighbor.double().T + functional.linear(
        h.double(), layer.weight_self.double(), layer.bias.double()
    )


@pytest.mark.parametrize(("in_dim", "out_dim"), WIDTHS)
def test_gcn_equals_the_normalised_adjacency(in_dim: int, out_dim: int) -> None:
    mfg, degrees, adjacency = whole_graph(40, 4)
    layer, h = made(GcnLayer, in_dim, out_dim), torch.randn(40, in_dim)
    assert isinstance(layer, GcnLayer)
    expected = dense_gcn(layer, h, adjacency).float()
    torch.testing.assert_close(layer(mfg, h, degrees), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("in_dim", "out_dim"), WIDTHS)
def test_sage_equals_its_definition(in_dim: int, out_dim: int) -> None:
    mfg, _, adjacency = whole_graph(40, 4)
    layer, h = made(SageLayer, in_dim, out_dim), torch.randn(40, in_dim)
    assert isinstance(layer, SageLayer)
    torch.testing.assert_close(layer(mfg, h), dense_sage(layer, h, adjacency).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [SageLayer, GcnLayer, DenseLayer])
@pytest.mark.parametrize(("in_dim", "out_dim"), WIDTHS)
def test_project_then_combine_is_forward(
    kind: type[SageLayer] | type[GcnLayer] | type[DenseLayer], in_dim: int, out_dim: int
) -> None:
    mfg = random_mfg(10, 25, 6)
    degrees = NodeDegrees(np.arange(25) + 6, np.arange(25)[::-1].copy())
    layer, h = made(kind, in_dim, out_dim), torch.randn(25, in_dim)
    apart = layer.combine(mfg, layer.project(h), degrees)
    torch.testing.assert_close(layer(mfg, h, degrees), apart, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [SageLayer, GcnLayer])
@pytest.mark.parametrize(("in_dim", "out_dim"), WIDTHS)
def test_gradients_reach_inputs_and_weights(kind: type[SageLayer] | type[GcnLayer], in_dim: int, out_dim: int) -> None:
    """Autograd through our kernel equals autograd through dense algebra."""
    mfg, degrees, adjacency = whole_graph(30, 3)
    layer, h = made(kind, in_dim, out_dim), torch.randn(30, in_dim).requires_grad_()
    wanted = [h, *layer.parameters()]
    loss_weight = torch.randn(30, out_dim)
    ours = torch.autograd.grad((layer(mfg, h, degrees) * loss_weight).sum(), wanted)
    dense = dense_gcn(layer, h, adjacency) if isinstance(layer, GcnLayer) else dense_sage(layer, h, adjacency)  # type: ignore[arg-type]
    for got, expected in zip(ours, torch.autograd.grad((dense * loss_weight).sum(), wanted), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_gcn_over_sampled_neighbors_is_unbiased() -> None:
    """The mean over every sample of two of five neighbors is the exact output."""
    layer = made(GcnLayer, 3, 3)
    h, degrees = torch.randn(6, 3), NodeDegrees(np.array([5, 1, 1, 1, 1, 1]), np.array([0, 1, 4, 2, 1, 7]))
    exact = layer(Mfg(np.array([0, 5]), np.arange(1, 6, dtype=np.int32), 6), h, degrees)
    pairs = [(a, b) for a in range(1, 6) for b in range(a + 1, 6)]
    samples = [layer(Mfg(np.array([0, 2]), np.array(pair, np.int32), 6), h, degrees) for pair in pairs]
    torch.testing.assert_close(torch.stack(samples).mean(0), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [SageLayer, GcnLayer])
def test_a_node_without_edges_gets_finite_output(kind: type[SageLayer] | type[GcnLayer]) -> None:
    mfg, degrees = Mfg(np.zeros(2, np.int64), np.empty(0, np.int32), 1), NodeDegrees(np.zeros(1, int), np.zeros(1, int))
    layer: Any = made(kind, 4, 4)
    h, own = torch.randn(1, 4), layer.weight_self if kind is SageLayer else layer.weight
    torch.testing.assert_close(layer(mfg, h, degrees), functional.linear(h, own, layer.bias))


def test_gcn_without_degrees_says_so() -> None:
    layer = made(GcnLayer, 4, 4)
    with pytest.raises(ValueError, match="degrees of its 25 sources"):
        layer(random_mfg(10, 25, 6), torch.randn(25, 4), NodeDegrees(np.ones(24, int), np.ones(24, int)))
