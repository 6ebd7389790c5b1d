"""Whole networks: descriptions, initial weights, dropout by identity."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.mfg import Mfg
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import ModelSpec, build_model
from tests.kernels.nn.mfgs import random_mfg

SPEC = ModelSpec("sage", in_dim=5, hidden=8, num_classes=3, num_layers=2, dropout=0.5, input_dropout=0.2)


def two_hops() -> tuple[list[Mfg], torch.Tensor, NodeDegrees]:
    hops = [random_mfg(6, 15, 4), random_mfg(15, 40, 5, seed=1)]
    return hops, torch.randn(40, 5), NodeDegrees(np.full(40, 9), np.full(40, 9))


def with_kind(kind: str) -> ModelSpec:
    return ModelSpec.from_dict({**SPEC.to_dict(), "kind": kind})


def test_description_survives_a_round_trip() -> None:
    assert ModelSpec.from_dict(SPEC.to_dict()) == SPEC


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "gin"}, "sage, gcn, gat, mlp"),
        ({"hidden": 0}, "hidden must be >= 1"),
        ({"dropout": 1.0}, "dropout must lie"),
        ({"depth": 4}, "has the fields"),
        ({"heads": 4}, "belong to a gat model"),
        ({"attention_dropout": 0.5}, "belong to a gat model"),
        ({"kind": "gat", "heads": 5}, "must divide hidden"),
        ({"kind": "gat", "attention_dropout": 1.0}, "attention_dropout must lie"),
    ],
)
def test_wrong_description_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSpec.from_dict({**SPEC.to_dict(), **change})


@pytest.mark.parametrize("kind", ["sage", "gcn"])
def test_output_is_one_row_a_seed(kind: str) -> None:
    hops, x, degrees = two_hops()
    assert build_model(with_kind(kind), seed=0)(hops, x, degrees).shape == (6, 3)


def test_mlp_reads_no_hop() -> None:
    assert build_model(with_kind("mlp"), seed=0)([], torch.randn(7, 5)).shape == (7, 3)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first, state = build_model(SPEC, seed=3), torch.get_rng_state()
    torch.manual_seed(2)
    second = build_model(SPEC, seed=3)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    other = build_model(SPEC, seed=4)
    assert not torch.equal(next(other.parameters()), next(first.parameters()))
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state), "building a model must not advance the global generator"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
def test_features_in_storage_dtype_are_converted(dtype: torch.dtype) -> None:
    hops, x, _ = two_hops()
    stored = (x.abs() * 10).to(dtype)
    model = build_model(SPEC, seed=0)
    assert torch.equal(model(hops, stored), model(hops, stored.float()))


def test_dropout_depends_on_the_identity_alone() -> None:
    hops, x, _ = two_hops()
    model = build_model(SPEC, seed=0)
    dropped = model(hops, x, dropout_identity=(0, 1, 2))
    torch.manual_seed(9)
    assert torch.equal(model(hops, x, dropout_identity=(0, 1, 2)), dropped)
    assert not torch.equal(model(hops, x, dropout_identity=(0, 1, 3)), dropped)
    assert not torch.equal(model(hops, x), dropped)
