"""The fused aggregates on the device against the CPU bodies, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.cuda.aggregate import Factors, rows_at, sum_rows
from kernels.cuda.current import device_launcher, launching_through
from kernels.cuda.gather import TierTable, row_addresses
from kernels.cuda.launch import DeviceLauncher, Launcher
from kernels.mfg import Mfg
from kernels.nn.aggregate import aggregate, aggregate_tiers
from kernels.nn.attention import Attention, attend
from kernels.nn.dropout import dropout
from kernels.nn.model import edgeless_mfg
from kernels.tiered_rows import TieredRows
from tests.kernels.nn.mfgs import mfgs

DRAWN = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _both(
    launcher: DeviceLauncher, mfg: Mfg, h: torch.Tensor, body: Callable[[Mfg, torch.Tensor], torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Output and gradient on the CPU and on the device, each of what lies there."""
    found = []
    placed = Mfg(launcher.to_device(mfg.indptr), launcher.to_device(mfg.indices), mfg.num_src)
    for hop, device in ((mfg, torch.device("cpu")), (placed, launcher.torch_device)):
        x = h.to(device).clone().requires_grad_()
        with launching_through(launcher) if hop is placed else nullcontext():
            out = body(hop, x)
            grad_out = torch.cos(torch.arange(out.numel(), dtype=out.dtype)).view_as(out).to(device)
            (grad,) = torch.autograd.grad(out, x, grad_out)
        found.append((out.detach().cpu(), grad.cpu()))
    return found


@DRAWN
@given(
    mfg=mfgs(),
    width=st.sampled_from([0, 1, 5, 20, 40]),
    given_factors=st.tuples(st.booleans(), st.booleans()),
    place=st.sampled_from(["none", "added", "beside"]),
    reduce=st.sampled_from(["sum", "mean"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_aggregate_has_the_bits_of_the_cpus(
    launcher: DeviceLauncher, mfg: Mfg, width: int, given_factors: tuple[bool, bool], place: str, reduce: Any,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(width)
    h = torch.randn(mfg.num_src, width, generator=generator, dtype=dtype)
    weight, scale, own_D = (torch.rand(n, generator=generator, dtype=dtype) for n in (mfg.num_src, *[mfg.num_dst] * 2))

    def body(hop: Mfg, x: torch.Tensor) -> torch.Tensor:
        weight_S, scale_D, own = (factor.to(x.device) for factor in (weight, scale, own_D))
        return aggregate(
            hop, x, weight_S=weight_S if given_factors[0] else None, scale_D=scale_D if given_factors[1] else None,
            reduce=reduce, own_D=own if place == "added" else None, beside=place == "beside",
        )  # fmt: skip

    (out, grad), (device_out, device_grad) = _both(launcher, mfg, h, body)
    assert device_out.dtype == out.dtype
    assert torch.equal(device_out, out)
    assert torch.equal(device_grad, grad)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
def test_aggregate_reads_rows_where_the_tiers_hold_them(launcher: Launcher, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    tiers = [(100 * rng.standard_normal((size, 12))).astype(dtype) for size in (5, 0, 9)]
    tiers[0].reshape(-1)[:4] = np.array([0, 1, 2, 3], np.uint8)
    if dtype == np.float16:
        tiers[2].view(np.uint16)[0, :7] = [0, 0x8000, 1, 0x83FF, 0x7C00, 0x0400, 0x7BFF]  # subnormals, infinity
    tier_n = np.array([0, 2, 2, 0, 2, 0], np.uint8)
    slot_n = np.array([4, 0, 8, 0, 3, 1])
    mfg = Mfg(np.array([0, 3, 3, 7]), np.array([0, 1, 5, 2, 2, 4, 3], np.int32), 6)
    expected = aggregate_tiers(mfg, TieredRows(tiers, tier_n, slot_n))
    on_device = [launcher.to_device(tier) for tier in tiers]
    table = TierTable.of(launcher, on_device)
    address_S, _ = row_addresses(launcher, table, launcher.to_device(tier_n), launcher.to_device(slot_n))
    nothing = launcher.xp.empty(0, np.float32)
    rows = rows_at(address_S, tiers[0].dtype, 12, on_device)
    indptr, indices = launcher.to_device(mfg.indptr), launcher.to_device(mfg.indices)
    got = sum_rows(launcher, indptr, indices, rows, Factors(nothing, nothing, nothing))
    assert np.array_equal(launcher.to_host(got), expected.numpy())


@DRAWN
@given(mfg=mfgs(), heads=st.integers(1, 3), dim=st.sampled_from([1, 4, 17]), drop=st.sampled_from([0.0, 0.4]))
def test_attention_equals_the_cpus(launcher: DeviceLauncher, mfg: Mfg, heads: int, dim: int, drop: float) -> None:
    asked = Attention(heads, dim, dropout=drop, key=np.uint64(77) if drop else None)
    z = torch.randn(mfg.num_src, asked.width, generator=torch.Generator().manual_seed(dim))
    (out, grad), (device_out, device_grad) = _both(launcher, mfg, z, lambda hop, x: attend(hop, x, asked))
    torch.testing.assert_close(device_out, out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(device_grad, grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [0, 1, 6, 1000])
def test_dropout_drops_the_elements_that_the_cpu_drops(launcher: DeviceLauncher, size: int) -> None:
    h = torch.randn(size, 3, generator=torch.Generator().manual_seed(size))
    nothing, key = edgeless_mfg(0), np.uint64(5)
    (out, grad), (device_out, device_grad) = _both(launcher, nothing, h, lambda _, x: dropout(x, 0.3, key))
    assert torch.equal(device_out, out)
    assert torch.equal(device_grad, grad)


class _Gpu:
    """Stands for the launcher of a GPU, which nothing that lies on the CPU may reach."""

    torch_device = torch.device("cuda", 0)


def test_what_lies_on_the_cpu_is_never_given_to_a_gpu() -> None:
    mfg = Mfg(np.array([0, 2]), np.array([1, 2], np.int32), 3)
    rows = torch.arange(6.0).view(3, 2)
    gpu: Any = _Gpu()
    with launching_through(gpu):
        assert device_launcher(0).torch_device.type == "cuda"
        assert aggregate(mfg, rows).tolist() == [[6.0, 8.0]]
        assert dropout(rows, 0.5, np.uint64(1)).shape == rows.shape
