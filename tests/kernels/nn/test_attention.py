"""The attention aggregate against the same attention in plain float64 torch, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from kernels.cpu.attention import exp_of_negative
from kernels.mfg import Mfg
from kernels.nn.attention import Attention, attend
from kernels.nn.dropout import dropout
from kernels.rng import Purpose, stream_key
from tests.kernels.nn.mfgs import destinations, mfgs, random_mfg, sources

KEY = stream_key(Purpose.DROPOUT, 1, 2, 3, 0, 1)


@pytest.fixture
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def plain(mfg: Mfg, z: torch.Tensor, asked: Attention) -> torch.Tensor:
    """The definition, destination by destination, over whole rows of scores."""
    taken = asked.heads * asked.dim
    value = z[:, :taken].view(-1, asked.heads, asked.dim)
    scores = z[sources(mfg), taken : taken + asked.heads] + z[destinations(mfg), taken + asked.heads :]
    scores, kept = functional.leaky_relu(scores, asked.negative_slope), torch.ones(len(scores), asked.heads)
    if asked.key is not None:
        kept = dropout(kept, asked.dropout, asked.key)
    out = []
    for d in range(mfg.num_dst):
        row = slice(int(mfg.indptr[d]), int(mfg.indptr[d + 1]))
        alpha = torch.softmax(scores[row], dim=0) * kept[row]
        out.append((alpha[:, :, None] * value[sources(mfg)[row]]).sum(0).flatten())
    return torch.stack(out) if out else z[:0, :taken] * 1


def both_passes(out: torch.Tensor, z: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    (grad_z,) = torch.autograd.grad(out, z, grad.to(out.dtype))
    return out.detach(), grad_z


@settings(deadline=None)
@given(
    mfgs(),
    st.integers(1, 5),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from([None, 0.0, 0.4]),
    st.sampled_from([1.0, 30.0]),
    st.integers(0, 9),
)
def test_equals_plain_torch(
    mfg: Mfg, heads: int, dim: int, slope: float, probability: float | None, spread: float, seed: int
) -> None:
    asked = Attention(heads, dim, slope, probability or 0.0, None if probability is None else KEY)
    rng = torch.Generator().manual_seed(seed)
    z = torch.randn(mfg.num_src, asked.width, generator=rng).requires_grad_()
    z.data[:, heads * dim :] *= spread  # scores far apart: nearly all attention on one edge
    exact = z.detach().double().requires_grad_()
    grad = torch.randn(mfg.num_dst, heads * dim, generator=rng)
    ours = both_passes(attend(mfg, z, asked), z, grad)
    theirs = both_passes(plain(mfg, exact, asked), exact, grad)
    # The sum of two terms of 30 is itself rounded by 4e-6, and so are all scores that hang on it.
    for got, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5 * spread)


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("asked", [Attention(3, 5), Attention(8, 16, dropout=0.3, key=KEY)])
def test_bits_do_not_depend_on_threads(asked: Attention) -> None:
    mfg = random_mfg(3000, 8000, 40)
    z, grad = torch.randn(8000, asked.width).requires_grad_(), torch.randn(3000, asked.heads * asked.dim)
    results = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        results.append(both_passes(attend(mfg, z, asked), z, grad))
    for out, grad_z in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(grad_z, results[0][1])


def test_dropout_is_a_function_of_its_key() -> None:
    mfg, asked = random_mfg(50, 80, 9), Attention(2, 4, dropout=0.5, key=KEY)
    z = torch.randn(80, asked.width)
    assert torch.equal(attend(mfg, z, asked), attend(mfg, z, asked))
    assert not torch.equal(attend(mfg, z, asked), attend(mfg, z, replace(asked, key=KEY + np.uint64(1))))
    assert torch.equal(attend(mfg, z, replace(asked, key=None)), attend(mfg, z, Attention(2, 4)))


def test_exponential_is_as_good_as_libm() -> None:
    x = np.concatenate([-np.geomspace(1e-8, 86, 4001), [0.0]]).astype(np.float32)
    got = np.array([exp_of_negative(value) for value in x])
    assert np.allclose(got, np.exp(x.astype(np.float64)), rtol=2.5e-7, atol=0)
    assert exp_of_negative(np.float32(-1e30)) < 1e-37


def test_refuses_what_does_not_fit() -> None:
    mfg, asked = random_mfg(4, 6, 3), Attention(2, 3)
    with pytest.raises(ValueError, match=r"6 rows, one a source, of 10 \(got shape \(6, 9\)\)"):
        attend(mfg, torch.zeros(6, 9), asked)
    with pytest.raises(ValueError, match="float64"):
        attend(mfg, torch.zeros(6, 10, dtype=torch.float64), asked)
    with pytest.raises(ValueError, match=r"outside \[0, 6\)"):
        attend(Mfg(np.array([0, 1]), np.array([-1], np.int32), 6), torch.zeros(6, 10), asked)
    with pytest.raises(ValueError, match=r"got 1\.5"):
        attend(mfg, torch.zeros(6, 10), Attention(2, 3, dropout=1.5, key=KEY))
