"""The fused aggregate against a plain gather and `index_add`, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.aggregate import transpose
from kernels.mfg import Mfg
from kernels.nn.aggregate import aggregate, aggregate_tiers
from kernels.tiered_rows import TieredRows
from tests.kernels.nn.mfgs import destinations, mfgs, random_mfg, sources


@pytest.fixture
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def plain(
    mfg: Mfg,
    h: torch.Tensor,
    weight: torch.Tensor | None,
    scale: torch.Tensor | None,
    reduce: str,
    own: torch.Tensor | None = None,
    beside: bool = False,
) -> torch.Tensor:
    """The definition, edge by edge."""
    per_edge = (h if weight is None else h * weight[:, None])[sources(mfg)]
    out = torch.zeros(mfg.num_dst, h.shape[1], dtype=h.dtype).index_add(0, destinations(mfg), per_edge)
    if reduce == "mean":
        out = out / torch.from_numpy(np.diff(mfg.indptr)).clamp(min=1)[:, None]
    out = out if scale is None else out * scale[:, None]
    out = out if own is None else out + own[:, None] * h[: mfg.num_dst]
    return torch.cat([out, h[: mfg.num_dst]], dim=1) if beside else out


def both_passes(out: torch.Tensor, h: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    (grad_h,) = torch.autograd.grad(out, h, grad)
    return out.detach(), grad_h


@settings(deadline=None)
@given(
    mfgs(),
    st.integers(0, 20),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from(["none", "added", "beside"]),
    st.sampled_from(["sum", "mean"]),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 9),
)
def test_equals_plain_torch(
    mfg: Mfg, width: int, factors: tuple[bool, bool], own: str, reduce: str, dtype: torch.dtype, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    h = torch.randn(mfg.num_src, width, generator=rng, dtype=dtype).requires_grad_()
    lengths = (mfg.num_src if factors[0] else None, mfg.num_dst if factors[1] else None)
    weight, scale, own_D = (
        None if n is None else torch.randn(n, generator=rng, dtype=dtype)
        for n in (*lengths, mfg.num_dst if own == "added" else None)
    )
    beside = own == "beside"
    grad = torch.randn(mfg.num_dst, width * (2 if beside else 1), generator=rng, dtype=dtype)
    out = aggregate(mfg, h, weight_S=weight, scale_D=scale, reduce=reduce, own_D=own_D, beside=beside)  # type: ignore[arg-type]
    ours = both_passes(out, h, grad)
    theirs = both_passes(plain(mfg, h, weight, scale, reduce, own_D, beside), h, grad)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for got, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@settings(deadline=None)
@given(
    mfgs(),
    st.integers(0, 40),
    st.sampled_from(["float32", "float16", "uint8"]),
    st.sampled_from(["none", "added", "beside"]),
    st.booleans(),
    st.integers(0, 9),
)
def test_reading_the_tiers_equals_gathering_first(
    mfg: Mfg, width: int, dtype: str, own: str, factored: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = tiered(mfg.num_src, width, dtype, rng)
    weight, scale = (torch.from_numpy(rng.random(n)) if factored else None for n in (mfg.num_src, mfg.num_dst))
    own_D = torch.from_numpy(rng.random(mfg.num_dst)) if own == "added" else None
    rest: dict[str, Any] = {"own_D": own_D, "beside": own == "beside"}
    rest |= {"weight_S": weight, "scale_D": scale, "reduce": "mean" if factored else "sum"}
    gathered = torch.from_numpy(rows.gather()).float()
    assert torch.equal(aggregate_tiers(mfg, rows, **rest), aggregate(mfg, gathered, **rest))


def tiered(num_rows: int, width: int, dtype: str, rng: np.random.Generator) -> TieredRows:
    """Rows in any order in three tiers, one of them a strided view, one larger than needed."""
    matrices = [rng.integers(0, 9, (num_rows + t, width + t)).astype(dtype) for t in range(3)]
    if dtype != "uint8":
        matrices = [(m * rng.random(m.shape)).astype(dtype) for m in matrices]
    tier_n = rng.integers(0, 3, num_rows).astype(np.uint8)
    return TieredRows([m[:, :width] for m in matrices], tier_n, rng.permutation(num_rows))


def test_tiers_that_do_not_fit_are_refused() -> None:
    mfg, tier_n, slot_n = random_mfg(4, 6, 3), np.zeros(6, np.uint8), np.arange(6)
    rows = np.zeros((6, 2), np.float32)
    with pytest.raises(ValueError, match=r"rows must be 6, one a source \(got 5\)"):
        aggregate_tiers(mfg, TieredRows([rows], tier_n[:5], slot_n[:5]))
    with pytest.raises(ValueError, match=r"float32, float16, uint8 \(got float64\)"):
        aggregate_tiers(mfg, TieredRows([rows.astype(np.float64)], tier_n, slot_n))
    with pytest.raises(ValueError, match="row 5 asks for slot 6 of tier 0"):
        aggregate_tiers(mfg, TieredRows([rows], tier_n, np.array([0, 1, 2, 3, 4, 6])))
    with pytest.raises(ValueError, match="row 5 asks for slot 5 of tier 1"):
        aggregate_tiers(mfg, TieredRows([rows], np.array([0, 0, 0, 0, 0, 1], np.uint8), slot_n))
    with pytest.raises(ValueError, match="stands beside"):
        aggregate(mfg, torch.zeros(6, 2), own_D=torch.ones(4), beside=True)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_gradcheck(reduce: str) -> None:
    mfg = random_mfg(5, 9, 6)
    h = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)
    weight, scale = torch.randn(9, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: aggregate(mfg, x, weight_S=weight, scale_D=scale, reduce=reduce), (h,))  # type: ignore[arg-type]


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("width", [5, 64])
def test_bits_do_not_depend_on_threads(width: int) -> None:
    mfg = random_mfg(3000, 8000, 40)
    h, grad = torch.randn(8000, width).requires_grad_(), torch.randn(3000, width)
    results = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        results.append(both_passes(aggregate(mfg, h, reduce="mean"), h, grad))
    for out, grad_h in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(grad_h, results[0][1])


def test_reads_rows_of_a_strided_matrix() -> None:
    mfg = random_mfg(20, 30, 5)
    wide = torch.randn(30, 8)
    assert torch.equal(aggregate(mfg, wide[:, 2:5]), aggregate(mfg, wide[:, 2:5].contiguous()))


@settings(deadline=None)
@given(mfgs())
def test_transpose_lists_destinations_in_order(mfg: Mfg) -> None:
    indptr, indices, edges = transpose(mfg.indptr, mfg.indices, mfg.num_src, True)
    dst = destinations(mfg).numpy()
    for s in range(mfg.num_src):
        assert indices[indptr[s] : indptr[s + 1]].tolist() == dst[mfg.indices == s].tolist()
        assert edges[indptr[s] : indptr[s + 1]].tolist() == np.flatnonzero(mfg.indices == s).tolist()


def test_refuses_what_does_not_fit() -> None:
    mfg = random_mfg(4, 6, 3)
    with pytest.raises(ValueError, match=r"6 rows.*got shape \(5, 2\)"):
        aggregate(mfg, torch.zeros(5, 2))
    with pytest.raises(ValueError, match="float32 or float64"):
        aggregate(mfg, torch.zeros(6, 2, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"weight_S must have shape \(6,\)"):
        aggregate(mfg, torch.zeros(6, 2), weight_S=torch.ones(4))
    with pytest.raises(ValueError, match=r"scale_D must have shape \(4,\)"):
        aggregate(mfg, torch.zeros(6, 2), scale_D=torch.ones(6))
    for wrong in (6, -1):
        with pytest.raises(ValueError, match=r"outside \[0, 6\)"):
            aggregate(Mfg(np.array([0, 1]), np.array([wrong], np.int32), 6), torch.zeros(6, 2))
    with pytest.raises(ValueError, match="'max'"):
        aggregate(mfg, torch.zeros(6, 2), reduce="max")  # type: ignore[arg-type]
