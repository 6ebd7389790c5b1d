"""Splits are those of a sort of all labelled nodes by hash, though nothing is sorted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.rng import Purpose, stream_key, uniform_u64
from storage import splits as splits_module
from storage.splits import Labels, random_splits


def by_sorting(labels: Labels | None, num_nodes: int, train: float, valid: float, seed: int) -> dict[str, list[int]]:
    labelled = np.arange(num_nodes) if labels is None else np.flatnonzero(labels >= 0)
    order = labelled[np.argsort(uniform_u64(stream_key(Purpose.SPLIT, seed), labelled), kind="stable")]
    first = round(len(order) * train)
    second = min(len(order), first + round(len(order) * valid))
    parts = {"train": order[:first], "valid": order[first:second], "test": order[second:]}
    return {split: sorted(nodes.tolist()) for split, nodes in parts.items()}


@settings(deadline=None)
@given(
    num_nodes=st.integers(0, 300),
    train=st.floats(0, 1),
    valid=st.floats(0, 1),
    seed=st.integers(0, 99),
    known=st.none() | st.floats(0, 1),
    chunk=st.integers(1, 400),
)
def test_equals_a_sort(num_nodes: int, train: float, valid: float, seed: int, known: float | None, chunk: int) -> None:
    rng = np.random.default_rng(seed)
    labels = None if known is None else np.where(rng.random(num_nodes) < known, 1, -1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits_module, "_CHUNK_NODES", chunk)
        found = random_splits(labels, num_nodes, train_fraction=train, valid_fraction=valid, seed=seed)
    assert {split: nodes.tolist() for split, nodes in found.items()} == by_sorting(
        labels, num_nodes, train, valid, seed
    )


def test_equal_hashes_go_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits_module, "uniform_u64", lambda _, nodes: np.full(len(nodes), 2**63, np.uint64))
    found = random_splits(None, 10, train_fraction=0.3, valid_fraction=0.3, seed=0)
    assert {split: nodes.tolist() for split, nodes in found.items()} == {
        "train": [0, 1, 2],
        "valid": [3, 4, 5],
        "test": [6, 7, 8, 9],
    }
