"""Normalisation between layers: batch norm equals torch's once its statistics are applied; any number of rows works."""

from __future__ import annotations

import pytest
import torch

from kernels.nn.model import ModelSpec, build_model
from kernels.nn.norm import BatchNorm, build_norm


def test_batch_norm_equals_torchs() -> None:
    ours, theirs = BatchNorm(4), torch.nn.BatchNorm1d(4)
    for size in (9, 2, 30):
        x = torch.randn(size, 4) * 3 + 1
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        out = ours(a)
        torch.testing.assert_close(out, theirs(b))
        ours.apply_observed(ours.observed)
        (out**3).sum().backward()
        (theirs(b) ** 3).sum().backward()
    theirs = torch.nn.BatchNorm1d(4)
    fresh = BatchNorm(4)
    for size in (9, 2, 30):
        x = torch.randn(size, 4)
        theirs(x)
        fresh(x)
        fresh.apply_observed(fresh.observed)
    torch.testing.assert_close(fresh.running_mean, theirs.running_mean)
    torch.testing.assert_close(fresh.running_var, theirs.running_var)
    x = torch.randn(5, 4)
    torch.testing.assert_close(fresh.eval()(x), theirs.eval()(x))


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows_for_a_variance_use_the_running_one(rows: int) -> None:
    norm, x = BatchNorm(3), torch.ones(rows, 3)
    torch.testing.assert_close(norm(x), norm.eval()(x))
    before = norm.running_mean.clone()
    norm.apply_observed(norm.observed)
    assert torch.equal(norm.running_mean, before)


def test_forward_alone_leaves_the_running_statistics() -> None:
    norm = BatchNorm(3)
    norm(torch.randn(8, 3))
    assert torch.equal(norm.running_mean, torch.zeros(3))


def test_it_goes_where_the_network_goes_and_decides_nothing_on_the_host() -> None:
    """A tensor on `meta` has no values to wait for, and tells whoever asks for one."""
    norm = BatchNorm(3).to("meta")
    assert norm.observed.device.type == "meta"
    norm(torch.randn(8, 3, device="meta"))
    norm.apply_observed(norm.observed)
    assert "observed" not in norm.state_dict()


@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
@pytest.mark.parametrize("kind", ["sage", "gcn", "gat", "mlp"])
def test_only_a_bias_that_counts_is_trained(kind: str, norm: str) -> None:
    """Before a batch normalisation it changes nothing, so its gradient would be nothing but rounding."""
    spec = ModelSpec(kind, in_dim=5, hidden=8, num_classes=3, num_layers=3, norm=norm)  # type: ignore[arg-type]
    *hidden, last = build_model(spec, seed=0).ordered_layers()
    assert [layer.bias.requires_grad for layer in hidden] == [norm != "batch"] * 2
    assert last.bias.requires_grad


@pytest.mark.parametrize("kind", ["none", "layer"])
def test_others_keep_the_shape(kind: str) -> None:
    assert build_norm(kind, 3)(torch.randn(4, 3)).shape == (4, 3)  # type: ignore[arg-type]


def test_statistics_travel_flat() -> None:
    spec = ModelSpec("mlp", in_dim=5, hidden=8, num_classes=3, num_layers=3, norm="batch")
    model = build_model(spec, seed=0).train()
    model([], torch.randn(10, 5))
    seen = model.observed_statistics()
    assert seen.shape == (2 * 2 * 8,)
    other = build_model(spec, seed=0)
    other.apply_statistics(seen)
    model.apply_statistics(seen)
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_wrong_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="norm must be one of none, batch, layer"):
        ModelSpec("sage", in_dim=5, hidden=8, num_classes=3, num_layers=2, norm="group")  # type: ignore[arg-type]


def test_old_descriptions_without_norm_are_read() -> None:
    spec = ModelSpec("sage", in_dim=5, hidden=8, num_classes=3, num_layers=2)
    older = {name: value for name, value in spec.to_dict().items() if name != "norm"}
    assert ModelSpec.from_dict(older) == spec
