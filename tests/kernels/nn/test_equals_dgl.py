"""Outputs and gradients of the layers equal those of dgl.nn on drawn hops, to 1e-5."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kernels.mfg import Mfg
from kernels.nn.gat import GatLayer
from kernels.nn.gcn import GcnLayer
from kernels.nn.sage import SageLayer
from tests.kernels.nn.mfgs import mfgs

interop = pytest.importorskip("kernels.interop_dgl", exc_type=ImportError)
dgl_nn: Any = interop.dgl.nn

WIDTHS = st.sampled_from([(6, 3), (3, 6), (4, 4), (1, 1), (17, 8)])
Matched = list[tuple[Tensor, Tensor]]
"""Our parameter beside DGL's."""


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def given_the_same_weights(pairs: Matched, seed: int) -> None:
    with torch.no_grad():
        for ours, theirs in pairs:
            ours.copy_(torch.randn(ours.shape, generator=generator(seed)))
            theirs.copy_(ours.reshape(theirs.shape))


def assert_equal(mfg: Mfg, ours: nn.Module, theirs: nn.Module, pairs: Matched, in_dim: int, seed: int) -> None:
    """One forward and backward of each from the same rows, weights and output gradient."""
    given_the_same_weights(pairs, seed)
    h = torch.randn(mfg.num_src, in_dim, generator=generator(seed + 1)).requires_grad_()
    block = interop.to_dgl_block(mfg)
    out = ours(mfg, h)
    expected = theirs(block, h).reshape(out.shape) if mfg.num_dst else out.detach()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    grad = torch.randn(out.shape, generator=generator(seed + 2))
    got = torch.autograd.grad(out, [h, *(p for p, _ in pairs)], grad)
    if not mfg.num_dst:
        assert all(not g.any() for g in got)
        return
    wanted = torch.autograd.grad(expected, [h, *(p for _, p in pairs)], grad, allow_unused=True)
    for g, w in zip(got, wanted, strict=True):
        # Without edges DGL leaves some weights out of its graph.
        torch.testing.assert_close(g, torch.zeros_like(g) if w is None else w.reshape(g.shape), rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=150)
@given(mfgs(), WIDTHS, st.integers(0, 99))
def test_sage_equals_sageconv(mfg: Mfg, widths: tuple[int, int], seed: int) -> None:
    ours, theirs = SageLayer(*widths, generator=generator(0)), dgl_nn.SAGEConv(*widths, "mean")
    pairs = [(ours.weight_self, theirs.fc_self.weight), (ours.weight_neighbor, theirs.fc_neigh.weight)]
    assert_equal(mfg, ours, theirs, [*pairs, (ours.bias, theirs.fc_self.bias)], widths[0], seed)


class TransposedConv(nn.Module):
    """GraphConv with its weight turned as ours is."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.conv = dgl_nn.GraphConv(in_dim, out_dim, norm="both", weight=False, allow_zero_in_degree=True)
        self.weight = nn.Parameter(torch.zeros(out_dim, in_dim))

    def forward(self, block: Any, h: Tensor) -> Tensor:
        out: Tensor = self.conv(block, h, weight=self.weight.T)
        return out


@settings(deadline=None, max_examples=150)
@given(mfgs(), WIDTHS, st.integers(0, 99))
def test_gcn_by_the_hops_degrees_equals_graphconv(mfg: Mfg, widths: tuple[int, int], seed: int) -> None:
    ours, theirs = GcnLayer(*widths, generator=generator(0), norm="mfg"), TransposedConv(*widths)
    pairs = [(ours.weight, theirs.weight), (ours.bias, theirs.conv.bias)]
    assert_equal(mfg, ours, theirs, pairs, widths[0], seed)


@pytest.mark.full
@settings(deadline=None, max_examples=150)
@given(mfgs(), st.sampled_from([(6, 2, 3), (4, 4, 1), (3, 1, 5), (8, 2, 4)]), st.booleans(), st.integers(0, 99))
def test_gat_equals_gatconv(mfg: Mfg, sizes: tuple[int, int, int], residual: bool, seed: int) -> None:
    in_dim, heads, head_dim = sizes
    ours = GatLayer(in_dim, heads * head_dim, generator=generator(0), heads=heads, residual=residual)
    theirs = dgl_nn.GATConv(in_dim, head_dim, heads, residual=residual, allow_zero_in_degree=True)
    # Beside a linear residual DGL keeps its bias there.
    bias = theirs.bias if theirs.bias is not None else theirs.res_fc.bias
    pairs = [(ours.weight, theirs.fc.weight), (ours.bias, bias)]
    pairs += [(ours.attention_source, theirs.attn_l), (ours.attention_own, theirs.attn_r)]
    if ours.weight_residual is not None:
        pairs.append((ours.weight_residual, theirs.res_fc.weight))
    assert_equal(mfg, ours, theirs, pairs, in_dim, seed)


@settings(deadline=None, max_examples=50)
@given(mfgs(), st.integers(0, 99))
def test_gat_averages_its_heads_as_users_of_dgl_do(mfg: Mfg, seed: int) -> None:
    ours = GatLayer(5, 3, generator=generator(0), heads=2, merge="mean")
    conv = dgl_nn.GATConv(5, 3, 2, allow_zero_in_degree=True)
    theirs = _Averaged(conv)
    pairs = [(ours.weight, conv.fc.weight), (ours.bias, conv.bias)]
    pairs += [(ours.attention_source, conv.attn_l), (ours.attention_own, conv.attn_r)]
    assert_equal(mfg, ours, theirs, pairs, 5, seed)


class _Averaged(nn.Module):
    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, block: Any, h: Tensor) -> Tensor:
        out: Tensor = self.conv(block, h).mean(dim=1)
        return out
