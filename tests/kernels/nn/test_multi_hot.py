"""The linear map of multi-hot rows against a matrix product."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.nn.multi_hot import linear_rows


@settings(deadline=None)
@given(st.integers(0, 9), st.integers(0, 40), st.integers(1, 5), st.floats(0, 0.3), st.integers(0, 99))
def test_equals_a_matrix_product(num_rows: int, width: int, out_dim: int, share: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = (torch.rand(num_rows, width, generator=generator) < share).to(torch.uint8)
    weight = torch.randn(out_dim, width, generator=generator).requires_grad_()
    grad = torch.randn(num_rows, out_dim, generator=generator)
    ours, dense = linear_rows(rows, weight), rows.float() @ weight.T
    torch.testing.assert_close(ours, dense, rtol=1e-5, atol=1e-5)
    for got, expected in zip(
        torch.autograd.grad(ours, weight, grad), torch.autograd.grad(dense, weight, grad), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def sparse_rows() -> torch.Tensor:
    return (torch.rand(50, 1001, generator=torch.Generator().manual_seed(0)) < 0.01).to(torch.uint8)


def test_sparse_rows_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.nn.multi_hot.functional.linear", lambda *_: pytest.fail("multiplied by zeros"))
    linear_rows(sparse_rows(), torch.randn(3, 1001))


@pytest.mark.parametrize("change", ["dense", "counts", "float"])
def test_other_rows_are_multiplied(change: str) -> None:
    rows = sparse_rows()
    rows = {"dense": 1 - rows, "counts": rows * 2, "float": rows.float() * 0.5}[change]
    weight = torch.randn(3, 1001)
    torch.testing.assert_close(linear_rows(rows, weight), rows.float() @ weight.T, rtol=1e-5, atol=1e-4)


def test_rows_in_the_middle_of_a_tensor() -> None:
    rows, weight = sparse_rows(), torch.randn(3, 1001)
    torch.testing.assert_close(linear_rows(rows[7:20], weight), rows[7:20].float() @ weight.T, rtol=1e-5, atol=1e-5)
