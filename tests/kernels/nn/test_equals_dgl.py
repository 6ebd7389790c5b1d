"""Outputs and gradients of the layers equal those of dgl.nn on drawn hops, to 1e-5.

DGL computes in float64 and we in float32, as training does. Weights are drawn as both libraries draw their initial
ones: from weights many times as large, DGL's own float32 differs from its float64 by more than 1e-5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kernels.mfg import Mfg
from kernels.nn import gat
from kernels.nn.gat import GatLayer
from kernels.nn.gcn import GcnLayer
from kernels.nn.layers import Layer, glorot
from kernels.nn.sage import SageLayer
from tests.kernels.nn.mfgs import mfgs

interop = pytest.importorskip("kernels.interop_dgl", exc_type=ImportError)
dgl_nn: Any = interop.dgl.nn

TOLERANCE = 1e-5
"""Of an element, relative to the largest of its tensor where that is above one: where sums cancel, float32 keeps no
more."""
WIDTHS = st.sampled_from([(6, 3), (3, 6), (4, 4), (1, 1), (17, 8)])
Matched = list[tuple[Tensor, Tensor]]
"""Our parameter beside DGL's."""
Pair = tuple[Layer, nn.Module, Matched]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def given_the_same_weights(pairs: Matched, seed: int) -> None:
    """Matrices by Glorot's law, biases of the size that training gives them."""
    rng = generator(seed)
    with torch.no_grad():
        for ours, theirs in pairs:
            if ours.ndim == 2:
                ours.copy_(glorot(ours.shape[0], ours.shape[1], rng))
            else:
                ours.copy_(0.1 * torch.randn(ours.shape, generator=rng))
            theirs.copy_(ours.reshape(theirs.shape))


def assert_close(got: Tensor, wanted: Tensor) -> None:
    wanted = wanted.detach().reshape(got.shape)
    atol = TOLERANCE * max(1.0, float(wanted.abs().max()) if wanted.numel() else 0.0)
    torch.testing.assert_close(got.detach().double(), wanted, rtol=0, atol=atol)


def assert_equal(mfg: Mfg, pair: Pair, seed: int) -> None:
    """One forward and backward of each from the same rows, weights and output gradient."""
    ours, theirs, pairs = pair
    given_the_same_weights(pairs, seed)
    h = torch.randn(mfg.num_src, ours.in_dim, generator=generator(seed + 1)).requires_grad_()
    out = ours(mfg, h)
    grad = torch.randn(out.shape, generator=generator(seed + 2))
    got = torch.autograd.grad(out, [h, *(p for p, _ in pairs)], grad)
    if not mfg.num_dst:
        assert all(not g.any() for g in got)
        return
    exact = h.detach().double().requires_grad_()
    expected = theirs.double()(interop.to_dgl_block(mfg), exact)
    assert_close(out, expected)
    # `double` keeps the parameters and changes what they hold.
    wanted = torch.autograd.grad(expected, [exact, *(p for _, p in pairs)], grad.view_as(expected), allow_unused=True)
    for g, w in zip(got, wanted, strict=True):
        # Without edges DGL leaves some weights out of its graph.
        assert_close(g, torch.zeros_like(g).double() if w is None else w)


def sage(in_dim: int, out_dim: int) -> Pair:
    ours, theirs = SageLayer(in_dim, out_dim, generator=generator(0)), dgl_nn.SAGEConv(in_dim, out_dim, "mean")
    pairs = [(ours.weight_self, theirs.fc_self.weight), (ours.weight_neighbor, theirs.fc_neigh.weight)]
    return ours, theirs, [*pairs, (ours.bias, theirs.fc_self.bias)]


class TransposedConv(nn.Module):
    """GraphConv with its weight turned as ours is."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.conv = dgl_nn.GraphConv(in_dim, out_dim, norm="both", weight=False, allow_zero_in_degree=True)
        self.weight = nn.Parameter(torch.zeros(out_dim, in_dim))

    def forward(self, block: Any, h: Tensor) -> Tensor:
        out: Tensor = self.conv(block, h, weight=self.weight.T)
        return out


def gcn(in_dim: int, out_dim: int) -> Pair:
    ours, theirs = GcnLayer(in_dim, out_dim, generator=generator(0), norm="mfg"), TransposedConv(in_dim, out_dim)
    return ours, theirs, [(ours.weight, theirs.weight), (ours.bias, theirs.conv.bias)]


def attention(in_dim: int, heads: int, head_dim: int, *, residual: bool = False) -> Pair:
    ours = GatLayer(in_dim, heads * head_dim, generator=generator(0), heads=heads, residual=residual)
    theirs = dgl_nn.GATConv(in_dim, head_dim, heads, residual=residual, allow_zero_in_degree=True)
    # Beside a linear residual DGL keeps its bias there.
    bias = theirs.bias if theirs.bias is not None else theirs.res_fc.bias
    pairs = _attention_pairs(ours, theirs, bias)
    if ours.weight_residual is not None:
        pairs.append((ours.weight_residual, theirs.res_fc.weight))
    return ours, theirs, pairs


def averaged_attention(in_dim: int, out_dim: int, heads: int) -> Pair:
    """Heads averaged as users of DGL do it."""
    ours = GatLayer(in_dim, out_dim, generator=generator(0), heads=heads, merge="mean")
    conv = dgl_nn.GATConv(in_dim, out_dim, heads, allow_zero_in_degree=True)
    return ours, _Averaged(conv), _attention_pairs(ours, conv, conv.bias)


def _attention_pairs(ours: GatLayer, conv: Any, bias: Tensor) -> Matched:
    pairs = [(ours.weight, conv.fc.weight), (ours.bias, bias)]
    return [*pairs, (ours.attention_source, conv.attn_l), (ours.attention_own, conv.attn_r)]


class _Averaged(nn.Module):
    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, block: Any, h: Tensor) -> Tensor:
        out: Tensor = self.conv(block, h).mean(dim=1)
        return out


@settings(deadline=None, max_examples=150)
@given(mfgs(), WIDTHS, st.integers(0, 9999))
def test_sage_equals_sageconv(mfg: Mfg, widths: tuple[int, int], seed: int) -> None:
    assert_equal(mfg, sage(*widths), seed)


@settings(deadline=None, max_examples=150)
@given(mfgs(), WIDTHS, st.integers(0, 9999))
def test_gcn_by_the_hops_degrees_equals_graphconv(mfg: Mfg, widths: tuple[int, int], seed: int) -> None:
    assert_equal(mfg, gcn(*widths), seed)


@settings(deadline=None, max_examples=150)
@given(mfgs(), st.sampled_from([(6, 2, 3), (4, 4, 1), (3, 1, 5), (8, 2, 4)]), st.booleans(), st.integers(0, 9999))
def test_gat_equals_gatconv(mfg: Mfg, sizes: tuple[int, int, int], residual: bool, seed: int) -> None:
    assert_equal(mfg, attention(*sizes, residual=residual), seed)


@settings(deadline=None, max_examples=50)
@given(mfgs(), st.integers(0, 9999))
def test_gat_averages_its_heads_as_users_of_dgl_do(mfg: Mfg, seed: int) -> None:
    assert_equal(mfg, averaged_attention(5, 3, 2), seed)


HOP = Mfg(np.array([0, 3, 3, 5]), np.array([0, 3, 3, 1, 2], np.int32), 5)
LOST_EDGE = Mfg(np.array([0, 2, 2, 4]), np.array([0, 3, 1, 2], np.int32), 5)
PAIRS: dict[str, Callable[[], Pair]] = {
    "sage": lambda: sage(6, 3),
    "gcn": lambda: gcn(6, 3),
    "gat": lambda: attention(6, 2, 3),
    "averaged": lambda: averaged_attention(5, 3, 2),
}
FAULTS: dict[str, Callable[[Layer, Mfg, Tensor], Tensor]] = {
    "factor": lambda layer, mfg, h: layer(mfg, h) * (1 + 1e-4),
    "edge": lambda layer, _, h: layer(LOST_EDGE, h),
}


class _Faulty(nn.Module):
    """A layer with an error of ours in it."""

    def __init__(self, layer: Layer, fault: str) -> None:
        super().__init__()
        self.layer, self.in_dim, self.fault = layer, layer.in_dim, FAULTS[fault]

    def forward(self, mfg: Mfg, h: Tensor) -> Tensor:
        return self.fault(self.layer, mfg, h)


@pytest.mark.parametrize("name", PAIRS)
def test_the_comparison_holds_where_faults_are_planted(name: str) -> None:
    assert_equal(HOP, PAIRS[name](), 3)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", PAIRS)
def test_a_fault_is_found(name: str, fault: str) -> None:
    ours, theirs, pairs = PAIRS[name]()
    with pytest.raises(AssertionError, match="not close"):
        assert_equal(HOP, (_Faulty(ours, fault), theirs, pairs), 3)  # type: ignore[arg-type]


def test_a_slope_a_little_too_steep_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gat, "NEGATIVE_SLOPE", 0.201)
    with pytest.raises(AssertionError, match="not close"):
        assert_equal(HOP, attention(6, 2, 3), 3)


def test_exchanged_score_terms_are_found() -> None:
    ours, theirs, pairs = attention(6, 2, 3)
    (source, left), (own, right) = pairs[2:]
    with pytest.raises(AssertionError, match="not close"):
        assert_equal(HOP, (ours, theirs, [*pairs[:2], (source, right), (own, left)]), 3)
